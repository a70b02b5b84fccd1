/** Edits of targets and their credentials. Each edit is one administrative change. */
import type { Administer, Authority, Caller } from '../auth/caller.ts';
import { operates } from '../auth/rights.ts';
import type { Vault } from '../auth/vault.ts';
import { AppError, invalidRequest } from '../base/errors.ts';
import { etagOf, requireMatch } from '../base/etag.ts';
import type { AddressRule } from '../base/network/network-address.ts';
import { readOnlyErrors } from '../base/validate.ts';
import type { Change } from '../db/changes.ts';
import type { Transaction } from '../db/database.ts';
import { connectionStore } from './connection-store.ts';
import { accountsEnd, endAtTarget, hasOwnAccounts } from './connections.ts';
import {
  type CredentialInput,
  type CredentialSubject,
  checkValue,
  fitsTransport,
  isRedirectingVariable,
} from './credential-document.ts';
import { type CredentialJson, credentialJson, hasMoved, sealCredential } from './credentials.ts';
import { changedDocument, type TargetDocument, type TargetUpdate, targetJson } from './document.ts';
import type { Target } from './target.ts';
import { type CredentialRow, type TargetStore, targetStore } from './target-store.ts';

export interface TargetEditParts {
  readonly administer: Administer;
  readonly vault: Vault;
  /** Paths of executables that stdio targets may run, compared byte for byte. */
  readonly allowedCommands: readonly string[];
  /** Names the addresses to which the gateway does not connect. */
  readonly addresses: AddressRule;
  /** Whether a policy names the target. */
  readonly isNamed: (trx: Transaction, targetId: string) => Promise<boolean>;
  /** Returns a UUIDv7, so that ids are in order of creation. */
  readonly newId: () => string;
  readonly now: () => number;
}

/**
 * One error for three cases: the target does not exist, the caller may not use it, or it accepts no such key from users (law 10).
 */
export const nothingToSupply = (): AppError =>
  new AppError('not_found', 'No target that you may use accepts a credential with this name from users.');

export const noTarget = (): AppError => new AppError('not_found', 'No target has this id.');

export const targetEtag = (target: Target): string => etagOf(targetJson(target));

/**
 * `ifMatch` is the header of the request. All functions throw AppError `invalid_request`, `not_found`, `precondition_failed`,
 * `target_name_taken`, `target_in_use`, and the errors of `Administer`. An update without a difference records no change.
 */
export type TargetEdits = ReturnType<typeof createTargetEdits>;

