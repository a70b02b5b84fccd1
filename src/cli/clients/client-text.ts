/** Adds a server to the text of a client's configuration file, and keeps the rest of it. Pure. */
import { isMap, parseDocument } from 'yaml';
import { isObject, type JsonValue, readJsonText } from '../../base/json/json.ts';
import type { Content, JsonEntry } from '../../clients/client-files.ts';
import { CommandError } from '../command.ts';

/** A file that can only be edited by hand. `code` is that of the command's error. */
const byHand = (why: string): CommandError => new CommandError(why, 'edit_by_hand');
const taken = (name: string): CommandError =>
  new CommandError(
    `it has a different server ${name} already: choose a different name with --name, or remove that one`,
    'name_taken',
  );

/**
 * Returns the text with the server. `text` null: the file does not exist. The result is null if the file has exactly this server already.
 * Throws CommandError if the file has a different server with the name, or if editing it would lose something.
 */
export function withServer(text: string | null, content: Content): string | null {
  const before = text?.trim() === '' ? null : text;
  switch (content.format) {
    case 'json':
      return withJson(before, content.entry);
    case 'toml':
      return withToml(before, content.table, content.text);
    case 'yaml':
      return withYaml(before, content.entry);
  }
}

function withJson(text: string | null, { path, value }: JsonEntry): string | null {
  const bom = text?.startsWith('\ufeff') ? '\ufeff' : '';
  const plain = text?.slice(bom.length) ?? '{}';
  // The strict reader also refuses comments and repeated names, which would be lost, and numbers that would change.
  const reading = readJsonText(plain);
  if (!reading.ok) throw byHand(`it is not plain JSON (${reading.reason}), so editing it could lose something`);
  const root = JSON.parse(plain) as JsonValue;
  if (!isObject(root)) throw byHand('it is not a JSON object');
  let at = root;
  for (const name of path.slice(0, -1)) {
    const next = Object.hasOwn(at, name) ? at[name] : {};
    if (!isObject(next)) throw byHand(`its member ${name} is not a JSON object`);
    at[name] = next;
    at = next;
  }
  const name = path.at(-1) ?? '';
  if (Object.hasOwn(at, name)) {
    if (JSON.stringify(at[name]) === JSON.stringify(value)) return null;
    throw taken(name);
  }
  at[name] = value;
  const indent = /^[ \t]+(?=")/m.exec(plain)?.[0] ?? '  ';
  return `${bom}${JSON.stringify(root, null, indent)}\n`;
}

/** Appends a table. What is in front of it stays, byte for byte. */
function withToml(text: string | null, table: string, added: string): string | null {
  if (text === null) return added;
  const [section = '', name = ''] = table.split('.');
  if (text.includes(added) && text.split(added).length === 2) return null;
  if (new RegExp(`^\\s*\\[\\s*["']?${section}["']?\\s*\\.\\s*["']?${name}["']?\\s*[\\].]`, 'm').test(text)) throw taken(name);
  // Such a table cannot be continued at the end of the file, or may have the server already.
  if (
    new RegExp(`^\\s*(\\[\\s*["']?${section}["']?\\s*\\]|["']?${section}["']?\\s*[.=])`, 'm').test(text) ||
    /"""|'''/.test(text)
  )
    throw byHand(`it defines ${section} in a form, or has long texts, that this command does not edit`);
  return `${text.replace(/\n*$/, '\n\n')}${added}`;
}

function withYaml(text: string | null, { path, value }: JsonEntry): string | null {
  const document = parseDocument(text ?? '{}');
  if (document.errors.length > 0) throw byHand('it is not valid YAML');
  if (document.contents === null || !isMap(document.contents)) throw byHand('it is not a YAML map');
  const name = path.at(-1) ?? '';
  const parent = document.getIn(path.slice(0, -1));
  if (parent !== undefined && parent !== null && !isMap(parent)) throw byHand(`its key ${path[0]} is not a map`);
  if (document.hasIn(path)) {
    const found = path.reduce<JsonValue | undefined>((at, key) => (isObject(at) ? at[key] : undefined), document.toJS());
    if (JSON.stringify(found) === JSON.stringify(value)) return null;
    throw taken(name);
  }
  if (text === null) document.contents.flow = false;
  if (parent === null) document.setIn(path.slice(0, -1), document.createNode({}));
  document.setIn(path, document.createNode(value));
  return String(document);
}
