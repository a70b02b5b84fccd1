/** Saves, shadows and activates drafts. Each action is an administrative change, but only activation changes decisions. */
import type { Administer, Authority, Caller } from '../../auth/caller.ts';
import { AppError } from '../../base/errors.ts';
import { requireMatch } from '../../base/etag.ts';
import type { Change, Position } from '../../db/changes.ts';
import type { Connection, Transaction } from '../../db/database.ts';
import { requireOwner } from '../owners.ts';
import { type Draft, type DraftContent, draftHash } from '../sets/draft.ts';
import { ANY, type Expected, type PlannedFiles } from '../sets/planning.ts';
import type { ApplyRequest, Planned, PolicySets } from '../sets/sets.ts';
import type { ApplyTested } from '../sets/test-set.ts';
import { draftStore, shadowStore } from './draft-store.ts';
import { newShadow } from './shadow.ts';

/** The files and tests of one draft as JSON. Escaped, they must fit into one SQL statement. */
const MAX_BYTES = 1_500_000;

/**
 * How many drafts, and how many shadows, there can be. Callers without `managesAll` can have less, so that they cannot keep administrators from
 * drafts: all of them together, and each user. A shadow keeps an engine in memory.
 */
const MOST = {
  drafts: { all: 100, ofManagers: 80, ofUser: 40 },
  shadows: { all: 10, ofManagers: 8, ofUser: 4 },
} as const;

/** `ofUser`: how many there are of the caller. Throws AppError `limit_reached`. */
function requireRoom(
  { managesAll }: Caller,
  what: keyof typeof MOST,
  there: { readonly all: number; readonly ofUser: number },
): void {
  const { all, ofManagers, ofUser } = MOST[what];
  const said = what === 'drafts' ? 'stored' : 'shadowed';
  const end = what === 'drafts' ? 'Delete one of them first.' : 'End the shadow of one of them first.';
  if (managesAll !== true && there.ofUser >= ofUser) {
    const yours = what === 'drafts' ? 'drafts' : 'shadows';
    throw new AppError('limit_reached', `You already have ${ofUser} ${yours}, which is the limit for one user. ${end}`);
  }
  const most = managesAll === true ? all : ofManagers;
  if (there.all >= most)
    throw new AppError('limit_reached', `${there.all} drafts are already ${said}, and the limit is ${most}. ${end}`);
}

/**
 * `ifMatch` is the header of the request. Every method can throw AppError `not_found` and `precondition_failed`, and what
 * `Administer` throws.
 */
export type Drafts = ReturnType<typeof createDrafts>;

export interface DraftParts {
  readonly administer: Administer;
  readonly sets: PolicySets;
  readonly applyTested: ApplyTested;
  /** Rejects with what is wrong with the tests. Runs in a turn of the caller. */
  readonly checkTests: (texts: ReadonlyMap<string, string>, caller: Caller) => Promise<void>;
  readonly database: { readonly knex: Connection };
  readonly now: () => number;
}

export const draftEtag = ({ hash }: Draft): string => `"${hash}"`;

const applyRequestOf = ({ files, owner, prune, adopt }: DraftContent, expected: Expected): ApplyRequest => ({
  files: new Map(Object.entries(files)),
  ...{ owner, prune, adopt, ...expected },
});