export function createTargetEdits(parts: TargetEditParts) {
  const { administer, vault, newId, now } = parts;

  const requireTarget = async (store: TargetStore, id: string): Promise<Target> => {
    const target = await store.find(id);
    if (!target) throw noTarget();
    return target;
  };
  const requireFreeName = async (store: TargetStore, name: string): Promise<void> => {
    if (await store.findByName(name)) throw new AppError('target_name_taken', `A different target already has the name ${name}.`);
  };
  const requireAllowed = (command: string): void => {
    if (parts.allowedCommands.includes(command)) return;
    const message = 'is not an executable that STDIO_ALLOWED names: ask an operator of the gateway to add it';
    throw invalidRequest([{ path: 'command', message }]);
  };
  const requireReachable = (url: string): void => {
    const message = parts.addresses(new URL(url).hostname);
    if (message !== null) throw invalidRequest([{ path: 'url', message }]);
  };

  const put = async (
    store: TargetStore,
    target: Target,
    given: Omit<Parameters<typeof sealCredential>[2], 'created_at' | 'updated_at'>,
  ) => {
    const { subject, credential } = given;
    const before = (await store.credentialsOf(target.id, subject)).find((row) => row.key_name === credential.name) ?? null;
    const time = now();
    const row = sealCredential(vault, target, { ...given, created_at: before?.created_at ?? time, updated_at: time });
    // A variable that an administrator sets belongs to the environment, to which the other credentials are bound.
    if (given.supplied_by === 'administrator' && redirects(row)) await store.disableCredentials(target.id);
    await store.putCredential(row);
    const after = credentialJson(vault, target, row);
    const change = credentialChange('set', target.id, before && credentialJson(vault, target, before), after);
    return { result: { credential: after, created: before === null }, changes: [change] };
  };
  const remove = async (store: TargetStore, target: Target, rows: readonly CredentialRow[]) => {
    for (const row of rows) await store.deleteCredential(row);
    if (rows.some((row) => row.supplied_by === 'administrator' && redirects(row))) await store.disableCredentials(target.id);
    const changes = rows.map((row) => credentialChange('delete', target.id, credentialJson(vault, target, row), null));
    return { result: null, changes };
  };
  /** Returns the key that the target lists, and the credential that is stored for the caller. */
  const findOwn = async (store: TargetStore, { principal }: Caller, targetId: string, name: string) => {
    const target = await store.find(targetId);
    const key = target?.enabled ? target.user_credentials.find((listed) => listed.name === name) : undefined;
    if (!target || !key) throw nothingToSupply();
    const subject: CredentialSubject = { subject_type: 'user', subject_value: principal.sub };
    const row = (await store.credentialsOf(targetId, subject)).find((one) => one.key_name === name) ?? null;
    // If users could replace or delete it, they would act with rights that the administrator did not choose for them.
    if (row?.supplied_by === 'administrator') {
      throw new AppError('forbidden', 'An administrator has set this credential for you.');
    }
    return { target, key, subject, row };
  };
  /** Runs an edit as one administrative change, and returns its result. */
  const edit = async <T>(
    caller: Caller,
    right: Parameters<Administer>[1],
    work: (store: TargetStore, trx: Transaction, authority: Authority) => Promise<{ result: T; changes: readonly Change[] }>,
  ): Promise<T> => (await administer(caller, right, (trx, authority) => work(targetStore(trx), trx, authority))).result;

  return {
    create: (caller: Caller, document: TargetDocument): Promise<Target> =>
      edit(caller, 'admin', async (store) => {
        if (document.transport === 'stdio') requireAllowed(document.command);
        else requireReachable(document.url);
        await requireFreeName(store, document.name);
        const time = now();
        const target: Target = { ...document, id: newId(), created_at: time, updated_at: time };
        await store.insert(target);
        return { result: target, changes: [changeOf('create', null, target)] };
      }),

    update: (caller: Caller, id: string, update: TargetUpdate, ifMatch: string | undefined): Promise<Target> =>
      edit(caller, ['targets:operate'], async (store, trx, { held }) => {
        if (!operates(held, id)) throw noTarget();
        const before = await requireTarget(store, id);
        requireMatch(ifMatch, targetEtag(before));
        const after = updated(before, update, now());
        if (!held.admin) refuseMore(before, after);
        if (after === before) return { result: before, changes: [] };
        if (after.name !== before.name) await requireFreeName(store, after.name);
        if (after.transport === 'stdio' && !(before.transport === 'stdio' && before.command === after.command)) {
          requireAllowed(after.command);
        }
        if (after.transport !== 'stdio' && !(before.transport !== 'stdio' && before.url === after.url)) {
          requireReachable(after.url);
        }
        if (hasMoved(before, after)) await store.disableCredentials(id);
        const ended = accountsEnd(before, after) ? await endAtTarget(connectionStore(trx), id, now()) : [];
        await store.update(after);
        return { result: after, changes: [changeOf('update', before, after), ...ended] };
      }),

    delete: (caller: Caller, id: string, ifMatch: string | undefined): Promise<null> =>
      edit(caller, 'admin', async (store, trx) => {
        const before = await requireTarget(store, id);
        requireMatch(ifMatch, targetEtag(before));
        if (await parts.isNamed(trx, id)) {
          throw new AppError('target_in_use', 'Policies or invariants name this target: change or delete them first.');
        }
        const ended = await endAtTarget(connectionStore(trx), id, now());
        await connectionStore(trx).deleteClients(id);
        await store.delete(id);
        return { result: null, changes: [changeOf('delete', before, null), ...ended] };
      }),

    /** Records that the caller tries the target, before the gateway starts its process or sends a credential to it. */
    recordCheck: (caller: Caller, id: string): Promise<Target> =>
      edit(caller, 'admin', async (store) => {
        const target = await requireTarget(store, id);
        return { result: target, changes: [{ action: 'target.check', object_id: id, before: null, after: null }] };
      }),

    /** `created` is false if the new value replaced an existing one. */
    setCredential: (caller: Caller, targetId: string, subject: CredentialSubject, credential: CredentialInput) =>
      edit(caller, 'admin', async (store) => {
        const target = await requireTarget(store, targetId);
        if (hasOwnAccounts(target)) {
          const message = 'is not possible for this target: users call it with their own accounts there (own_accounts)';
          throw invalidRequest([{ path: 'type', message }]);
        }
        if (!fitsTransport(target.transport, credential.type)) {
          const wanted = target.transport === 'stdio' ? 'env' : 'bearer or header';
          throw invalidRequest([{ path: 'type', message: `must be ${wanted} for the transport ${target.transport}` }]);
        }
        return put(store, target, { subject, credential, supplied_by: 'administrator' });
      }),

    /** Deletes the credential with this name; null: all credentials of the subject. */
    deleteCredentials: (caller: Caller, targetId: string, subject: CredentialSubject, name: string | null): Promise<null> =>
      edit(caller, 'admin', async (store) => {
        const target = await requireTarget(store, targetId);
        const rows = (await store.credentialsOf(targetId, subject)).filter((row) => name === null || row.key_name === name);
        if (rows.length === 0) throw new AppError('not_found', 'The target has no such credential.');
        return remove(store, target, rows);
      }),

    /** Sets the caller's own value for a key that users may supply. Throws `forbidden` if an administrator has set one for them. */
    setOwn: (caller: Caller, targetId: string, name: string, value: string) =>
      edit(caller, 'own', async (store) => {
        const { target, key, subject } = await findOwn(store, caller, targetId, name);
        checkValue(key, value);
        return put(store, target, { subject, credential: { ...key, value }, supplied_by: 'user' });
      }),

    deleteOwn: (caller: Caller, targetId: string, name: string): Promise<null> =>
      edit(caller, 'own', async (store) => {
        const { target, row } = await findOwn(store, caller, targetId, name);
        if (row === null) throw new AppError('not_found', 'You have not set this credential.');
        return remove(store, target, [row]);
      }),
  };
}

