/** Policies as files that people write, review and keep in git: one policy a file. Pure. */
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
import { TARGET_NAME } from '../targets/target.ts';
import type { Effect, PolicyResourceType } from './document.ts';
import { POLICY_LIMITS, policyMembers, type SubjectDocument, subjectKey, subjectValues } from './schema.ts';

/** What a file says. `target` is a name: ids differ from one database to the next. */
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

/** For a terminal, as compilers write it. */
export function describePolicyFileError({ file, line, column, message }: PolicyFileError): string {
  return `${file}:${line}:${column}: ${message}`;
}

/** Plain data: it is sent from thread to thread. */
export interface ParsedPolicyFile {
  readonly file: string;
  readonly policy: PolicyFile;
  /** Where each key stands, or what it is missing from. */
  readonly places: Readonly<Record<keyof PolicyFile, Pick<PolicyFileError, 'line' | 'column'>>>;
}

/** A refusal for a reason that the file alone does not show. */
export const errorAt = ({ file, places }: ParsedPolicyFile, key: keyof PolicyFile, message: string): PolicyFileError => ({
  ...{ file, line: places[key].line, column: places[key].column },
  message: `${key} ${message}`,
});

export type PolicyFileResult = ParsedPolicyFile | { readonly errors: readonly PolicyFileError[] };

interface Written extends Omit<PolicyFile, 'description' | 'target' | 'resource_pattern' | 'enabled' | 'subjects'> {
  description?: string | null;
  target?: string | null;
  resource_pattern?: string | null;
  enabled?: boolean;
  subjects: ('everyone' | { role: string } | { group: string } | { user: string })[];
}

const MAX_FILE_LENGTH = 65_536;
/** Beyond, the library recurses until the stack is full, and then V8 may end the process: it has no stack left to compile a regex. */
const MAX_FLOW_DEPTH = 32;
/** Indentation takes characters, and bounds what lines nest one in the other; but one line alone can nest at two characters a level. */
const MAX_BLOCKS_A_LINE = 4;
/** One mistake in the syntax makes others that say nothing. */
const MAX_SYNTAX_ERRORS = 5;

const subjectForms = 'must be `everyone`, or one of `role: <name>`, `group: <name>` and `user: <id>`';
const subject = Joi.alternatives().conditional(Joi.object().unknown(), {
  // biome-ignore lint/suspicious/noThenProperty: joi's word for it
  then: Joi.object(subjectValues).length(1).messages({ 'object.length': subjectForms, 'object.unknown': subjectForms }),
  otherwise: Joi.valid('everyone').messages({ 'any.only': subjectForms }),
});

const schema = Joi.object<Written>({
  ...policyMembers,
  target: Joi.string().pattern(TARGET_NAME).allow(null).messages({ 'string.pattern.base': 'must be the name of a target' }),
  subjects: Joi.array().items(subject).max(POLICY_LIMITS.subjects).required(),
})
  .required()
  .messages({
    'object.base': 'must be a policy: name, resource_type, effect, priority, subjects',
    'object.unknown': 'is not a key of a policy',
  });

/**
 * Strict: YAML 1.2, one document, no duplicate or unknown keys, no anchors, aliases or tags, so that a reader sees all
 * there is. A refusal lists every mistake with its place.
 */
export function parsePolicyFile(text: string, file: string): PolicyFileResult {
  const read = readStrictYaml(text, file, schema, 'one policy a file');
  if ('errors' in read) return read;
  const policy = policyOf(read.value);
  const places = Object.keys(policy).map((key) => {
    const { line, column } = read.errorAt([key], '');
    return [key, { line, column }];
  });
  return { file, policy, places: Object.fromEntries(places) as ParsedPolicyFile['places'] };
}

export interface StrictYaml<T> {
  readonly value: T;
  /** A refusal at the place of what is at this path, or of what is missing there. */
  readonly errorAt: (path: readonly (string | number)[], message: string) => PolicyFileError;
}

/** As `parsePolicyFile` reads, of another schema. */
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

  if (text.length > MAX_FILE_LENGTH) return { errors: [at(0, `the file is longer than ${MAX_FILE_LENGTH} characters`)] };
  const deep = tooDeep(text);
  if (deep !== null) return { errors: [at(deep, 'what is nested so deeply is not used here')] };
  const documents = parseAllDocuments(text, { lineCounter: lines, prettyErrors: false, stringKeys: true });
  const [document, second] = documents;
  if (!document || !('contents' in document)) return { errors: [at(0, 'the file is empty')] };
  if (second) return { errors: [at(second.range[0], `${one}: a second document begins here`)] };
  const broken = [...document.errors, ...document.warnings];
  if (broken.length > 0) return { errors: broken.slice(0, MAX_SYNTAX_ERRORS).map(({ pos, message }) => at(pos[0], message)) };
  if (document.directives.yaml.explicit) return { errors: [at(0, 'directives are not used here')] };
  const hidden = anchorsAndTags(document);
  if (hidden.length > 0) return { errors: hidden.map((offset) => at(offset, 'anchors, aliases and tags are not used here')) };
  const unseen = unseenKeys(document);
  if (unseen.length > 0) return { errors: unseen.map((offset) => at(offset, '__proto__ is not a key here')) };

  const { value, error } = form.validate(document.toJS(), { abortEarly: false, convert: false });
  if (error) {
    const errors = error.details.map(({ path, message }) => {
      const label = path.length === 0 ? '' : `${path.join('.')} `;
      return at(placeOf(document, path), label + message.replace(/^"[^"]*" /, ''));
    });
    return { errors: errors.sort((a, b) => a.line - b.line || a.column - b.column) };
  }
  return { value, errorAt: (path, message) => at(placeOf(document, path), message) };
}

