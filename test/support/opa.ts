import { spawnSync } from 'node:child_process';
import { homedir } from 'node:os';
import { delimiter, join } from 'node:path';

/** The release that built `rego/gateway.wasm`; another one may build another module from the same Rego. */
export const OPA_VERSION = '1.19.1';
export const OPA_HINT = `with Go installed: go install github.com/open-policy-agent/opa@v${OPA_VERSION}`;

/** The pinned `opa` on the PATH or where `go install` puts it, or why there is none. */
export function findOpa(): { readonly path: string } | { readonly missing: string } {
  const env = process.env;
  const goPaths = (env.GOPATH || join(homedir(), 'go')).split(delimiter);
  const folders = [
    ...(env.PATH ?? '').split(delimiter),
    ...(env.GOBIN ? [env.GOBIN] : []),
    ...goPaths.map((path) => join(path, 'bin')),
  ];
  const others = new Set<string>();
  for (const folder of folders.filter((name) => name !== '')) {
    const path = join(folder, 'opa');
    const { stdout } = spawnSync(path, ['version'], { encoding: 'utf8', timeout: 20_000 });
    const version = /^Version: (\S+)$/m.exec(stdout ?? '')?.[1];
    if (version === OPA_VERSION) return { path };
    if (version !== undefined) others.add(version);
  }
  return { missing: others.size > 0 ? `opa ${OPA_VERSION} is needed, found ${[...others].join(', ')}` : 'opa not found' };
}
