/**
 * A real MySQL on Debian, which packages only MariaDB: the one of `sid`, unpacked into a cache folder with its own loader and
 * libraries. Nothing is installed, no rights are needed, and apt checks the signatures as always.
 */
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import type { Guardian } from './guardian.ts';
import type { MysqlProgram } from './mysql.ts';

const TIME_BOX_MS = process.env.CI === 'true' ? 300_000 : 150_000;
const LIBRARIES = 'usr/lib/x86_64-linux-gnu';
const KEYRINGS = ['/usr/share/keyrings/debian-archive-keyring.pgp', '/usr/share/keyrings/debian-archive-keyring.gpg'];
// What this machine's owner has set about its mirror: proxies, and how old an index may be.
const MIRROR_SETTING = /^Acquire::(https?|ForceIPv[46]|Retries|Check-Date|Check-Valid-Until|Min-ValidTime|Max-ValidTime)\b/i;

export async function unpackMysql(guardian: Guardian, say: (line: string) => void): Promise<MysqlProgram> {
  const cache = join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'portcullis');
  const root = newestUnpacked(cache) ?? (await download(guardian, cache, say));
  const libraries = [join(root, LIBRARIES), join(root, LIBRARIES, 'private'), join(root, 'usr/lib/mysql/private')];
  return {
    words: [
      join(root, 'usr/lib64/ld-linux-x86-64.so.2'),
      '--library-path',
      libraries.join(':'),
      join(root, 'usr/sbin/mysqld'),
      '--no-defaults',
      `--lc-messages-dir=${join(root, 'usr/share/mysql')}`,
      `--plugin-dir=${join(root, 'usr/lib/mysql/plugin')}`,
      `--character-sets-dir=${join(root, 'usr/share/mysql/charsets')}`,
    ],
  };
}

function newestUnpacked(cache: string): string | undefined {
  if (!existsSync(cache)) return undefined;
  const versions = readdirSync(cache).filter((name) => name.startsWith('mysql-'));
  const newest = versions.sort((a, b) => a.localeCompare(b, 'en', { numeric: true })).at(-1);
  return newest && join(cache, newest);
}

async function download(guardian: Guardian, cache: string, say: (line: string) => void): Promise<string> {
  const source = debianSource();
  say(`downloading MySQL for the tests, once: about 60 MB, unpacked 330 MB in ${cache}.`);
  say('to leave it out: PORTCULLIS_TEST_DATABASES=sqlite,mariadb npm test');
  const deadline = Date.now() + TIME_BOX_MS;
  const run = (command: string, args: readonly string[], env?: NodeJS.ProcessEnv) =>
    guardian.run(command, args, { timeoutMs: Math.max(1, deadline - Date.now()), env: { ...process.env, LC_ALL: 'C', ...env } });

  // Outside the home folder, so that apt run by root can drop its rights for the download.
  const apt = join(guardian.folder, 'apt');
  const mirror = (await run('apt-config', ['dump'])).split('\n').filter((line) => MIRROR_SETTING.test(line));
  const APT_CONFIG = writeAptRoot(apt, source, mirror);
  await run('apt-get', ['update'], { APT_CONFIG });
  await run('apt-get', ['install', '-y', '--no-install-recommends', '-d', 'mysql-server-core', 'libc6'], { APT_CONFIG });

  const archives = join(apt, 'var/cache/apt/archives');
  const packages = readdirSync(archives).filter((name) => name.endsWith('.deb'));
  const version = packages.map((name) => /^mysql-server-core_([^_-]+)/.exec(name)?.[1]).find((found) => found !== undefined);
  if (version === undefined) throw new Error('apt downloaded no mysql-server-core');
  mkdirSync(cache, { recursive: true });
  const unpacked = mkdtempSync(join(cache, 'unpacking-'));
  guardian.removeLater(unpacked);
  for (const name of packages) await run('dpkg-deb', ['-x', join(archives, name), unpacked]);

  const root = join(cache, `mysql-${version}`);
  try {
    renameSync(unpacked, root);
  } catch (error) {
    // Another run was faster: its copy is as good.
    if (!existsSync(root)) throw error;
  }
  return root;
}