const redirects = ({ key_type, key_name }: CredentialRow): boolean => key_type === 'env' && isRedirectingVariable(key_name);

function changeOf(verb: string, before: Target | null, after: Target | null): Change {
  return {
    action: `target.${verb}`,
    object_id: (after ?? before)?.id ?? '',
    before: before && targetJson(before),
    after: after && targetJson(after),
  };
}

function credentialChange(verb: string, targetId: string, before: CredentialJson | null, after: CredentialJson | null): Change {
  return { action: `credential.${verb}`, object_id: targetId, before, after };
}

/** Throws AppError `forbidden` if an update changes more than `targets:operate` covers. */
function refuseMore(before: Target, after: Target): void {
  const [was, is] = [targetJson(before), targetJson(after)].map((shown): Record<string, unknown> => ({ ...shown }));
  const members = new Set([...Object.keys(was ?? {}), ...Object.keys(is ?? {})]);
  const more = [...members].filter(
    (name) => name !== 'enabled' && name !== 'updated_at' && JSON.stringify(was?.[name]) !== JSON.stringify(is?.[name]),
  );
  if (more.length === 0) return;
  throw new AppError(
    'forbidden',
    `The right \`targets:operate\` covers only the member \`enabled\`. Leave out ${more.map((name) => `\`${name}\``).join(', ')}, or ask an administrator.`,
  );
}

/** Returns `before` itself if nothing changes. Throws AppError `invalid_request` if a read-only member differs from its value. */
function updated(before: Target, update: TargetUpdate, time: number): Target {
  const shown = targetJson(before);
  const errors = readOnlyErrors(['id', 'created_at', 'updated_at'], update, shown);
  if (errors.length > 0) throw invalidRequest(errors);
  const { id, created_at } = before;
  const after: Target = { ...changedDocument(before, update), id, created_at, updated_at: before.updated_at };
  const same = JSON.stringify(targetJson(after)) === JSON.stringify(shown);
  return same ? before : { ...after, updated_at: time };
}