/** Where the value at `path` begins; for one that is missing, where the nearest value around it begins. An unknown key is its own place. */
function placeOf(document: Document.Parsed, path: readonly (string | number)[]): number {
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

/** Where nesting begins that is not to be parsed; null: nowhere. */
function tooDeep(text: string): number | null {
  let offset = 0;
  let flow = 0;
  let blocks = 0;
  for (const lexeme of new Lexer().lex(text)) {
    const type = CST.tokenType(lexeme);
    if (type === 'flow-seq-start' || type === 'flow-map-start') flow++;
    else if (type === 'flow-seq-end' || type === 'flow-map-end') flow--;
    else if (type === 'flow-error-end') flow = 0;
    else if (type === 'newline') blocks = 0;
    else if (type === 'seq-item-ind' || type === 'explicit-key-ind') blocks += flow > 0 ? 0 : 1;
    if (flow > MAX_FLOW_DEPTH || blocks > MAX_BLOCKS_A_LINE) return offset;
    // The others stand for what is between lexemes.
    if (type !== 'doc-mode' && type !== 'flow-error-end' && type !== 'scalar') offset += lexeme.length;
  }
  return null;
}

function anchorsAndTags(document: Document.Parsed): number[] {
  const found: number[] = [];
  visit(document, {
    Node: (_key, node) => {
      const anchored = isAlias(node) || ('anchor' in node && node.anchor !== undefined);
      // Only what was written with a tag has one.
      if (anchored || node.tag !== undefined) found.push(node.range?.[0] ?? 0);
    },
  });
  return found;
}

/** Joi passes over keys of this name. */
function unseenKeys(document: Document.Parsed): number[] {
  const found: number[] = [];
  visit(document, {
    Pair: (_key, { key }) => {
      if (isScalar(key) && key.value === '__proto__') found.push(key.range?.[0] ?? 0);
    },
  });
  return found;
}

function readSubjects(written: Written['subjects']): SubjectDocument[] {
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

const LAYOUT = { lineWidth: 110, singleQuote: true } as const;

const subjectForm = ({ subject_type, subject_value }: SubjectDocument): unknown =>
  subject_type === 'everyone' ? 'everyone' : { [subject_type]: subject_value };

/** Every key in reading order. */
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
 * The canonical file: keys in reading order, what is at its default left out. `parsePolicyFile` reads it back unchanged.
 * `previous` is the text of the file as somebody left it, which `parsePolicyFile` accepts: where it says the same already it
 * stays as it is, else their comments and their order of keys and subjects stay.
 */
export function formatPolicyFile(policy: PolicyFile, previous: string | null = null): string {
  if (previous !== null) {
    if (says(previous, policy)) return previous;
    const rewritten = rewrite(previous, policy);
    if (says(rewritten, policy)) return rewritten;
  }
  const written = Object.entries(canonicalValues(policy)).filter(([key, value]) => !isDefault(key, value));
  return new Document(Object.fromEntries(written), { aliasDuplicateObjects: false }).toString(LAYOUT);
}

const says = (text: string, policy: PolicyFile): boolean => {
  const parsed = parsePolicyFile(text, '');
  return 'policy' in parsed && changedKeys(parsed.policy, policy).length === 0;
};

/** The keys that differ in meaning, in reading order; the order of subjects means nothing. */
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
  return document.toString(LAYOUT);
}

const isCommented = ({ key, value }: Pair<Node, Node>): boolean =>
  [key, value].some((node) => isNode(node) && Boolean(node.comment || node.commentBefore));

/** The very node where it has this value; else one that looks like it. */
function replaced(document: Document, node: Node | null, value: unknown): Node {
  if (isScalar(node) && node.value === value) return node;
  const made = document.createNode(value) as Node;
  if (node === null) return made;
  made.comment = node.comment ?? null;
  made.commentBefore = node.commentBefore ?? null;
  if (isScalar(node) && isScalar(made) && typeof value === 'string' && node.type !== undefined) made.type = node.type;
  return made;
}

/** Those that stay keep their place and their comments; what stands above one that goes stays. */
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