interface AptSource {
  readonly uri: string;
  readonly keyring: string;
}

/** Returns where this machine gets its Debian packages from. It reads both formats of apt. */
function debianSource(): AptSource {
  const release = existsSync('/etc/os-release') ? readFileSync('/etc/os-release', 'utf8') : '';
  if (!/^ID=debian$/m.test(release) || process.arch !== 'x64') throw new Error('this is not Debian on amd64');
  const codename = /^VERSION_CODENAME=(\S+)$/m.exec(release)?.[1] ?? 'stable';
  const keyring = KEYRINGS.find((path) => existsSync(path));
  if (keyring === undefined) throw new Error('the package debian-archive-keyring is missing');

  const parts = '/etc/apt/sources.list.d';
  const files = ['/etc/apt/sources.list', ...(existsSync(parts) ? readdirSync(parts).map((name) => join(parts, name)) : [])];
  for (const file of files.filter((path) => existsSync(path))) {
    const text = readFileSync(file, 'utf8').replace(/^#.*\n/gm, '');
    const uri = file.endsWith('.sources') ? uriOfStanzas(text, codename) : uriOfLines(text, codename);
    if (uri !== undefined) return { uri, keyring };
  }
  throw new Error(`apt has no source for ${codename}`);
}

function uriOfStanzas(text: string, codename: string): string | undefined {
  for (const stanza of text.split(/\n\s*\n/)) {
    const words = (field: string) => new RegExp(`^${field}:(.*)$`, 'im').exec(stanza)?.[1]?.trim().split(/\s+/) ?? [];
    if (words('Types').includes('deb') && words('Suites').includes(codename) && words('Components').includes('main'))
      return words('URIs')[0];
  }
  return undefined;
}

function uriOfLines(text: string, codename: string): string | undefined {
  for (const line of text.split('\n')) {
    const [, uri, suite, components] = /^deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+(\S+)\s+(.*)$/.exec(line) ?? [];
    if (suite === codename && components?.split(/\s+/).includes('main')) return uri;
  }
  return undefined;
}

/** An apt that knows nothing of this machine's packages, so that it downloads every library that MySQL needs. */
function writeAptRoot(root: string, source: AptSource, mirror: readonly string[]): string {
  const folders = ['etc/apt/apt.conf.d', 'etc/apt/preferences.d', 'etc/apt/sources.list.d', 'etc/apt/trusted.gpg.d'];
  folders.push('var/lib/apt/lists/partial', 'var/cache/apt/archives/partial', 'var/lib/dpkg');
  for (const folder of folders) mkdirSync(join(root, folder), { recursive: true });
  const status = join(root, 'var/lib/dpkg/status');
  writeFileSync(status, '');
  const stanza = ['Types: deb', `URIs: ${source.uri}`, 'Suites: sid', 'Components: main', `Signed-By: ${source.keyring}`];
  writeFileSync(join(root, 'etc/apt/sources.list.d/sid.sources'), `${stanza.join('\n')}\n`);

  const settings = [
    'Acquire::http::Timeout "20";',
    'Acquire::https::Timeout "20";',
    ...mirror,
    `Dir "${root}";`,
    `Dir::State::status "${status}";`,
    'Dir::Etc::netrc "/etc/apt/auth.conf";',
    'Dir::Etc::netrcparts "/etc/apt/auth.conf.d";',
    'APT::Architecture "amd64";',
    'APT::Architectures { "amd64"; };',
    'Acquire::Languages "none";',
  ];
  const config = join(root, 'apt.conf');
  writeFileSync(config, `${settings.join('\n')}\n`);
  return config;
}
