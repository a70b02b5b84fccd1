/** Changes to targets and their credentials, each one administrative change. */
import type { Administer, Caller } from '../auth/administer.ts';
import type { Vault } from '../auth/vault.ts';
import type { Change } from '../db/changes.ts';
import type { Transaction } from '../db/database.ts';
import { AppError, invalidRequest } from '../errors.ts';
import { etagOf, requireMatch } from '../http/etag.ts';
import { readOnlyErrors } from '../http/validate.ts';
import { type CredentialJson, credentialJson, sealCredential } from './credentials.ts';
import { originOf, type TargetDocument, type TargetUpdate, targetJson } from './document.ts';
import { DEFAULT_CREDENTIAL, type TargetStore, targetStore } from './store.ts';
import type { Target, UpstreamCredential } from './target.ts';

export interface TargetEditParts {
  readonly administer: Administer;
  readonly vault: Vault;
  /** Whether a policy names the target. */
  readonly isNamed: (trx: Transaction, targetId: string) => Promise<boolean>;
  /** UUIDv7: ids are in order of creation. */
  readonly newId: () => string;
  readonly now: () => number;
}

/**
 * `ifMatch` is the header of the request. All throw AppError: `invalid_request`, `not_found`, `precondition_failed`,
 * `target_name_taken`, `target_in_use`, and what `Administer` throws. What changes nothing is no change.
 */
export interface TargetEdits {
  create(caller: Caller, document: TargetDocument): Promise<Target>;
  update(caller: Caller, id: string, update: TargetUpdate, ifMatch: string | undefined): Promise<Target>;
  delete(caller: Caller, id: string, ifMatch: string | undefined): Promise<void>;
  /** `created`: there was none before. */
  setCredential(
    caller: Caller,
    targetId: string,
    credential: UpstreamCredential,
  ): Promise<{ credential: CredentialJson; created: boolean }>;
  deleteCredential(caller: Caller, targetId: string): Promise<void>;
}

export const targetEtag = (target: Target): string => etagOf(targetJson(target));

export function createTargetEdits(parts: TargetEditParts): TargetEdits {
  const { administer, vault, newId, now } = parts;

  const requireTarget = async (store: TargetStore, id: string): Promise<Target> => {
    const target = await store.find(id);
    if (!target) throw new AppError('not_found', 'No target has this id.');
    return target;
  };
  const requireFreeName = async (store: TargetStore, name: string): Promise<void> => {
    if (await store.findByName(name)) throw new AppError('target_name_taken', `Another target is named ${name}.`);
  };

  return {
    async create(caller, document) {
      const { result } = await administer(caller, 'admin', async (trx) => {
        const store = targetStore(trx);
        await requireFreeName(store, document.name);
        const time = now();
        const target: Target = { ...document, id: newId(), created_at: time, updated_at: time };
        await store.insert(target);
        return { result: target, changes: [changeOf('create', null, target)] };
      });
      return result;
    },

    async update(caller, id, update, ifMatch) {
      const { result } = await administer(caller, 'admin', async (trx) => {
        const store = targetStore(trx);
        const before = await requireTarget(store, id);
        requireMatch(ifMatch, targetEtag(before));
        const after = updated(before, update, now());
        if (after === before) return { result: before, changes: [] };
        if (after.name !== before.name) await requireFreeName(store, after.name);
        if (originOf(after.url) !== originOf(before.url)) await store.disableCredentials(id);
        await store.update(after);
        return { result: after, changes: [changeOf('update', before, after)] };
      });
      return result;
    },

    async delete(caller, id, ifMatch) {
      await administer(caller, 'admin', async (trx) => {
        const store = targetStore(trx);
        const before = await requireTarget(store, id);
        requireMatch(ifMatch, targetEtag(before));
        if (await parts.isNamed(trx, id)) {
          throw new AppError('target_in_use', 'Policies name this target: change or delete them first.');
        }
        await store.delete(id);
        return { result: null, changes: [changeOf('delete', before, null)] };
      });
    },

    async setCredential(caller, targetId, credential) {
      const { result } = await administer(caller, 'admin', async (trx) => {
        const store = targetStore(trx);
        const target = await requireTarget(store, targetId);
        const before = await store.findCredential(targetId, DEFAULT_CREDENTIAL);
        const time = now();
        const times = { created_at: before?.created_at ?? time, updated_at: time };
        const row = sealCredential(vault, target, DEFAULT_CREDENTIAL, credential, times);
        await store.putCredential(row);
        const after = credentialJson(vault, target, row);
        const change = credentialChange('set', targetId, before && credentialJson(vault, target, before), after);
        return { result: { credential: after, created: before === null }, changes: [change] };
      });
      return result;
    },

    async deleteCredential(caller, targetId) {
      await administer(caller, 'admin', async (trx) => {
        const store = targetStore(trx);
        const target = await requireTarget(store, targetId);
        const before = await store.findCredential(targetId, DEFAULT_CREDENTIAL);
        if (!before) throw new AppError('not_found', 'The target has no such credential.');
        await store.deleteCredential(targetId, DEFAULT_CREDENTIAL);
        return { result: null, changes: [credentialChange('delete', targetId, credentialJson(vault, target, before), null)] };
      });
    },
  };
}

function changeOf(verb: string, before: Target | null, after: Target | null): Change {
  return {
    action: `target.${verb}`,
    object_type: 'target',
    object_id: (after ?? before)?.id ?? '',
    before: before && targetJson(before),
    after: after && targetJson(after),
  };
}

function credentialChange(verb: string, targetId: string, before: CredentialJson | null, after: CredentialJson | null): Change {
  return { action: `credential.${verb}`, object_type: 'credential', object_id: targetId, before, after };
}

/** The very `before` if nothing changes. Throws AppError `invalid_request` where a read-only member is not as it was read. */
function updated(before: Target, update: TargetUpdate, time: number): Target {
  const shown = targetJson(before);
  const errors = readOnlyErrors(['id', 'created_at', 'updated_at'], update, shown);
  if (errors.length > 0) throw invalidRequest(errors);
  const { id: _, created_at: __, updated_at: ___, ...members } = update;
  const after: Target = { ...before, ...members };
  const same = JSON.stringify(targetJson(after)) === JSON.stringify(shown);
  return same ? before : { ...after, updated_at: time };
}
