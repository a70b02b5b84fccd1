/** Edits of providers, and of the accounts that their users have. Each edit is one administrative change. */

import type { Administer, Caller } from '../auth/caller.ts';
import { endGrants, grantStore } from '../auth/grant-store.ts';
import type { Provider } from '../auth/provider.ts';
import { endApiTokensOf, endSignInsOf } from '../auth/sign-in/sign-ins.ts';
import type { Vault } from '../auth/vault.ts';
import { AppError, invalidRequest } from '../base/errors.ts';
import { etagOf, requireMatch } from '../base/etag.ts';
import type { AddressRule } from '../base/network/network-address.ts';
import { pause } from '../base/turns/slices.ts';
import type { Change } from '../db/changes.ts';
import type { Connection, Transaction } from '../db/database.ts';
import { userDocument } from '../users/document.ts';
import { type LocalSignIn, requireKept } from '../users/local-sign-in.ts';
import { ADMIN, isLocal, type User, userStore } from '../users/user-store.ts';
import { directoryStore } from './directory-store.ts';
import { type ProviderJson, providerJson, readProvider, readProviderUpdate } from './document.ts';
import { derive, exceedsLimit } from './facts.ts';
import { rederived } from './people.ts';
import { providerStore } from './provider-store.ts';

/** An identity at a provider. */
export interface Identity {
  readonly issuer: string;
  readonly subject: string;
}

export interface ProviderEditParts {
  readonly administer: Administer;
  readonly vault: Vault;
  readonly addresses: AddressRule;
  /** The issuer of this gateway. It cannot be registered as a provider. */
  readonly publicUrl: string;
  /** Whose local account cannot be linked. */
  readonly localSignIn: LocalSignIn;
  readonly newId: () => string;
  readonly now: () => number;
}

const USERS_AT_ONCE = 200;
const USERS_IN_STATEMENT = 40;

/** The row that the secret is bound to: a secret moved to a different provider does not open. */
const secretIdentity = ({ id, issuer }: Pick<Provider, 'id' | 'issuer'>): string => JSON.stringify(['provider', id, issuer]);

/** Returns the client secret; null: there is none, or it cannot be opened. */
export async function clientSecret(db: Connection, vault: Vault, provider: Provider): Promise<string | null> {
  const sealed = await providerStore(db).sealedSecret(provider.id);
  if (sealed === null) return null;
  try {
    return vault.open(secretIdentity(provider), sealed).toString();
  } catch {
    return null;
  }
}

/** Re-encrypts secrets that are sealed under a previous master key. Runs under the migration lock. */
export async function resealProviders(db: Connection, vault: Vault): Promise<void> {
  const store = providerStore(db);
  for (const provider of await store.list()) {
    const sealed = await store.sealedSecret(provider.id);
    if (sealed === null) continue;
    try {
      const resealed = vault.reseal(secretIdentity(provider), sealed);
      if (resealed !== null) await store.replaceSealedSecret(provider.id, sealed, resealed);
    } catch {
      // It stays as it is and is unusable, until an administrator sets it again.
    }
  }
}

export type Shown = { readonly provider: Provider; readonly secretSet: boolean };
export const shownJson = ({ provider, secretSet }: Shown): ProviderJson => providerJson(provider, secretSet);
export const providerEtag = (shown: Shown): string => etagOf(shownJson(shown));

export async function findShown(db: Connection, id: string): Promise<Shown> {
  const store = providerStore(db);
  const provider = await store.find(id);
  if (!provider) throw new AppError('not_found', 'No provider has this id.');
  return { provider, secretSet: (await store.sealedSecret(id)) !== null };
}

export type ProviderEdits = ReturnType<typeof createProviderEdits>;

