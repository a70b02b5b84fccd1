/**
 * The users of providers: made when they are first seen, and brought up to date by newer tokens. What a token says reaches the record
 * in the transaction of a change, so that it is derived by the present settings and every replica sees it (law 4).
 */
import { isDeepStrictEqual } from 'node:util';
import type { Provider } from '../auth/provider.ts';
import { AppError } from '../base/errors.ts';
import { uuidv7 } from '../base/ids.ts';
import type { Changes } from '../db/changes.ts';
import type { Connection, Database, Transaction } from '../db/database.ts';
import { userDocument } from '../users/document.ts';
import { labelOf, type User, userStore } from '../users/user-store.ts';
import type { Presented } from './claims.ts';
import { derive, exceedsLimit, givenTo, type Learnt, NOTHING_GIVEN, saysTheSame } from './facts.ts';
import { faulty, isFault, type ProviderFault } from './faults.ts';
import { providerStore } from './provider-store.ts';

/** How many requests may wait, for one account or for strangers of one provider. */
const MOST_WAITING = 100;

export interface PeopleParts {
  readonly database: Database;
  readonly changes: Pick<Changes, 'change'>;
  readonly now: () => number;
}

export type People = ReturnType<typeof createPeople>;

export function createPeople({ database, changes, now }: PeopleParts) {
  const inTurnOfAccount = createLines();
  const inTurnOfStrangers = createLines();

  /** The change of a record by what its user has presented. Nothing older than the present record counts. */
  const settleIn = async (trx: Transaction, provider: Provider, presented: Presented, newId: string) => {
    const unchanged = (result: User | ProviderFault) => ({ result, changes: [] });
    const moved = await movedFault(trx, provider);
    if (moved !== null) return unchanged(moved);
    const users = userStore(trx);
    const before = await users.lockBySubject(provider.issuer, presented.subject);
    if (before === null) {
      const fault = admissionFault(provider, presented);
      if (fault !== null) return unchanged(fault);
      const user = newUser(provider, presented, newId, now());
      await users.insert(user, null);
      return {
        result: user,
        changes: [{ action: 'user.create', object_id: user.id, before: null, after: userDocument(user) }] as const,
      };
    }
    if (before.facts !== null && presented.iat <= before.facts.claims_iat) return unchanged(before);
    const after = updated(provider, before, presented, now());
    if (isFault(after)) return unchanged(after);
    if (before.facts !== null && saysTheSame(before.facts.claims, after.facts?.claims ?? presented.claims)) {
      await users.confirmFacts(before.id, before.facts.claims_iat, presented.iat);
      return unchanged(before);
    }
    await users.update(after);
    const change = {
      action: 'user.update',
      object_id: after.id,
      before: userDocument(before),
      after: userDocument(after),
    } as const;
    return { result: after, changes: [change] };
  };

  async function settleAlone(provider: Provider, presented: Presented, by: string): Promise<User | ProviderFault> {
    const users = userStore(database.knex);
    const { id: providerId, issuer, name } = provider;
    const known = await users.findBySubject(issuer, presented.subject);
    // Refused strangers must not queue up for the lock of the change counter.
    const fault = known === null ? admissionFault(provider, presented) : null;
    if (fault !== null) return fault;
    if (known !== null && isSettled(known, presented)) return known;
    if (known?.facts && saysTheSame(known.facts.claims, withKnownEmail(known, presented).claims)) {
      const moved = await movedFault(database.knex, provider);
      if (moved !== null) return moved;
      // Remember the newer token, so that no older one can change the record afterwards. If the facts have changed meanwhile, the token
      // is compared with the new ones, under the lock.
      if (await users.confirmFacts(known.id, known.facts.claims_iat, presented.iat)) return known;
    }
    const id = known?.id ?? uuidv7();
    const email = labelOf(known ?? { email: presented.claims.email, subject: presented.subject });
    const actor = { id, email, request_id: uuidv7(), reason: `presented ${by} of the provider ${name}` };
    const change = () => changes.change(actor, (trx) => settleIn(trx, provider, presented, id));
    // Each stranger is a new actor, and actors take turns. All strangers of a provider together have one turn (law 11).
    const { result } = await (known === null ? inTurnOfStrangers(providerId, change) : change());
    return result;
  }

  return {
    /** Returns the user whose record tells role and groups; null: there is none, or no token has told the groups. */
    async known({ issuer, groups_from }: Provider, subject: string): Promise<User | null> {
      const user = await userStore(database.knex).findBySubject(issuer, subject);
      return user?.facts && (groups_from === 'directory' || user.facts.claims_iat > 0) ? user : null;
    },

    /**
     * Returns the user who presents a verified token, after the record has what it says. `by` names the token in the log of changes.
     * `provider`: under whose settings the token was read; if they are not those of the database, the record stays as it is
     * (`provider_changed`). A fault is a refusal; the caller notes it. Throws AppError `unavailable` if too many requests wait for the same
     * account, or too many strangers of the provider.
     */
    settle: (provider: Provider, presented: Presented, by: string): Promise<User | ProviderFault> =>
      inTurnOfAccount(JSON.stringify([provider.issuer, presented.subject]), () => settleAlone(provider, presented, by)),
  };
}

