/** How many drafts and shadows there can be, and whose. */
import test from 'ava';
import type { Caller } from '../../src/auth/caller.ts';
import { up } from '../../src/db/migrations/0026-shadow-beginners.ts';
import { draftStore, shadowStore } from '../../src/policies/drafts/draft-store.ts';
import { createDrafts, type DraftParts } from '../../src/policies/drafts/drafts.ts';
import { ADMIN, ALL_RIGHTS } from '../support/authority.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachEngine } from '../support/databases/each-engine.ts';

const CONTENT = { files: {}, tests: {}, owner: 'default', prune: false, adopt: false };

eachEngine(
  test.serial,
  'managers of owners cannot use up drafts and shadows, neither for each other nor for administrators',
  async (t, at) => {
    const database = await openTestDatabase(t, at);
    const position = { sequence: 1, nonce: 'n', revision: 1 };
    const drafts = createDrafts({
      administer: async (_caller, _need, work) => {
        const { result } = await database.knex.transaction((trx) => work(trx, ALL_RIGHTS));
        return { result, position };
      },
      sets: { plan: async () => undefined } as unknown as DraftParts['sets'],
      applyTested: async () => t.fail() as never,
      checkTests: async () => undefined,
      database,
      now: () => 1,
    });
    const by = (sub: string, managesAll = false): Caller => ({ ...ADMIN, managesAll, principal: { ...ADMIN.principal, sub } });
    /** Returns how many the caller could make before the first refusal, and the refusal. */
    const most = async (make: (n: number) => Promise<unknown>): Promise<[number, string]> => {
      for (let n = 0; ; n++) {
        try {
          await make(n);
        } catch (error) {
          return [n, (error as Error).message];
        }
      }
    };
    const save = (caller: Caller) => most((n) => drafts.save(caller, `${caller.principal.sub}-${n}`, CONTENT, undefined));
    const shadow = (caller: Caller, author: string) => most((n) => drafts.beginShadow(caller, `${author}-${n}`));
    t.deepEqual(await save(by('ann')), [
      40,
      'You already have 40 drafts, which is the limit for one user. Delete one of them first.',
    ]);
    t.is((await save(by('ben')))[0], 40);
    t.deepEqual(await save(by('carl')), [0, '80 drafts are already stored, and the limit is 80. Delete one of them first.']);
    t.is((await save(by('admin', true)))[0], 20);
    const changed = { ...CONTENT, files: { 'a.yaml': 'x' } };
    t.is((await most((n) => drafts.save(by('ann'), `ben-${n}`, changed, undefined)))[0], 0, 'what is saved over counts, too');
    t.deepEqual(await shadow(by('ann'), 'ben'), [
      4,
      'You already have 4 shadows, which is the limit for one user. End the shadow of one of them first.',
    ]);
    t.is((await shadow(by('ben'), 'ann'))[0], 4);
    t.deepEqual(await shadow(by('admin', true), 'admin'), [
      2,
      '10 drafts are already shadowed, and the limit is 10. End the shadow of one of them first.',
    ]);
  },
);

eachEngine(test.serial, 'shadows of an older version count for the authors of their drafts', async (t, at) => {
  const { knex } = await openTestDatabase(t, at);
  const author = { id: 'ann', email: 'ann@example.com' };
  await draftStore(knex).put({ name: 'd', ...CONTENT, hash: 'h', author, created_at: 1, updated_at: 1 });
  await knex('policy_shadows').insert({ draft: 'd', since: 1, version: 1, progress: '{}', flips: '[]' });
  await knex.schema.alterTable('policy_shadows', (table) => void table.dropColumn('begun_by'));
  await up(knex);
  t.deepEqual(await shadowStore(knex).count('ann'), { all: 1, ofUser: 1 });
});