/** All functions throw AppError `invalid_request`, `not_found`, `precondition_failed`, `provider_taken`, and those of `Administer`. */
export function createProviderEdits({ administer, vault, addresses, publicUrl, localSignIn, newId, now }: ProviderEditParts) {
  const requireIssuer = (issuer: string): void => {
    const own = issuer.replace(/\/$/, '') === publicUrl;
    const message = own ? 'is the issuer of this gateway itself' : addresses(new URL(issuer).hostname);
    if (message !== null) throw invalidRequest([{ path: 'issuer', message }]);
  };

  /**
   * Derives role and groups of every user of the provider again, and returns the changes. `isEnding`: also ends everything by which the users
   * are signed in, and refuses the tokens that they have. `known`: what still counts of a record; null if everything does.
   */
  const rederiveUsers = async (
    trx: Transaction,
    provider: Provider,
    isEnding: boolean,
    known: ((user: User) => User) | null = null,
  ): Promise<Change[]> => {
    const time = provider.updated_at;
    const endedAt = time + provider.clock_skew_seconds * 1_000;
    const users = userStore(trx);
    const changes: Change[] = [];
    for (let after: string | null = null; ; ) {
      const some: User[] = await users.lockOfIssuer(provider.issuer, USERS_AT_ONCE, after);
      const changed: User[] = [];
      for (const before of some) {
        await pause();
        const derived = rederived(provider, known?.(before) ?? (isEnding ? asDirectorySaid(before) : before));
        if (derived === before && !isEnding) continue;
        const valid_after = isEnding ? Math.max(derived.valid_after ?? 0, endedAt) : derived.valid_after;
        const user: User = { ...derived, valid_after, updated_at: time };
        if (exceedsFacts(user)) {
          const message = `give the user ${user.id} more role and groups than 4096 bytes as JSON`;
          throw invalidRequest([{ path: 'rules', message }]);
        }
        changed.push(user);
        changes.push(changeOfUser(before, user));
      }
      // One statement for each user would keep the records of calls waiting for seconds.
      for (let at = 0; at < changed.length; at += USERS_IN_STATEMENT) {
        const batch = changed.slice(at, at + USERS_IN_STATEMENT);
        await users.updateDerived(batch);
        if (!isEnding) continue;
        const ids = (some: readonly User[]) => some.map(({ id }) => id);
        const ungrouped = batch.filter(({ facts }) => facts !== null && !facts.directory?.groups);
        // In no group, users whose groups nothing has told yet would pass policies that deny something to one.
        changes.push(...(await endSignInsOf(trx, ids(batch), null, time)), ...(await endApiTokensOf(trx, ids(ungrouped), time)));
      }
      after = some.at(-1)?.id ?? null;
      if (some.length < USERS_AT_ONCE) return changes;
    }
  };

  return {
    async create(caller: Caller, body: unknown): Promise<Shown> {
      const time = now();
      const { provider, client_secret } = readProvider(body, { id: newId(), created_at: time, updated_at: time });
      requireIssuer(provider.issuer);
      const shown: Shown = { provider, secretSet: client_secret !== null };
      const { result } = await administer(caller, 'admin', async (trx) => {
        const store = providerStore(trx);
        await store.insert(provider);
        if (client_secret !== null)
          await store.setSealedSecret(provider.id, vault.seal(secretIdentity(provider), Buffer.from(client_secret)));
        // Users of the issuer, and their grants, may be left from a provider that was deleted.
        const derived = await rederiveUsers(trx, provider, false, withoutDirectory);
        const ended = provider.id_jag ? [] : await endAssertedGrants(trx, provider);
        return { result: shown, changes: [changeOf('create', null, shown), ...derived, ...ended] };
      });
      return result;
    },

    async update(caller: Caller, id: string, body: unknown, ifMatch: string | undefined): Promise<Shown> {
      const { result } = await administer(caller, 'admin', async (trx) => {
        const store = providerStore(trx);
        const before = await findShown(trx, id);
        requireMatch(ifMatch, providerEtag(before));
        const { provider: given, client_secret } = readProviderUpdate(body, before.provider, before.secretSet, now());
        if (given === before.provider && client_secret === undefined) return { result: before, changes: [] };
        const provider = given === before.provider ? { ...given, updated_at: now() } : given;
        await store.update(provider);
        if (client_secret !== undefined)
          await store.setSealedSecret(
            id,
            client_secret === null ? null : vault.seal(secretIdentity(provider), Buffer.from(client_secret)),
          );
        const after: Shown = { provider, secretSet: client_secret === undefined ? before.secretSet : client_secret !== null };
        // Tokens did not need groups until now, so users must show theirs again before they count as users in no group.
        const isEnding = before.provider.groups_from === 'directory' && provider.groups_from === 'token';
        const derived = await rederiveUsers(trx, provider, isEnding);
        const ended = before.provider.id_jag && !provider.id_jag ? await endAssertedGrants(trx, provider) : [];
        const changes = [changeOf('update', before, after), ...derived, ...ended];
        return { result: after, changes };
      });
      return result;
    },

    /** The users stay, and are refused: only the provider can say who they are. */
    async delete(caller: Caller, id: string, ifMatch: string | undefined): Promise<void> {
      await administer(caller, 'admin', async (trx) => {
        const before = await findShown(trx, id);
        requireMatch(ifMatch, providerEtag(before));
        const { provider } = before;
        await providerStore(trx).delete(id);
        await directoryStore(trx).forget(id);
        // Their tokens needed no groups, and a provider that is registered for this issuer later may take the groups from tokens.
        const isEnding = provider.groups_from === 'directory';
        const ended = isEnding ? await rederiveUsers(trx, { ...provider, updated_at: now() }, true) : [];
        return { result: null, changes: [changeOf('delete', before, null), ...ended] };
      });
    },

    /**
     * Makes the identity at a provider one of this user, who keeps id, role and groups, and loses the password. A user who had the
     * identity before is disabled. Throws AppError `identity_taken` if a directory has sent either of them.
     */
    async link(caller: Caller, userId: string, { issuer, subject }: Identity): Promise<User> {
      const { result } = await administer(caller, 'admin', async (trx) => {
        const users = userStore(trx);
        const provider = await providerStore(trx).findByIssuer(issuer);
        if (provider === null) throw invalidRequest([{ path: 'issuer', message: 'is not the issuer of a provider' }]);
        const before = await users.lock(userId);
        if (before === null) throw new AppError('not_found', 'No user has this id.');
        if (before.issuer === issuer && before.subject === subject) return { result: before, changes: [] };
        const changes: Change[] = [];
        const other = await users.lockBySubject(issuer, subject);
        // A directory keeps the id of the account: under a different id, it could no longer deactivate the user.
        const sent = await directoryStore(trx).users.known(null, other === null ? [userId] : [userId, other.id]);
        if (sent.size > 0) throw sentByDirectory(sent.has(userId));
        if (other !== null) {
          const released: User = { ...other, subject: releasedSubject(other), enabled: false, updated_at: now() };
          await users.update(released);
          // They must not come back if the released user is enabled again.
          changes.push(changeOfUser(other, released), ...(await endSignInsOf(trx, [other.id], null, now())));
        }
        const given = isLocal(before) ? { role: before.role, groups: before.groups } : null;
        const claims = other?.facts?.claims ?? { email: before.email, roles: [], groups: [] };
        const learnt = { claims, claims_iat: other?.facts?.claims_iat ?? 0, directory: other?.facts?.directory ?? null };
        const derived = derive(provider, learnt, given ?? givenBefore(before));
        if (exceedsLimit(derived)) throw invalidRequest([{ path: 'subject', message: 'role and groups would be too large' }]);
        // Tokens that were ended for either user stay refused.
        const valid_after = Math.max(before.valid_after ?? 0, other?.valid_after ?? 0) || null;
        const after: User = { ...before, ...derived, issuer, subject, valid_after, updated_at: now() };
        requireKept(localSignIn, after);
        await users.update(after);
        await users.setPasswordHash(userId, '', now());
        const ended = await endSignInsOf(trx, [userId], null, now());
        if (!isLocal(before)) ended.push(...(await endApiTokensOf(trx, [userId], now())));
        if (before.role === ADMIN && isLocal(before) && (await users.countEnabledAdministrators()) === 0) {
          throw new AppError(
            'last_administrator',
            'This is the last enabled administrator with a local account. Make a different local account an administrator first.',
          );
        }
        return { result: after, changes: [...changes, changeOfUser(before, after), ...ended] };
      });
      return result;
    },

    /** Ends the login tokens and browser sessions of the user and the access of applications, and refuses tokens of the provider that were issued until now. */
    async endTokens(caller: Caller, userId: string): Promise<User> {
      const { result } = await administer(caller, 'admin', async (trx) => {
        const users = userStore(trx);
        const before = await users.lock(userId);
        if (before === null) throw new AppError('not_found', 'No user has this id.');
        const provider = isLocal(before) ? null : await providerStore(trx).findByIssuer(before.issuer);
        const time = now();
        // The clock of the provider may be ahead, so a token that is older than this may have a later time.
        const valid_after = time + (provider?.clock_skew_seconds ?? 0) * 1_000;
        const after: User = { ...before, valid_after, updated_at: time };
        await users.update(after);
        const ended = await endSignInsOf(trx, [userId], null, time);
        return { result: after, changes: [{ ...changeOfUser(before, after), action: 'user.end-tokens' }, ...ended] };
      });
      return result;
    },
  };
}

