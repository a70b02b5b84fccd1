/** Policies as files that people write, review and keep in git: one policy per file. Pure. */
import Joi from 'joi';
import {
  CST,
  Document,
  isAlias,
  isMap,
  isNode,
  isScalar,
  isSeq,
  Lexer,
  LineCounter,
  type Node,
  type Pair,
  parseAllDocuments,
  parseDocument,
  visit,
  type YAMLMap,
  type YAMLSeq,
} from 'yaml';
import type { Effect, PolicyResourceType } from '../../engine/compile/policy.ts';
import { TARGET_NAME } from '../../targets/target.ts';
import { POLICY_LIMITS, policyMembers, type SubjectDocument, subjectKey, subjectValues } from '../schema.ts';

/** The content of a file. `target` is a name, because ids differ between databases. */
export interface PolicyFile {
  readonly name: string;
  readonly description: string | null;
  /** null: every target. */
  readonly target: string | null;
  readonly resource_type: PolicyResourceType;
  readonly resource_pattern: string | null;
  readonly effect: Effect;
  readonly priority: number;
  readonly enabled: boolean;
  readonly subjects: readonly SubjectDocument[];
}

export interface PolicyFileError {
  readonly file: string;
  /** From 1. */
  readonly line: number;
  readonly column: number;
  readonly message: string;
}

/**
 * Returns the error in the form that compilers print to a terminal. It is one line, whatever the file is called: CI services read commands
 * from lines of the output.
 */
export function describePolicyFileError({ file, line, column, message }: PolicyFileError): string {
  return `${file.replaceAll(/[\r\n]/g, ' ')}:${line}:${column}: ${message}`;
}

/** Plain data, so that threads can send it to each other. */
export interface ParsedPolicyFile {
  readonly file: string;
  readonly policy: PolicyFile;
  /** The position of each key, or of the place where it is missing. */
  readonly locations: Readonly<Record<keyof PolicyFile, Pick<PolicyFileError, 'line' | 'column'>>>;
}

/** Returns an error for a reason that the file alone does not show. */
export const errorAt = ({ file, locations }: ParsedPolicyFile, key: keyof PolicyFile, message: string): PolicyFileError => ({
  ...{ file, line: locations[key].line, column: locations[key].column },
  message: `${key} ${message}`,
});

export type PolicyFileResult = ParsedPolicyFile | { readonly errors: readonly PolicyFileError[] };

interface Written extends Omit<PolicyFile, 'description' | 'target' | 'resource_pattern' | 'enabled' | 'subjects'> {
  description?: string | null;
  target?: string | null;
  resource_pattern?: string | null;
  enabled?: boolean;
  subjects: WrittenSubject[];
}

export type WrittenSubject = 'everyone' | { role: string } | { group: string } | { user: string };

const MAX_FILE_LENGTH = 65_536;
/**
 * Beyond this depth, the library recurses until the stack is full. V8 may then end the process, because it has no stack left to
 * compile a regex.
 */
const MAX_FLOW_DEPTH = 32;
/**
 * Nesting over several lines needs indentation, so the length of the file limits it. A single line can nest one level with every
 * two characters.
 */
const MAX_BLOCKS_A_LINE = 4;
const DECIMAL = /^-?(0|[1-9][0-9]*)$/;
/** More errors than this are useless: one syntax error causes others. */
const MAX_SYNTAX_ERRORS = 5;
/** Finding the position of an error takes longer the more keys a file has, so the positions of thousands would take seconds. */
const MAX_ERRORS = 100;

const subjectForms = 'must be `everyone`, or one of `role: <name>`, `group: <name>` and `user: <id>`';
export const fileSubject = Joi.alternatives().conditional(Joi.object().unknown(), {
  // biome-ignore lint/suspicious/noThenProperty: joi's word for it
  then: Joi.object(subjectValues).length(1).messages({ 'object.length': subjectForms, 'object.unknown': subjectForms }),
  otherwise: Joi.valid('everyone').messages({ 'any.only': subjectForms }),
});