/** Returns a function that runs one piece of work at a time for each key. */
function createLines() {
  const lines = new Map<string, { last: Promise<unknown>; waiting: number }>();
  return async <T>(key: string, work: () => Promise<T>): Promise<T> => {
    const line = lines.get(key) ?? { last: Promise.resolve(), waiting: 0 };
    if (line.waiting >= MOST_WAITING)
      throw new AppError('unavailable', 'Too many accounts are signing in at once. Try again.', { retryAfter: 1 });
    lines.set(key, line);
    line.waiting++;
    const turn = line.last.then(work).finally(() => {
      line.waiting--;
      if (line.waiting === 0) lines.delete(key);
    });
    line.last = turn.catch(() => undefined);
    return turn;
  };
}

/** Why a record may not be written from a token that was read under these settings; null: they are those of the database. */
async function movedFault(db: Connection, provider: Provider): Promise<ProviderFault | null> {
  const current = await providerStore(db).findByIssuer(provider.issuer);
  if (!current?.enabled) return faulty('provider_disabled', 'the provider was disabled meanwhile');
  return isDeepStrictEqual(current, provider) ? null : faulty('provider_changed', 'the provider was changed meanwhile');
}

/** Whether the record has nothing to learn from the token. */
const isSettled = (user: User, { iat }: Presented): boolean => user.facts !== null && iat <= user.facts.claims_iat;

/** Why a stranger does not become a user; null: they do. */
function admissionFault(provider: Provider, presented: Presented): ProviderFault | null {
  const { subject, claims, iat } = presented;
  if (!provider.provisioning) return faulty('not_provisioned', `no user has the subject ${subject}, and provisioning is off`);
  const derived = derive(provider, learntFrom(claims, iat), NOTHING_GIVEN);
  if (exceedsLimit(derived)) return tooLarge(subject);
  return refusalOf({ subject, ...derived }, provider, presented);
}

/** Why the facts of the provider do not admit the user; null: they do. `presented`: the token that was presented, if it is known. */
export function refusalOf(
  { subject, email, facts }: Pick<User, 'subject' | 'email' | 'facts'>,
  provider: Provider,
  presented: Pick<Presented, 'hasUnverifiedEmail'> | null = null,
): ProviderFault | null {
  const refusal = facts?.refusal ?? null;
  switch (refusal) {
    case null:
      return null;
    case 'no_role':
      return faulty('no_role', `no rule and no claim gives the subject ${subject} a role, and default_role is null`);
    case 'email_domain':
      if (email === null && presented?.hasUnverifiedEmail)
        return faulty(
          'email_unverified',
          `the provider has not verified the e-mail of the subject ${subject} (email_verified), and email_domains is set`,
        );
      return faulty(
        'email_domain',
        `the e-mail ${email ?? '(missing)'} of the subject ${subject} is not in ${provider.email_domains.join(', ')}`,
      );
    case 'directory_inactive':
      return faulty('directory_inactive', `the directory has deactivated or deleted the user with the subject ${subject}`);
    case 'not_in_directory':
      return faulty(
        'not_in_directory',
        `groups_from is directory, and the directory has not sent a user with the externalId ${subject}`,
      );
    case 'too_many_groups':
      return faulty(
        'too_many_groups',
        `role and groups of the subject ${subject} exceed 4096 bytes as JSON. Assign fewer groups to the gateway in the directory`,
      );
  }
}

const tooLarge = (subject: string): ProviderFault =>
  faulty(
    'facts_too_large',
    `the role and groups of the subject ${subject} exceed 4096 bytes as JSON. Set a group filter at the provider`,
  );

function newUser(provider: Provider, { subject, claims, iat }: Presented, id: string, time: number): User {
  return {
    ...{ id, issuer: provider.issuer, subject, valid_after: null, enabled: true, created_at: time, updated_at: time },
    ...derive(provider, learntFrom(claims, iat), NOTHING_GIVEN),
  };
}

const learntFrom = (claims: Presented['claims'], claims_iat: number): Learnt => ({ claims, claims_iat, directory: null });

/** Tokens for programs often leave the e-mail out, which does not mean that it has changed. */
const withKnownEmail = ({ email, facts }: User, presented: Presented): Presented => ({
  ...presented,
  claims: { ...presented.claims, email: presented.claims.email ?? (facts === null ? email : facts.claims.email) },
});

function updated(provider: Provider, before: User, presented: Presented, time: number): User | ProviderFault {
  const { claims, iat } = withKnownEmail(before, presented);
  const learnt = { claims, claims_iat: iat, directory: before.facts?.directory ?? null };
  const derived = derive(provider, learnt, givenTo(before));
  return exceedsLimit(derived) ? tooLarge(before.subject) : { ...before, ...derived, updated_at: time };
}

/** The record under other settings or with something else given; itself if nothing changes. */
export function rederived(provider: Provider, user: User, given = givenTo(user)): User {
  if (user.facts === null) return user;
  const after = { ...user, ...derive(provider, user.facts, given) };
  return JSON.stringify(after) === JSON.stringify(user) ? user : after;
}