/**
 * Ends what clients were allowed by assertions of the provider, in the transaction of an administrative change. The transaction must have
 * locked the users of the provider, so that no assertion that is under way makes a grant afterwards.
 */
async function endAssertedGrants(trx: Transaction, { issuer }: Provider): Promise<Change[]> {
  return await endGrants(trx, await grantStore(trx).byAssertionOf(issuer));
}

const sentByDirectory = (isOwn: boolean): AppError =>
  new AppError(
    'identity_taken',
    `A directory has sent ${isOwn ? 'this user' : 'the user who has this identity'} over SCIM, and knows it by its id. Delete the user in the directory's application, link, and assign the account again. See "Link an account" in docs/providers.md.`,
  );

/** A new provider has no directory yet. Users whom an earlier directory has deactivated stay so. */
function withoutDirectory(user: User): User {
  const { facts } = user;
  return facts?.directory?.active ? { ...user, facts: { ...facts, directory: null } } : user;
}

/** Tokens were read without groups: those of the directory count until the next token, and no token that was read before confirms them. */
function asDirectorySaid(user: User): User {
  const { facts } = user;
  if (facts === null) return user;
  const claims = { ...facts.claims, groups: facts.directory?.groups ?? facts.claims.groups };
  return { ...user, facts: { ...facts, claims, claims_iat: 0 } };
}

const givenBefore = ({ facts }: User) => ({ role: facts?.given_role ?? null, groups: facts?.given_groups ?? [] });

/** A subject that the provider does not give: the record stays for the audit log, and no user can sign in with it. */
const releasedSubject = ({ id }: User): string => `released:${id}`;

const exceedsFacts = ({ email, role, groups, facts }: User): boolean =>
  facts !== null && exceedsLimit({ email, role, groups, facts });

function changeOf(verb: string, before: Shown | null, after: Shown | null): Change {
  return {
    action: `provider.${verb}`,
    object_id: (after ?? before)?.provider.id ?? '',
    before: before && shownJson(before),
    after: after && shownJson(after),
  };
}

const changeOfUser = (before: User, after: User): Change => ({
  action: 'user.update',
  object_id: after.id,
  before: userDocument(before),
  after: userDocument(after),
});