export const policyFileForm = Joi.object<Written>({
  ...policyMembers,
  target: Joi.string()
    .pattern(TARGET_NAME)
    .allow(null)
    .messages({ 'string.pattern.base': 'must be the name of a target' })
    .description('The name of a target. Default: every target.'),
  enabled: policyMembers.enabled.meta({ default: true }),
  subjects: Joi.array()
    .items(fileSubject)
    .max(POLICY_LIMITS.subjects)
    .required()
    .description('The callers to whom the policy applies. An empty list matches no caller.'),
})
  .required()
  .messages({
    'object.base': 'must be a policy: name, resource_type, effect, priority, subjects',
    'object.unknown': 'is not a key of a policy',
  });

// biome-ignore lint/suspicious/noControlCharactersInRegex: these are what it looks for.
const CONTROL = /[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]/;
/** Characters that end a line for readers of YAML 1.1, or change the order in which a text is shown. */
const MISLEADING = /[\u2028\u2029\u202a-\u202e\u2066-\u2069]/g;

/**
 * Strict: YAML 1.2, one document, no duplicate or unknown keys, no anchors, aliases or tags. So a reader sees everything that
 * counts. The errors list every mistake with its position.
 */
export function parsePolicyFile(text: string, file: string): PolicyFileResult {
  const read = readStrictYaml(text, file, policyFileForm, 'only one policy per file is allowed');
  if ('errors' in read) return read;
  const policy = policyOf(read.value);
  const locations = Object.keys(policy).map((key) => {
    const { line, column } = read.errorAt([key], '');
    return [key, { line, column }];
  });
  return { file, policy, locations: Object.fromEntries(locations) as ParsedPolicyFile['locations'] };
}

export interface StrictYaml<T> {
  readonly value: T;
  /** Returns an error at the position of this path, or at the place where it is missing. */
  readonly errorAt: (path: readonly (string | number)[], message: string) => PolicyFileError;
}

