/** Targets and their credentials. They are only written in administrative transactions, which run one at a time. */
import type { Connection } from '../db/database.ts';
import { ASKABLE } from '../mcp/protocol/capabilities.ts';
import { CREDENTIAL_TYPES, type CredentialSubject } from './credential-document.ts';
import { type CredentialKey, ISOLATIONS, type StdioTarget, type Target, TRANSPORTS } from './target.ts';

export interface CredentialRow extends CredentialSubject {
  readonly target_id: string;
  readonly key_type: CredentialKey['type'];
  readonly key_name: string;
  readonly sealed: string;
  /** A hash of the destination; empty after the target has moved. */
  readonly origin: string;
  /** Random. It changes whenever a value is set. */
  readonly version: string;
  readonly supplied_by: 'administrator' | 'user';
  readonly created_at: number;
  readonly updated_at: number;
}

export interface TargetStore {
  /** Returns targets in the order of their ids: at most `limit` (null: all), with ids after `after` (null: from the first). */
  page(limit: number | null, after: string | null): Promise<Target[]>;
  find(id: string): Promise<Target | null>;
  findByName(name: string): Promise<Target | null>;
  insert(target: Target): Promise<void>;
  update(target: Target): Promise<void>;
  /** Also deletes the target's credentials. */
  delete(id: string): Promise<void>;
  /** Returns the enabled targets with these ids; null: all. */
  enabled(ids: readonly string[] | null): Promise<Target[]>;
  /** Returns the credentials of these targets; null: of all. */
  credentials(targetIds: readonly string[] | null): Promise<CredentialRow[]>;
  /** Returns the credentials of one subject at one target. */
  credentialsOf(targetId: string, subject: CredentialSubject): Promise<CredentialRow[]>;
  /** Returns the credentials of one user at every target. */
  credentialsOfUser(userId: string): Promise<CredentialRow[]>;
  /** Inserts the credential, or replaces the existing one. */
  putCredential(row: CredentialRow): Promise<void>;
  /** Writes only if `sealed` and `origin` are still those of `before`. */
  replaceSealed(before: CredentialRow, after: Pick<CredentialRow, 'sealed' | 'version' | 'origin'>): Promise<void>;
  /** Disables them until they are set again, even if the target moves back. */
  disableCredentials(targetId: string): Promise<void>;
  deleteCredential(row: CredentialRow): Promise<void>;
}

interface Row {
  readonly id: string;
  readonly name: string;
  readonly description: string | null;
  readonly transport: Target['transport'];
  /** Empty for stdio. */
  readonly url: string;
  readonly enabled: number | boolean;
  /** JSON of command, args, cwd, env, isolation; null for all but stdio. */
  readonly stdio: string | null;
  /** JSON of denials, may_ask, extension_methods, user_credentials, capture_arguments, timeout_ms; null: the defaults. */
  readonly options: string | null;
  readonly created_at: number;
  readonly updated_at: number;
}

type Process = Pick<StdioTarget, 'command' | 'args' | 'cwd' | 'env' | 'isolation'>;
type Options = Pick<
  Target,
  'denials' | 'may_ask' | 'extension_methods' | 'user_credentials' | 'capture_arguments' | 'timeout_ms'
>;

/** The values for targets that were stored before these options existed. */
const LATER_OPTIONS: Pick<Options, 'capture_arguments' | 'timeout_ms'> = { capture_arguments: null, timeout_ms: null };
const DEFAULT_OPTIONS: Options = {
  denials: 'shown',
  may_ask: ASKABLE,
  extension_methods: [],
  user_credentials: [],
  ...LATER_OPTIONS,
};

const isText = (value: unknown): value is string => typeof value === 'string';
const areTexts = (value: unknown): value is readonly string[] => Array.isArray(value) && value.every(isText);
const oneOf = (values: readonly string[], value: unknown): boolean => isText(value) && values.includes(value);
const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);
const each = (value: unknown, fits: (item: Record<string, unknown>) => boolean): boolean =>
  Array.isArray(value) && value.every((item) => isRecord(item) && fits(item));

function isProcess(value: unknown): value is Process {
  if (!isRecord(value)) return false;
  const { command, args, cwd, env, isolation } = value;
  const environment = isRecord(env) && Object.values(env).every(isText);
  return isText(command) && areTexts(args) && (cwd === null || isText(cwd)) && environment && oneOf(ISOLATIONS, isolation);
}

