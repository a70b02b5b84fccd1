/**
 * A policy set as an OPA bundle, so that anyone can evaluate its decisions again without the gateway. Pure: the same set gives
 * the same bytes. https://www.openpolicyagent.org/docs/management-bundles
 */
import { createHash } from 'node:crypto';
import { promisify } from 'node:util';
import { gzip } from 'node:zlib';

const compressed = promisify(gzip);

/** The Rego as people review it, by file name. */
export type RegoSources = Readonly<Record<'reference.rego' | 'gateway.rego', string>>;

export interface BundleParts {
  readonly revision: number;
  /** The compiled document as canonical JSON. */
  readonly data: string;
  /** SHA-256 (hex) of `data`, as in the audit log. */
  readonly dataHash: string;
  readonly engineHash: string;
  readonly rego: RegoSources;
}

/** The type in the protected header of the signature. No token has this type. */
export const BUNDLE_TYPE = 'portcullis-policy-bundle';

/** The roots that the compiled document and the rules define. */
const ROOTS = ['index', 'order', 'policies', 'portcullis', 'unmatched'];
const FOLDER = 'portcullis';

/** Returns the files by path, without the signature. */
export function bundleFiles({ revision, data, dataHash, engineHash, rego }: BundleParts): ReadonlyMap<string, string> {
  const metadata = { portcullis: { data_hash: dataHash, engine_hash: engineHash } };
  return new Map([
    ['.manifest', canonical({ revision: String(revision), roots: ROOTS, rego_version: 1, metadata })],
    ['data.json', data],
    ...Object.entries(rego).map(([name, text]): [string, string] => [`${FOLDER}/${name}`, text]),
  ]);
}

/** Returns the payload of the JWS in `.signatures.json`, which `opa --verification-key` checks. */
export function bundleStatement(files: ReadonlyMap<string, string>, keyId: string): object {
  const listed = [...files].map(([name, text]) => ({ name, hash: sha256(hashed(name, text)), algorithm: 'SHA-256' }));
  return { files: listed, keyid: keyId };
}

/** Returns the archive. `signature`: the JWS of the statement, if the bundle is signed. */
export async function bundleArchive(files: ReadonlyMap<string, string>, signature: string | null): Promise<Buffer> {
  const all = new Map(files);
  if (signature !== null) all.set('.signatures.json', JSON.stringify({ signatures: [signature] }));
  return compressed(tar(all));
}

/** OPA hashes JSON as its own encoder writes it: that sorts members, and escapes two line ends that JSON.stringify leaves. */
function hashed(name: string, text: string): string {
  return name.endsWith('.rego') ? text : text.replaceAll('\u2028', '\\u2028').replaceAll('\u2029', '\\u2029');
}

const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex');

type Json = string | number | readonly string[] | { readonly [name: string]: Json };

/** JSON with members sorted by name. */
const canonical = (value: Json): string =>
  JSON.stringify(value, (_, member) =>
    typeof member === 'object' && !Array.isArray(member)
      ? Object.fromEntries(Object.entries(member).sort(([a], [b]) => (a < b ? -1 : 1)))
      : member,
  );

const BLOCK = 512;

/** Returns POSIX ustar: regular files with short ASCII names, without an owner or a time. */
function tar(files: ReadonlyMap<string, string>): Buffer {
  const blocks: Buffer[] = [];
  for (const [name, text] of files) {
    const content = Buffer.from(text);
    const header = Buffer.alloc(BLOCK);
    const octal = (value: number, at: number, length: number): void =>
      void header.write(`${value.toString(8).padStart(length - 1, '0')}\0`, at, 'ascii');
    header.write(name, 0, 'ascii');
    octal(0o644, 100, 8);
    octal(0, 108, 8);
    octal(0, 116, 8);
    octal(content.length, 124, 12);
    octal(0, 136, 12);
    // The checksum is computed with blanks in place of itself.
    header.write(' '.repeat(8), 148, 'ascii');
    header.write('0', 156, 'ascii');
    header.write('ustar\x0000', 257, 'latin1');
    const checksum = header.reduce((sum, byte) => sum + byte, 0);
    octal(checksum, 148, 8);
    blocks.push(header, content, Buffer.alloc(-content.length & (BLOCK - 1)));
  }
  return Buffer.concat([...blocks, Buffer.alloc(2 * BLOCK)]);
}