/** Reads a file as `parsePolicyFile` does, with a different schema. */
export function readStrictYaml<T>(
  text: string,
  file: string,
  form: Joi.ObjectSchema<T>,
  one: string,
): StrictYaml<T> | { readonly errors: readonly PolicyFileError[] } {
  const lines = new LineCounter();
  const at = (offset: number, message: string): PolicyFileError => {
    const { line, col } = lines.linePos(offset);
    return { file, line: Math.max(1, line), column: Math.max(1, col), message };
  };

  if (text.length > MAX_FILE_LENGTH) return { errors: [at(0, `the file has more than ${MAX_FILE_LENGTH} characters`)] };
  // The library counts the lines only when it parses.
  const unparsed = (offset: number, message: string): PolicyFileError => {
    const before = text.slice(0, offset).split('\n');
    return { file, line: before.length, column: (before.at(-1)?.length ?? 0) + 1, message };
  };
  // No value may have one. The lexer uses some of them as marks between the parts of the text.
  const control = text.search(CONTROL);
  if (control !== -1) return { errors: [unparsed(control, 'a control character is not allowed')] };
  const misleading = text.search(MISLEADING);
  if (misleading !== -1) {
    const form = escaped(text.charAt(misleading));
    return { errors: [unparsed(misleading, `a character that misleads readers is allowed only as ${form} in double quotes`)] };
  }
  const deep = tooDeep(text);
  if (deep !== null) return { errors: [unparsed(deep, 'the nesting is too deep')] };
  const documents = withoutStacks(() =>
    parseAllDocuments(text, { lineCounter: lines, prettyErrors: false, stringKeys: true, uniqueKeys: false }),
  );
  const lone = text.search(/\r(?!\n)/);
  if (lone !== -1) return { errors: [at(lone, 'a carriage return without a line feed ends the line for other readers')] };
  const [document, second] = documents;
  if (!document || !('contents' in document)) return { errors: [at(0, 'the file is empty')] };
  if (second) return { errors: [at(second.range[0], `${one}: a second document begins here`)] };
  const broken = [...document.errors, ...document.warnings];
  if (broken.length > 0) return { errors: broken.slice(0, MAX_SYNTAX_ERRORS).map(({ pos, message }) => at(pos[0], message)) };
  if (document.directives.yaml.explicit) return { errors: [at(0, 'directives are not allowed')] };
  const hidden = anchorsAndTags(document);
  if (hidden.length > 0)
    return { errors: hidden.slice(0, MAX_ERRORS).map((offset) => at(offset, 'anchors, aliases and tags are not allowed')) };
  const wrong = wrongNodes(document);
  if (wrong.length > 0) return { errors: wrong.slice(0, MAX_ERRORS).map(({ offset, message }) => at(offset, message)) };

  const { value, error } = form.validate(document.toJS(), { abortEarly: false, convert: false });
  if (error) {
    const errors = error.details.slice(0, MAX_ERRORS).map(({ path, message }) => {
      const label = path.length === 0 ? '' : `${path.join('.')} `;
      return at(offsetOf(document, path), label + message.replace(/^"[^"]*" /, ''));
    });
    return { errors: errors.sort((a, b) => a.line - b.line || a.column - b.column) };
  }
  return { value, errorAt: (path, message) => at(offsetOf(document, path), message) };
}

/**
 * Returns where the value at `path` begins. If it is missing, returns where the nearest value around it begins. For an unknown
 * key, returns where the key begins.
 */
function offsetOf(document: Document.Parsed, path: readonly (string | number)[]): number {
  for (let length = path.length; length > 0; length--) {
    const parent = document.getIn(path.slice(0, length - 1), true);
    const key = path[length - 1];
    if (isMap(parent)) {
      const pair = parent.items.find((item) => isScalar(item.key) && item.key.value === key);
      if (isScalar(pair?.key) && pair.key.range) return pair.key.range[0];
    }
    if (isSeq(parent) && typeof key === 'number') {
      const item = parent.items[key];
      if (isNode(item) && item.range) return item.range[0];
    }
  }
  return document.contents?.range[0] ?? 0;
}

/** Returns where the nesting becomes too deep to parse; null: nowhere. */
function tooDeep(text: string): number | null {
  let flow = 0;
  let blocks = 0;
  for (const { type, offset } of lexemesOf(text)) {
    if (type === 'flow-seq-start' || type === 'flow-map-start') flow++;
    else if (type === 'flow-seq-end' || type === 'flow-map-end') flow--;
    else if (type === 'flow-error-end') flow = 0;
    else if (type === 'newline') blocks = 0;
    else if (type === 'seq-item-ind' || type === 'explicit-key-ind') blocks += flow > 0 ? 0 : 1;
    if (flow > MAX_FLOW_DEPTH || blocks > MAX_BLOCKS_A_LINE) return offset;
  }
  return null;
}

interface Comment {
  /** From `#` to the end of the line. */
  readonly text: string;
  readonly line: number;
  readonly column: number;
}

/** Returns the comments of a file that `parsePolicyFile` accepts. A `#` inside a value is not a comment. */
export function commentsOf(text: string): Comment[] {
  const comments: Comment[] = [];
  let line = 1;
  let lineStart = 0;
  for (const { type, offset, source } of lexemesOf(text)) {
    if (type === 'comment') comments.push({ text: source.trimEnd(), line, column: offset - lineStart + 1 });
    for (let at = source.indexOf('\n'); at !== -1; at = source.indexOf('\n', at + 1)) {
      line++;
      lineStart = offset + at + 1;
    }
  }
  return comments;
}

/** Yields the parts of the text by type, and the marks that the lexer puts between them. */
function* lexemesOf(text: string) {
  let offset = 0;
  for (const source of new Lexer().lex(text)) {
    const type = CST.tokenType(source);
    yield { type, offset, source };
    // Do not add the length of marks.
    if (type !== 'doc-mode' && type !== 'flow-error-end' && type !== 'scalar') offset += source.length;
  }
}

function anchorsAndTags(document: Document.Parsed): number[] {
  const found: number[] = [];
  visit(document, {
    Node: (_key, node) => {
      const anchored = isAlias(node) || ('anchor' in node && node.anchor !== undefined);
      // A node has a tag only if the file contains one.
      if (anchored || node.tag !== undefined) found.push(node.range?.[0] ?? 0);
    },
  });
  return found;
}

/**
 * Finds repeated keys, which the library would find by comparing each with each other one; keys of a name that Joi ignores; and numbers that
 * other readers take for different ones, such as 010.
 */
function wrongNodes(document: Document.Parsed): { readonly offset: number; readonly message: string }[] {
  const found: { readonly offset: number; readonly message: string }[] = [];
  visit(document, {
    Scalar: (_key, { value, source, range }) => {
      if (typeof value === 'number' && !DECIMAL.test(source ?? ''))
        found.push({
          offset: range?.[0] ?? 0,
          message: 'write a number with decimal digits only, and a text like this in quotes',
        });
    },
    Map: (_key, { items }) => {
      const seen = new Set<unknown>();
      for (const { key } of items) {
        if (!isScalar(key)) continue;
        const offset = key.range?.[0] ?? 0;
        if (seen.has(key.value)) found.push({ offset, message: 'Map keys must be unique' });
        if (key.value === '__proto__') found.push({ offset, message: '__proto__ is not an allowed key' });
        seen.add(key.value);
      }
    },
  });
  return found;
}

/** The library makes an error for each mistake. A file can have thousands, and finding out where each was made takes most of the time. */
function withoutStacks<T>(parse: () => T): T {
  const { stackTraceLimit } = Error;
  Error.stackTraceLimit = 0;
  try {
    return parse();
  } finally {
    Error.stackTraceLimit = stackTraceLimit;
  }
}

export function readSubjects(written: readonly WrittenSubject[]): SubjectDocument[] {
  return written.map((entry) => {
    if (entry === 'everyone') return { subject_type: 'everyone', subject_value: null };
    if ('role' in entry) return { subject_type: 'role', subject_value: entry.role };
    if ('group' in entry) return { subject_type: 'group', subject_value: entry.group };
    return { subject_type: 'user', subject_value: entry.user };
  });
}

function policyOf(written: Written): PolicyFile {
  const subjects = readSubjects(written.subjects);
  return {
    name: written.name,
    description: written.description ?? null,
    target: written.target ?? null,
    resource_type: written.resource_type,
    resource_pattern: written.resource_pattern ?? null,
    effect: written.effect,
    priority: written.priority,
    enabled: written.enabled ?? true,
    subjects: [...new Map(subjects.map((entry) => [subjectKey(entry), entry])).values()],
  };
}

const escaped = (character: string): string => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`;

/** Returns the text of a document. No comment of it has a character that `readStrictYaml` refuses. */
export function writeYaml(document: Document): string {
  visit(document, {
    Scalar: (_key, node) => {
      if (typeof node.value === 'string' && node.value.search(MISLEADING) !== -1) node.type = 'QUOTE_DOUBLE';
    },
  });
  return document.toString({ lineWidth: 110, singleQuote: true }).replaceAll(MISLEADING, escaped);
}

export const subjectForm = ({ subject_type, subject_value }: SubjectDocument): unknown =>
  subject_type === 'everyone' ? 'everyone' : { [subject_type]: subject_value };

/** The values by key, in the canonical order of keys. */
const canonicalValues = (policy: PolicyFile) => ({
  name: policy.name,
  description: policy.description,
  target: policy.target,
  resource_type: policy.resource_type,
  resource_pattern: policy.resource_pattern,
  effect: policy.effect,
  priority: policy.priority,
  enabled: policy.enabled,
  subjects: policy.subjects.map(subjectForm),
});
const DEFAULTS: Readonly<Record<string, unknown>> = { description: null, target: null, resource_pattern: null, enabled: true };
const isDefault = (key: string, value: unknown): boolean => key in DEFAULTS && DEFAULTS[key] === value;

/**
 * Returns the canonical file: keys in canonical order, without members at their default. `parsePolicyFile` reads it back
 * unchanged.
 * `previous` is the current text of the file, which `parsePolicyFile` accepts. If it already describes the policy, it is returned
 * as it is. Otherwise its comments and its order of keys and subjects stay.
 */
export function formatPolicyFile(policy: PolicyFile, previous: string | null = null): string {
  if (previous !== null) {
    if (says(previous, policy)) return previous;
    const rewritten = rewrite(previous, policy);
    if (says(rewritten, policy)) return rewritten;
  }
  const written = Object.entries(canonicalValues(policy)).filter(([key, value]) => !isDefault(key, value));
  return writeYaml(new Document(Object.fromEntries(written), { aliasDuplicateObjects: false }));
}

const says = (text: string, policy: PolicyFile): boolean => {
  const parsed = parsePolicyFile(text, '');
  return 'policy' in parsed && changedKeys(parsed.policy, policy).length === 0;
};

/** Returns the keys that differ in meaning, in canonical order. The order of subjects has no meaning. */
export function changedKeys(a: PolicyFile, b: PolicyFile): (keyof PolicyFile)[] {
  const keys = Object.keys(canonicalValues(a)) as (keyof PolicyFile)[];
  const meaning = (file: PolicyFile, key: keyof PolicyFile): string =>
    JSON.stringify(key === 'subjects' ? file.subjects.map(subjectKey).sort() : file[key]);
  return keys.filter((key) => meaning(a, key) !== meaning(b, key));
}

function rewrite(previous: string, policy: PolicyFile): string {
  const document = parseDocument(previous, { stringKeys: true });
  const root = document.contents as unknown as YAMLMap<Node, Node>;
  let after = 0;
  for (const [key, value] of Object.entries(canonicalValues(policy))) {
    const index = root.items.findIndex((pair) => isScalar(pair.key) && pair.key.value === key);
    const pair = root.items[index];
    if (pair === undefined) {
      if (isDefault(key, value)) continue;
      root.items.splice(after, 0, document.createPair(key, value) as Pair<Node, Node>);
      after += 1;
    } else if (isDefault(key, value) && !isCommented(pair)) {
      root.items.splice(index, 1);
      if (index < after) after -= 1;
    } else {
      if (isSeq(pair.value)) keepSubjects(document, pair.value, policy.subjects);
      else pair.value = replaced(document, pair.value, value);
      after = index + 1;
    }
  }
  return writeYaml(document);
}

const isCommented = ({ key, value }: Pair<Node, Node>): boolean =>
  [key, value].some((node) => isNode(node) && Boolean(node.comment || node.commentBefore));

/** Returns the node itself if it has this value; otherwise a new node in the same style. */
function replaced(document: Document, node: Node | null, value: unknown): Node {
  if (isScalar(node) && node.value === value) return node;
  const made = document.createNode(value) as Node;
  if (node === null) return made;
  made.comment = node.comment ?? null;
  made.commentBefore = node.commentBefore ?? null;
  if (isScalar(node) && isScalar(made) && typeof value === 'string' && node.type !== undefined) made.type = node.type;
  return made;
}

/** Keeps the position and the comments of subjects that stay. Comments above a removed subject stay, too. */
function keepSubjects(document: Document, list: YAMLSeq, subjects: readonly SubjectDocument[]): void {
  const missing = new Map(subjects.map((entry) => [subjectKey(entry), entry]));
  const joined = (...comments: (string | null | undefined)[]): string | null =>
    comments.filter((text) => text !== undefined && text !== null && text !== '').join('\n') || null;
  const kept: Node[] = [];
  let above: string | null = null;
  for (const item of list.items) {
    if (!isNode(item)) continue;
    const [entry] = readSubjects([item.toJS(document)]);
    above = joined(above, item.commentBefore);
    if (entry === undefined || !missing.delete(subjectKey(entry))) continue;
    item.commentBefore = above;
    above = null;
    kept.push(item);
  }
  const [first, ...more] = [...missing.values()].map((entry) => document.createNode(subjectForm(entry)));
  if (first === undefined) list.comment = joined(above, list.comment);
  else first.commentBefore = above;
  list.items = [...kept, ...(first === undefined ? [] : [first, ...more])];
}
