/**
 * The stored credentials for targets. The encryption binds a value to the subject and the key of its row, and includes the
 * destination. So an attacker who edits a row cannot send a secret to a different server, in a different header or variable,
 * or for a different principal.
 */
import { createHash, randomBytes } from 'node:crypto';
import type { Vault } from '../auth/vault.ts';
import type { Connection } from '../db/database.ts';
import { accessor, type HeldCredential } from './access.ts';
import { connectionStore, type LiveConnection } from './connection-store.ts';
import { accountAccessor, hasOwnAccounts } from './connections.ts';
import { type CredentialInput, type CredentialSubject, fitsTransport, isSteeringVariable } from './credential-document.ts';
import type { CredentialKey, RoutedTarget, Target } from './target.ts';
import { type CredentialRow, type TargetStore, targetStore } from './target-store.ts';

const sha256 = (value: unknown): string => createHash('sha256').update(JSON.stringify(value)).digest('hex');

/**
 * Returns a hash of the destination of a credential. It covers the whole URL, because several owners may share a host. It
 * covers the whole environment of a process, because any variable may name the host to which the process connects.
 */
function originOf(target: Target): string {
  if (target.transport !== 'stdio') return `bound:${sha256([target.transport, new URL(target.url).href])}`;
  const { transport, command, args, cwd, env } = target;
  return `bound:${sha256([transport, command, args, cwd, Object.entries(env).sort()])}`;
}

/** Returns the destination in the format from before migration 0011. */
function formerOriginOf(target: Target): string {
  if (target.transport !== 'stdio') return new URL(target.url).origin;
  const { command, args, cwd, env } = target;
  const steering = Object.entries(env).filter(([name]) => isSteeringVariable(name));
  return `stdio:${sha256([command, args, cwd, steering.sort()])}`;
}

/** Whether the destination has changed, so that existing credentials must not be sent to it. */
export const hasMoved = (before: Target, after: Target): boolean => originOf(before) !== originOf(after);

const identityOf = (row: Omit<CredentialRow, 'sealed'>): string =>
  JSON.stringify(['credential', row.target_id, row.subject_type, row.subject_value, row.key_type, row.key_name, row.supplied_by]);

export interface Setting {
  readonly subject: CredentialSubject;
  readonly credential: CredentialInput;
  readonly supplied_by: CredentialRow['supplied_by'];
  readonly created_at: number;
  readonly updated_at: number;
}

export function sealCredential(vault: Vault, target: Target, setting: Setting): CredentialRow {
  const { subject, credential, supplied_by, created_at, updated_at } = setting;
  const row = {
    target_id: target.id,
    subject_type: subject.subject_type,
    subject_value: subject.subject_value,
    key_type: credential.type,
    key_name: credential.name,
    origin: originOf(target),
    version: newVersion(),
    supplied_by,
    created_at,
    updated_at,
  };
  return { ...row, sealed: sealSecret(vault, row, { origin: row.origin, value: credential.value }) };
}

const sealSecret = (
  vault: Vault,
  row: Omit<CredentialRow, 'sealed'>,
  secret: { readonly origin: string; readonly value: string },
): string => vault.seal(identityOf(row), Buffer.from(JSON.stringify(secret)));

const newVersion = (): string => randomBytes(16).toString('base64url');

/**
 * Returns the value; null: it was set for a different destination or kind of transport, or sealed under an unknown key, or
 * altered.
 */
export function openCredential(vault: Vault, target: Target, row: CredentialRow): string | null {
  const origin = originOf(target);
  if (row.origin !== origin || row.target_id !== target.id || !fitsTransport(target.transport, row.key_type)) return null;
  try {
    const sealed = JSON.parse(vault.open(identityOf(row), row.sealed).toString()) as Record<string, unknown>;
    const { value } = sealed;
    return sealed['origin'] === origin && typeof value === 'string' ? value : null;
  } catch {
    return null;
  }
}

const isListed = (target: Target, { type, name }: CredentialKey): boolean =>
  target.user_credentials.some((key) => key.type === type && key.name === name);

/** Whether the target may use the credential. One that a user supplied needs a target that still accepts it from users. */
const counts = (target: Target, row: CredentialRow): boolean =>
  row.supplied_by === 'administrator' || isListed(target, { type: row.key_type, name: row.key_name });

export type CredentialJson = ReturnType<typeof credentialJson>;

/** Returns everything of a credential except its value. */
export function credentialJson(vault: Vault, target: Target, row: CredentialRow) {
  return {
    subject_type: row.subject_type,
    subject_value: row.subject_type === 'default' ? null : row.subject_value,
    type: row.key_type,
    name: row.key_name,
    usable: counts(target, row) && openCredential(vault, target, row) !== null,
    supplied_by: row.supplied_by,
    created_at: new Date(row.created_at).toISOString(),
    updated_at: new Date(row.updated_at).toISOString(),
  };
}