function isOptions(value: unknown): value is Options {
  if (!isRecord(value)) return false;
  const { denials, may_ask, extension_methods, user_credentials, capture_arguments, timeout_ms } = value;
  return (
    oneOf(['shown', 'hidden'], denials) &&
    Array.isArray(may_ask) &&
    may_ask.every((item) => oneOf(ASKABLE, item)) &&
    each(extension_methods, (item) => areTexts([item['method'], item['resource_type'], item['param']])) &&
    each(user_credentials, (item) => oneOf(CREDENTIAL_TYPES, item['type']) && isText(item['name'])) &&
    (capture_arguments === null || (isRecord(capture_arguments) && areTexts(capture_arguments['mask']))) &&
    (timeout_ms === null || Number.isSafeInteger(timeout_ms))
  );
}

/**
 * Throws if the row is not one that `toRow` makes, because the gateway must not connect to a target that it does not understand.
 */
function toTarget(row: Row): Target {
  const { id, name, description, transport, url, created_at, updated_at } = row;
  const options: unknown = row.options === null ? DEFAULT_OPTIONS : { ...LATER_OPTIONS, ...JSON.parse(row.options) };
  if (!TRANSPORTS.includes(transport) || !isOptions(options)) throw new Error(`The row of target ${id} has an unknown format`);
  const { denials, may_ask, extension_methods, user_credentials, capture_arguments, timeout_ms } = options;
  const base = { id, name, description, enabled: Boolean(row.enabled), created_at, updated_at };
  const common = { ...base, denials, may_ask, extension_methods, user_credentials, capture_arguments, timeout_ms };
  if (transport !== 'stdio') return { ...common, transport, url };
  const process: unknown = JSON.parse(row.stdio ?? 'null');
  if (!isProcess(process)) throw new Error(`The row of target ${id} has an unknown format`);
  const { command, args, cwd, env, isolation } = process;
  return { ...common, transport, command, args, cwd, env, isolation };
}

function toRow(target: Target): Row {
  const { id, name, description, transport, enabled, created_at, updated_at } = target;
  const { denials, may_ask, extension_methods, user_credentials, capture_arguments, timeout_ms } = target;
  const options = JSON.stringify({ denials, may_ask, extension_methods, user_credentials, capture_arguments, timeout_ms });
  const base = { id, name, description, transport, enabled, options, created_at, updated_at };
  if (target.transport !== 'stdio') return { ...base, url: target.url, stdio: null };
  const { command, args, cwd, env, isolation } = target;
  return { ...base, url: '', stdio: JSON.stringify({ command, args, cwd, env, isolation }) };
}

export function targetStore(db: Connection): TargetStore {
  const ofSubject = (target_id: string, { subject_type, subject_value }: CredentialSubject) =>
    db<CredentialRow>('target_credentials').where({ target_id, subject_type, subject_value });
  const thatOne = (row: CredentialRow) => ofSubject(row.target_id, row).where('key_name', row.key_name);
  return {
    async page(limit, after) {
      const rows: Row[] = await db('targets')
        .modify((query) => {
          if (after !== null) query.where('id', '>', after);
          if (limit !== null) query.limit(limit);
        })
        .orderBy('id');
      return rows.map(toTarget);
    },
    async find(id) {
      const row = await db('targets').where({ id }).first<Row | undefined>();
      return row ? toTarget(row) : null;
    },
    async findByName(name) {
      const row = await db('targets').where({ name }).first<Row | undefined>();
      return row ? toTarget(row) : null;
    },
    async insert(target) {
      await db('targets').insert(toRow(target));
    },
    async update(target) {
      const { id, ...columns } = toRow(target);
      await db('targets').where({ id }).update(columns);
    },
    async delete(id) {
      await db('target_credentials').where('target_id', id).delete();
      await db('targets').where({ id }).delete();
    },
    async enabled(ids) {
      const rows: Row[] = await db('targets')
        .where('enabled', true)
        .modify((query) => {
          if (ids !== null) query.whereIn('id', ids);
        })
        .orderBy('id');
      return rows.map(toTarget);
    },

    async credentials(targetIds) {
      return db('target_credentials')
        .modify((query) => {
          if (targetIds !== null) query.whereIn('target_id', targetIds);
        })
        .orderBy(['target_id', 'subject_type', 'subject_value', 'key_name']);
    },
    async credentialsOf(targetId, subject) {
      return (await ofSubject(targetId, subject).orderBy('key_name')) as CredentialRow[];
    },
    async credentialsOfUser(userId) {
      return db('target_credentials').where({ subject_type: 'user', subject_value: userId });
    },
    async putCredential(row) {
      await thatOne(row).delete();
      await db('target_credentials').insert({ ...row });
    },
    async replaceSealed(before, { sealed, version, origin }) {
      await thatOne(before).where({ sealed: before.sealed, origin: before.origin }).update({ sealed, version, origin });
    },
    async disableCredentials(targetId) {
      await db('target_credentials').where('target_id', targetId).update({ origin: '' });
    },
    async deleteCredential(row) {
      await thatOne(row).delete();
    },
  };
}
