/** The interface to heavy work on policies. This file reads from the database what the thread needs. */
import type { Caller } from '../../auth/caller.ts';
import { AppError } from '../../base/errors.ts';
import { pause } from '../../base/turns/slices.ts';
import { createWork, type Give, type Host, type Job, type Work, type WorkLimits } from '../../base/work/work.ts';
import { changedBetween, readPosition } from '../../db/changes.ts';
import type { Connection, Database } from '../../db/database.ts';
import type { Policy, StoredPolicy } from '../../engine/compile/policy.ts';
import type { FoundUsers } from '../../state/found-users.ts';
import { type User, userStore } from '../../users/user-store.ts';
import { usersSince } from '../../users/users-since.ts';
import type { ParsedPolicyFile } from '../files/yaml.ts';
import { ownerHistory, setAt } from '../history.ts';
import { type Checked, glanceOf, type ToCheck } from '../invariants/invariant-edits.ts';
import type { ParsedInvariantFile } from '../invariants/invariant-files.ts';
import { invariantStore } from '../invariants/invariant-store.ts';
import type { FindNames, NamesOutside } from '../limits/limits.ts';
import { ownerStore } from '../limits/owner-store.ts';
import type { SetSource } from '../sets/bodies.ts';
import type { Moment } from '../sets/candidate-set.ts';
import type { Draft } from '../sets/draft.ts';
import { type PolicyChange, withChanges } from '../sets/plan.ts';
import type { SetState, TargetName } from '../sets/planning.ts';
import type { Brought, SetVerdict } from '../sets/set-check.ts';
import type { SetToTest } from '../sets/test-set.ts';
import type { Holders } from '../sets/unknown.ts';
import type { ReadStoredSet } from '../stored-set.ts';
import type { Suggestion, SuggestTask } from '../suggest/job.ts';
import type { Need } from '../suggest/needs.ts';
import { type FoundPattern, takeFound, withReadings } from './given.ts';
import type { ApplyRest, ApplyText, EarlierAsked, HeavyAnswer, jobs, Stored, UserAsked, UserNow } from './jobs.ts';

/** The user who asks, and the callback for the progress. */
export interface AskedBy {
  readonly by: string;
  readonly signal?: AbortSignal;
  readonly onProgress?: (progress: object) => void;
}

export type AnswerName =
  | 'plan'
  | 'rollbackPlan'
  | 'movePlan'
  | 'compare'
  | 'lint'
  | 'context'
  | 'export'
  | 'exportInvariants'
  | 'simulate'
  | 'test'
  | 'reproduce';

/** All methods reject as `Work.run` does. */
export type HeavyWork = ReturnType<typeof createHeavyWork>;

export type Tested = Awaited<ReturnType<typeof jobs.tests>>;

export interface HeavyParts {
  readonly database: Database;
  readonly targets: (db: Connection) => Promise<readonly (TargetName & { readonly enabled: boolean })[]>;
  readonly findDraft: (db: Connection, name: string) => Promise<Draft | null>;
  readonly foundUsers: Pick<FoundUsers, 'find'>;
  readonly readStoredSet: ReadStoredSet;
  readonly now?: () => number;
  readonly limits?: Partial<WorkLimits>;
}