export function createDrafts({ administer, sets, applyTested, checkTests, database, now }: DraftParts) {
  async function requireDraft(db: Connection, name: string, ifMatch: string | undefined): Promise<Draft> {
    const draft = await draftStore(db).find(name);
    if (draft === null) throw new AppError('not_found', `No draft has the name ${name}.`);
    requireMatch(ifMatch, draftEtag(draft));
    return draft;
  }

  /** Like `requireDraft`, in the transaction of a caller who changes the draft. */
  async function requireOwnDraft(
    trx: Transaction,
    { held }: Authority,
    name: string,
    ifMatch: string | undefined,
  ): Promise<Draft> {
    const draft = await draftStore(trx).find(name);
    if (draft !== null) requireOwner(held, 'policies:manage', draft.owner);
    return requireDraft(trx, name, ifMatch);
  }

  async function removeDraft(trx: Transaction, draft: Draft, action: 'draft.delete' | 'draft.activate'): Promise<Change> {
    await draftStore(trx).delete(draft.name);
    return { action, object_id: draft.name, before: summaryOf(draft), after: null };
  }

  return {
    /** Also throws `limit_reached`, and what `PolicySets.plan` and `checkTests` throw. Restarts the shadow of the draft. */
    async save(
      caller: Caller,
      name: string,
      content: DraftContent,
      ifMatch: string | undefined,
    ): Promise<{ draft: Draft; created: boolean }> {
      if (Buffer.byteLength(JSON.stringify([content.files, content.tests])) > MAX_BYTES) {
        throw new AppError(
          'too_large',
          `The draft is too large: its files and tests together may have at most ${MAX_BYTES} bytes.`,
        );
      }
      await sets.plan(caller, applyRequestOf(content, ANY));
      await checkTests(new Map(Object.entries(content.tests)), caller);
      const at = now();
      const { principal } = caller;
      const hash = draftHash(content);
      const { result } = await administer(caller, ['policies:manage'], async (trx, { held }) => {
        const store = draftStore(trx);
        const before = await store.find(name);
        for (const { owner } of [content, ...(before === null ? [] : [before])]) requireOwner(held, 'policies:manage', owner);
        if (before !== null) requireMatch(ifMatch, draftEtag(before));
        else if (ifMatch !== undefined) throw new AppError('precondition_failed', `No draft has the name ${name}.`);
        const author = { id: principal.sub, email: principal.email };
        const draft: Draft = { name, ...content, hash, author, created_at: before?.created_at ?? at, updated_at: at };
        if (before?.hash === hash) return { result: { draft: before, created: false }, changes: [] };
        if (before?.author.id !== principal.sub) {
          const { all, ofUser } = await store.count(principal.sub);
          requireRoom(caller, 'drafts', { all: before === null ? all : 0, ofUser });
        }
        await store.put(draft);
        const shadows = shadowStore(trx);
        if ((await shadows.find(name)) !== null) await shadows.begin(await newShadow(trx, name, at), null);
        const action = before === null ? 'draft.create' : 'draft.update';
        const change: Change = { action, object_id: name, before: before && summaryOf(before), after: summaryOf(draft) };
        return { result: { draft, created: before === null }, changes: [change] };
      });
      return result;
    },

    async remove(caller: Caller, name: string, ifMatch: string | undefined): Promise<void> {
      await administer(caller, ['policies:manage'], async (trx, authority) => ({
        result: null,
        changes: [await removeDraft(trx, await requireOwnDraft(trx, authority, name, ifMatch), 'draft.delete')],
      }));
    },

    /** If the tests of the draft pass, applies it and removes it, in one transaction. Also throws what `ApplyTested` throws. */
    async activate(
      caller: Caller,
      name: string,
      { ifMatch, expected }: { readonly ifMatch: string | undefined; readonly expected: Expected },
    ): Promise<{ result: Planned<PlannedFiles>; position: Position }> {
      const draft = await requireDraft(database.knex, name, ifMatch);
      const tests = new Map(Object.entries(draft.tests));
      const reason = caller.reason ?? `draft ${name}`;
      return applyTested({ ...caller, reason }, applyRequestOf(draft, expected), tests, async (trx, authority) => [
        // Remove exactly the draft that was reviewed and tested, not one that was saved in the meantime.
        await removeDraft(trx, await requireOwnDraft(trx, authority, name, draftEtag(draft)), 'draft.activate'),
      ]);
    },

    /** Returns false if the draft already has a shadow, which continues. Also throws `limit_reached`. */
    async beginShadow(caller: Caller, name: string): Promise<boolean> {
      const { result } = await administer(caller, ['policies:manage'], async (trx, authority) => {
        await requireOwnDraft(trx, authority, name, undefined);
        const shadows = shadowStore(trx);
        if ((await shadows.find(name)) !== null) return { result: false, changes: [] };
        requireRoom(caller, 'shadows', await shadows.count(caller.principal.sub));
        await shadows.begin(await newShadow(trx, name, now()), caller.principal.sub);
        return { result: true, changes: [shadowChange(name, true)] };
      });
      return result;
    },

    async endShadow(caller: Caller, name: string): Promise<void> {
      await administer(caller, ['policies:manage'], async (trx, authority) => {
        await requireOwnDraft(trx, authority, name, undefined);
        if (!(await shadowStore(trx).end(name))) throw new AppError('not_found', `The draft ${name} has no shadow.`);
        return { result: null, changes: [shadowChange(name, false)] };
      });
    },
  };
}

const shadowChange = (name: string, begins: boolean): Change => ({
  action: begins ? 'draft.shadow_begin' : 'draft.shadow_end',
  object_id: name,
  before: { shadow: !begins },
  after: { shadow: begins },
});

/** The audit record leaves the files out: once they are applied, the log of changes contains them as policies. */
const summaryOf = (draft: Draft): object => ({
  ...{ name: draft.name, owner: draft.owner, prune: draft.prune, adopt: draft.adopt },
  ...{ files: Object.keys(draft.files).length, tests: Object.keys(draft.tests).length, hash: draft.hash },
});
