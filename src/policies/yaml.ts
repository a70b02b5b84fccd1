/** Policies as files that people write, review and keep in git: one policy a file. Pure. */
import Joi from 'joi';
import { Document, isAlias, isMap, isNode, isScalar, isSeq, LineCounter, parseAllDocuments, visit } from 'yaml';
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

export type PolicyFileResult = { readonly policy: PolicyFile } | { readonly errors: readonly PolicyFileError[] };

interface Written extends Omit<PolicyFile, 'description' | 'target' | 'resource_pattern' | 'enabled' | 'subjects'> {
  description?: string | null;
  target?: string | null;
  resource_pattern?: string | null;
  enabled?: boolean;
  subjects: ('everyone' | { role: string } | { group: string } | { user: string })[];
}

const MAX_FILE_LENGTH = 65_536;
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
  const lines = new LineCounter();
  const at = (offset: number, message: string): PolicyFileError => {
    const { line, col } = lines.linePos(offset);
    return { file, line: Math.max(1, line), column: Math.max(1, col), message };
  };

  if (text.length > MAX_FILE_LENGTH) return { errors: [at(0, `the file is longer than ${MAX_FILE_LENGTH} characters`)] };
  const documents = parseAllDocuments(text, { lineCounter: lines, prettyErrors: false, stringKeys: true });
  const [document, second] = documents;
  if (!document || !('contents' in document)) return { errors: [at(0, 'the file is empty')] };
  if (second) return { errors: [at(second.range[0], 'one policy a file: a second document begins here')] };
  const broken = [...document.errors, ...document.warnings];
  if (broken.length > 0) return { errors: broken.slice(0, MAX_SYNTAX_ERRORS).map(({ pos, message }) => at(pos[0], message)) };
  if (document.directives.yaml.explicit) return { errors: [at(0, 'directives are not used here')] };
  const hidden = anchorsAndTags(document);
  if (hidden.length > 0) return { errors: hidden.map((offset) => at(offset, 'anchors, aliases and tags are not used here')) };

  const { value, error } = schema.validate(document.toJS(), { abortEarly: false, convert: false });
  if (error) {
    const errors = error.details.map(({ path, message }) => {
      const label = path.length === 0 ? '' : `${path.join('.')} `;
      return at(placeOf(document, path), label + message.replace(/^"[^"]*" /, ''));
    });
    return { errors: errors.sort((a, b) => a.line - b.line || a.column - b.column) };
  }
  return { policy: read(value) };
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

function read(written: Written): PolicyFile {
  const subjects = written.subjects.map((entry): SubjectDocument => {
    if (entry === 'everyone') return { subject_type: 'everyone', subject_value: null };
    if ('role' in entry) return { subject_type: 'role', subject_value: entry.role };
    if ('group' in entry) return { subject_type: 'group', subject_value: entry.group };
    return { subject_type: 'user', subject_value: entry.user };
  });
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

/** The canonical file: keys in reading order, what is at its default left out. `parsePolicyFile` reads it back unchanged. */
export function formatPolicyFile(policy: PolicyFile): string {
  const written = {
    name: policy.name,
    ...(policy.description === null ? {} : { description: policy.description }),
    ...(policy.target === null ? {} : { target: policy.target }),
    resource_type: policy.resource_type,
    ...(policy.resource_pattern === null ? {} : { resource_pattern: policy.resource_pattern }),
    effect: policy.effect,
    priority: policy.priority,
    ...(policy.enabled ? {} : { enabled: false }),
    subjects: policy.subjects.map(({ subject_type, subject_value }) =>
      subject_type === 'everyone' ? 'everyone' : { [subject_type]: subject_value },
    ),
  };
  return new Document(written, { aliasDuplicateObjects: false }).toString({ lineWidth: 110, singleQuote: true });
}
