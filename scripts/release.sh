#!/bin/bash
# Makes a release from the commit that is checked out: npm run release -- 0.2.0
# It sets the version, writes version and date into CHANGELOG.md, commits, and tags. It pushes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
  echo "release: $*" >&2
  exit 1
}

version=${1:-}
[[ $version =~ ^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)$ ]] || fail 'name the new version: npm run release -- 0.2.0'
[ -z "$(git status --porcelain)" ] || fail 'the work tree has changes; commit or remove them first'
if git rev-parse --quiet --verify "refs/tags/v$version" >/dev/null; then fail "the tag v$version is there already"; fi
unreleased=$(awk '/^## / { inside = /^## \[Unreleased\]$/; next } inside' CHANGELOG.md)
grep -q '^- ' <<<"$unreleased" || fail 'CHANGELOG.md lists no changes under "## [Unreleased]"'

npm version "$version" --no-git-tag-version --allow-same-version >/dev/null
awk -v head="## [$version] - $(date -u +%F)" '{ print } /^## \[Unreleased\]$/ { print ""; print head }' CHANGELOG.md >CHANGELOG.md.new
mv CHANGELOG.md.new CHANGELOG.md
git add package.json package-lock.json CHANGELOG.md
git commit --quiet --message "Release $version"
git tag --annotate "v$version" --message "Portcullis $version"
echo "release: v$version is tagged. To publish it: git push --follow-tags"
