/** How administrators turn SCIM on and off for a provider. */
import type { Administer, Caller } from '../auth/caller.ts';
import { AppError } from '../base/errors.ts';
import type { Change } from '../db/changes.ts';
import type { Connection, Transaction } from '../db/database.ts';
import { directoryStore } from '../providers/directory-store.ts';
import { providerStore } from '../providers/provider-store.ts';
import { hashOfToken, newScimToken } from './session.ts';

export interface ScimTokenParts {
  readonly administer: Administer;
  readonly publicUrl: string;
  readonly now: () => number;
}

export interface ScimStatus {
  /** What the directory needs as its base URL. */
  readonly base_url: string;
  /** null: there is no token, so SCIM is off. */
  readonly token_created_at: string | null;
  readonly users: number;
  readonly groups: number;
}

export type ScimTokens = ReturnType<typeof createScimTokens>;

export const baseUrl = (publicUrl: string, name: string): string => `${publicUrl}/scim/v2/${name}`;

const iso = (at: number): string => new Date(at).toISOString();

/** All functions throw AppError `not_found`, and those of `Administer`. */
export function createScimTokens({ administer, publicUrl, now }: ScimTokenParts) {
  const find = async (db: Connection, id: string) => {
    const provider = await providerStore(db).find(id);
    if (provider === null) throw new AppError('not_found', 'No provider has this id.');
    return provider;
  };
  const shown = (created_at: number | null) => (created_at === null ? null : { scim_token_created_at: iso(created_at) });
  const change = (id: string, verb: 'create' | 'revoke', before: number | null, after: number | null): Change => ({
    action: `provider.scim-token-${verb}`,
    object_id: id,
    before: shown(before),
    after: shown(after),
  });
  const createdAt = async (trx: Transaction, id: string): Promise<number | null> =>
    (await directoryStore(trx).token(id))?.created_at ?? null;

  return {
    async status(db: Connection, id: string): Promise<ScimStatus> {
      const { name } = await find(db, id);
      const store = directoryStore(db);
      const token = await store.token(id);
      return {
        base_url: baseUrl(publicUrl, name),
        token_created_at: token === null ? null : iso(token.created_at),
        users: await store.users.count(id, null),
        groups: await store.groups.count(id, null),
      };
    },

    /** Returns a new token, which replaces the one before. It cannot be shown again. */
    async create(caller: Caller, id: string): Promise<{ token: string; created_at: string; base_url: string }> {
      const token = newScimToken();
      const { result } = await administer(caller, 'admin', async (trx) => {
        const { name } = await find(trx, id);
        const before = await createdAt(trx, id);
        const created_at = now();
        await directoryStore(trx).setToken({ provider_id: id, hash: hashOfToken(token), created_at });
        return { result: { name, created_at }, changes: [change(id, 'create', before, created_at)] };
      });
      return { token, created_at: iso(result.created_at), base_url: baseUrl(publicUrl, result.name) };
    },

    /** Users and groups stay as the directory sent them last. */
    async revoke(caller: Caller, id: string): Promise<void> {
      await administer(caller, 'admin', async (trx) => {
        await find(trx, id);
        const before = await createdAt(trx, id);
        if (before === null) return { result: null, changes: [] };
        await directoryStore(trx).deleteToken(id);
        return { result: null, changes: [change(id, 'revoke', before, null)] };
      });
    },
  };
}