export function createHeavyWork(parts: HeavyParts) {
  const { database, targets, findDraft, readStoredSet, now = Date.now, limits = {}, foundUsers } = parts;
  const file = import.meta.url.endsWith('.ts') ? './worker.ts' : './worker.js';
  const newWork = (): Work => createWork({ thread: new URL(file, import.meta.url), limits });
  const [questions, changes, changesOfOwners] = [newWork(), newWork(), newWork()];
  /**
   * What changes wait for has threads of its own: callers who may only read must not keep an administrator from revoking. Nor must
   * callers whose rights are limited to owners: thousands of tests can take both threads for minutes.
   */
  const change = <T>(caller: Caller | null, job: Omit<Job, 'by' | 'signal'>): Promise<T> => {
    const work = caller === null || caller.managesAll === true ? changes : changesOfOwners;
    return work.run<T>({ ...job, by: caller?.principal.sub ?? null, signal: caller?.signal });
  };

  const storedNow = async (db: Connection): Promise<Stored> => ({
    position: await readPosition(db),
    targets: (await targets(db)).map(({ id, name, enabled }) => ({ id, name, enabled })),
    invariants: await invariantStore(db).all(),
    glance: (await glanceOf(db)).glance,
    now: now(),
  });
  const readState = (owner: string | null) =>
    database.snapshot(async (db) => ({
      ...(await storedNow(db)),
      policies: (await readStoredSet(db)).policies,
      limits: await ownerStore(db).limits(),
      history: await ownerHistory(db, owner),
    }));
  const giveState = async (give: Give, { policies, ...rest }: Awaited<ReturnType<typeof readState>>) => {
    await give(withReadings(policies));
    return rest;
  };
  const host = {
    now: () => database.snapshot(storedNow),
    state: async (give: Give, owner: string | null) => giveState(give, await readState(owner)),
    // Without a turn: the job would hold a thread while it waits, and there are few.
    async at(give: Give, { revision, since }: EarlierAsked) {
      await give(withReadings(await setAt(database, revision, await database.snapshot(readStoredSet), since)));
      return null;
    },
    async draft(_: Give, name: string) {
      const found = await findDraft(database.knex, name);
      if (found === null) throw new AppError('not_found', `No draft has the name ${name}.`);
      const { files, owner, prune, adopt, tests } = found;
      return { files, owner, prune, adopt, tests };
    },
    user: (_: Give, { name, since }: UserAsked): Promise<UserNow> =>
      database.snapshot(async (db) => {
        const [position, user] = await Promise.all([readPosition(db), foundUsers.find(db, name)]);
        const changed = await changedBetween(db, since, position);
        const isSame = changed?.every(({ object_type: type }) => type !== 'policy' && type !== 'target') ?? false;
        return { isSame, user };
      }),
    async holders(): Promise<Holders> {
      const holders = { roles: new Set<string>(), groups: new Set<string>(), users: new Set<string>() };
      const add = (users: readonly User[]): void => {
        for (const { id, role, groups } of users) {
          holders.users.add(id);
          holders.roles.add(role);
          for (const group of groups) holders.groups.add(group);
        }
      };
      const began = await readPosition(database.knex);
      for await (const some of userStore(database.knex).parts(null)) {
        add(some);
        await pause();
      }
      // While the parts were read, a group can go from a user of a later part to one of an earlier part.
      add((await usersSince(database, began, (db, ids) => userStore(db).findAll(ids))).users);
      return holders;
    },
  } satisfies Host;

  const givesSet =
    (policies: () => Promise<readonly Policy[]>) =>
    async (give: Give): Promise<null> => {
      await give(withReadings(await policies()));
      return null;
    };

  async function read<T extends { readonly file: string }>(
    name: 'read' | 'readInvariants',
    texts: ReadonlyMap<string, string>,
    caller: Caller,
  ): Promise<Map<string, T>> {
    const files = new Map<string, T>();
    const onItems = (items: readonly unknown[]): void => {
      for (const parsed of items as T[]) files.set(parsed.file, parsed);
    };
    await change(caller, { name, input: { texts: [...texts] }, host: {}, onItems });
    return files;
  }

  return {
    answer: (name: AnswerName, input: object, asked: AskedBy): Promise<HeavyAnswer> =>
      questions.run<HeavyAnswer>({ ...asked, name, input, host }),
    /** Reads the body of an apply. Returns its files and tests by name. */
    async applyBody(
      body: Uint8Array | null,
      caller: Caller,
    ): Promise<ApplyRest & Record<ApplyText[0], ReadonlyMap<string, string>>> {
      const texts = { files: new Map<string, string>(), tests: new Map<string, string>() };
      const onItems = (items: readonly unknown[]): void => {
        for (const [member, name, text] of items as ApplyText[]) texts[member].set(name, text);
      };
      const rest = await change<ApplyRest>(caller, { name: 'applyBody', input: { body }, host: {}, onItems });
      return { ...rest, ...texts };
    },
    readFiles: (texts: ReadonlyMap<string, string>, caller: Caller) => read<ParsedPolicyFile>('read', texts, caller),
    readInvariantFiles: (texts: ReadonlyMap<string, string>, caller: Caller) =>
      read<ParsedInvariantFile>('readInvariants', texts, caller),
    /**
     * Checks the set as `CheckSet` does, and rejects if it is accepted and no engine can be made of it. `caller` null: the work starts at
     * once.
     */
    checkSet(
      policies: readonly StoredPolicy[],
      brought: Brought,
      stored: () => Promise<readonly StoredPolicy[]>,
      caller: Caller | null,
    ): Promise<SetVerdict> {
      const onItems = (items: readonly unknown[]): void => takeFound(items as FoundPattern[]);
      const host = { policies: givesSet(async () => policies), stored: givesSet(stored) };
      return change<SetVerdict>(caller, { name: 'checkSet', input: brought, host, onItems });
    },
    /** `caller` null: the search starts at once. */
    findNames: (outside: readonly NamesOutside[], caller: Caller | null): ReturnType<FindNames> =>
      change(caller, { name: 'findNames', input: outside, host: {} }),
    /** Checks invariants on the stored policies and invariants. */
    checkInvariants: (check: ToCheck, caller: Caller): Promise<Checked> =>
      change<Checked>(caller, { name: 'checkInvariants', input: check, host: { state: host.state } }),
    /** Rejects with what is wrong with the tests. */
    async checkTests(texts: ReadonlyMap<string, string>, caller: Caller): Promise<void> {
      await change(caller, { name: 'checkTests', input: { texts: [...texts] }, host: {} });
    },
    test(texts: ReadonlyMap<string, string>, set: Pick<SetToTest, 'policies' | 'targets'>, caller: Caller): Promise<Tested> {
      const given = async (give: Give): Promise<Pick<SetToTest, 'targets'>> => {
        await give(withReadings(set.policies));
        return { targets: set.targets.map(({ id, name }) => ({ id, name })) };
      };
      return change<Tested>(caller, { name: 'tests', input: { texts: [...texts] }, host: { set: given } });
    },
    /**
     * Returns the set that a source makes. Rejects with AppError `not_found` if its draft does not exist, and with what an apply would refuse
     * for.
     */
    async moment(source: SetSource, asked: AskedBy): Promise<Moment> {
      const read: { state: Awaited<ReturnType<typeof readState>> | null } = { state: null };
      const state = async (give: Give, owner: string | null) => {
        read.state = await readState(owner);
        return giveState(give, read.state);
      };
      const made: PolicyChange[] = [];
      const onItems = (items: readonly unknown[]): void => void made.push(...(items as PolicyChange[]));
      await questions.run({ ...asked, name: 'moment', input: source, host: { ...host, state }, onItems });
      if (read.state === null) throw new Error('the job has not read the state');
      const { position, targets: known, policies: stored } = read.state;
      return { position, targets: known, stored, policies: withChanges(stored, made), changes: made };
    },
    /** Makes a suggestion on the policies of the moment, and returns it with the policies that it would make. */
    async suggest(task: SuggestTask, { position, policies, targets }: Moment, needs: readonly Need[], asked: AskedBy) {
      const candidate: StoredPolicy[] = [];
      const host = {
        async state(give: Give, owner: string | null): Promise<Stored & Pick<SetState, 'limits' | 'history'>> {
          await give(withReadings(policies));
          const now = await database.snapshot(async (db) => ({
            ...(await storedNow(db)),
            limits: await ownerStore(db).limits(),
            history: await ownerHistory(db, owner),
          }));
          return { ...now, position, targets: targets.map(({ id, name, enabled }) => ({ id, name, enabled })) };
        },
        async needs(give: Give): Promise<null> {
          await give(needs);
          return null;
        },
      };
      const onItems = (items: readonly unknown[]): void => void candidate.push(...(items as StoredPolicy[]));
      const suggestion = await questions.run<Suggestion>({ ...asked, name: 'suggest', input: task, host, onItems });
      return { suggestion, candidate };
    },
    async close(): Promise<void> {
      await Promise.all([questions.close(), changes.close(), changesOfOwners.close()]);
    },
  };
}