/** Returns enabled targets by name, with their credentials and connections: those in `ids`, or all. `db` must be a snapshot. */
export async function routedTargets(
  db: Connection,
  vault: Vault,
  ids: readonly string[] | null,
): Promise<Map<string, RoutedTarget>> {
  const store = targetStore(db);
  const rows = new Map<string, CredentialRow[]>();
  for (const row of await store.credentials(ids)) {
    const those = rows.get(row.target_id);
    if (those) those.push(row);
    else rows.set(row.target_id, [row]);
  }
  const targets = await store.enabled(ids);
  const own = targets.filter(hasOwnAccounts).map(({ id }) => id);
  const connections = new Map<string, LiveConnection[]>(own.map((id) => [id, []]));
  for (const row of own.length === 0 ? [] : await connectionStore(db).live(own)) connections.get(row.target_id)?.push(row);
  return new Map(
    targets.map((target) => [
      target.name,
      routedTarget(vault, target, rows.get(target.id) ?? [], connections.get(target.id) ?? []),
    ]),
  );
}

function routedTarget(
  vault: Vault,
  target: Target,
  rows: readonly CredentialRow[],
  connections: readonly LiveConnection[],
): RoutedTarget {
  if (hasOwnAccounts(target)) return { ...target, accessOf: accountAccessor(target, connections) };
  const held = rows.filter((row) => counts(target, row)).map((row) => heldCredential(vault, target, row));
  return { ...target, accessOf: accessor(target, held) };
}

function heldCredential(vault: Vault, target: Target, row: CredentialRow): HeldCredential {
  let opened: string | null | undefined;
  return {
    subject_type: row.subject_type,
    subject_value: row.subject_value,
    type: row.key_type,
    name: row.key_name,
    supplied_by: row.supplied_by,
    version: row.version,
    open: () => {
      if (opened === undefined) opened = openCredential(vault, target, row);
      return opened;
    },
  };
}

/**
 * Re-encrypts credentials that are sealed under a previous master key, and converts those of schema version 1. Runs under the
 * migration lock, while other replicas may set credentials. A credential that cannot be opened stays as it is and is unusable.
 */
export async function resealCredentials(db: Connection, vault: Vault): Promise<void> {
  const store = targetStore(db);
  for (const row of await store.credentials(null)) {
    const read = row.version === '' ? fromVersion1(vault, row) : row;
    const after = read?.origin.startsWith(REBIND) ? await rebound(store, vault, read) : resealed(vault, read ?? row);
    if (after !== null || read !== row) await store.replaceSealed(row, after ?? read ?? row);
  }
}

/** Migration 0011 marks the origin of a credential with this prefix if it is still bound to the former format. */
const REBIND = 'rebind:';

/** Binds a credential to the current destination of its target if it was usable there; null: it cannot be opened. */
async function rebound(store: TargetStore, vault: Vault, row: CredentialRow): Promise<CredentialRow | null> {
  const target = await store.find(row.target_id);
  const former = row.origin.slice(REBIND.length);
  if (target === null || former !== formerOriginOf(target) || !fitsTransport(target.transport, row.key_type)) {
    return { ...row, origin: '' };
  }
  try {
    const { origin, value } = JSON.parse(vault.open(identityOf(row), row.sealed).toString()) as Record<string, unknown>;
    if (origin !== former || typeof value !== 'string') return { ...row, origin: '' };
    const bound = originOf(target);
    return { ...row, origin: bound, sealed: sealSecret(vault, row, { origin: bound, value }) };
  } catch {
    return null;
  }
}

function resealed(vault: Vault, row: CredentialRow): CredentialRow | null {
  try {
    const sealed = vault.reseal(identityOf(row), row.sealed);
    return sealed === null ? null : { ...row, sealed };
  } catch {
    return null;
  }
}

/** Converts a row of version 1. There the value was the whole header line, and the identity had neither key nor supplier. */
function fromVersion1(vault: Vault, row: CredentialRow): CredentialRow | null {
  try {
    const identity = `credential:${row.target_id}:${row.subject_type}:${row.subject_value}`;
    const { origin, header, value } = JSON.parse(vault.open(identity, row.sealed).toString()) as Record<string, unknown>;
    const bearer = row.key_type === 'bearer';
    if (typeof origin !== 'string' || typeof value !== 'string') return null;
    if (header !== (bearer ? 'Authorization' : row.key_name) || (bearer && !value.startsWith('Bearer '))) return null;
    const secret = { origin, value: bearer ? value.slice('Bearer '.length) : value };
    return { ...row, version: newVersion(), sealed: sealSecret(vault, row, secret) };
  } catch {
    return null;
  }
}
