/** Changes of policies by a session whose user signed in long ago: each alone allows nothing new, and together they would. */
import test from 'ava';
import { type Database, openDatabase } from '../../src/db/database.ts';
import type { PolicyJson } from '../../src/policies/schema.ts';
import { browse, signIn } from '../browser/browser.ts';
import { file, policySets } from '../policies/sets.ts';
import { person, startGateway } from '../support/gateway.ts';

test('two changes at once never allow together what neither allows alone', async (t) => {
  let database: Database | undefined;
  const open: typeof openDatabase = async (...given) => {
    database = await openDatabase(...given);
    return database;
  };
  const gateway = await startGateway(t, null, {}, { open });
  const admin = await person(gateway, 'admin@example.com');
  const { token } = admin;
  const console_ = browse(gateway);
  await signIn(console_, admin);
  await database?.knex('browser_sessions').update({ proved_at: 1 });

  const add = async (effect: string, priority: number): Promise<string> => {
    const body = { name: effect, effect, priority, resource_type: 'all', subjects: [{ subject_type: 'everyone' }] };
    return (await gateway.rest<PolicyJson>(201, 'POST', '/api/policies', { token, body })).body.id;
  };
  await add('allow', 1);
  const edit = (id: string) => async () => {
    const fields = { name: 'deny', effect: 'deny', resource_type: 'all', priority: '5', subjects: 'everyone' };
    return console_.post(`/console/policies/${id}/edit`, { ...fields, do: 'save' });
  };
  const remove = (id: string) => async () => console_.post(`/console/policies/${id}/delete`);
  const { apply } = policySets(gateway, token);
  const all = { name: 'deny', effect: 'deny', resource_type: 'all', resource_pattern: null, priority: 5 } as const;
  const managed = (owner: string) => apply({ [`${owner}.yaml`]: file(all) }, { owner });
  /** `prune`: the draft deletes the policy of the owner. Otherwise it disables it. */
  const activate = async (name: string, prune: boolean) => {
    const body = { files: prune ? {} : { [`${name}.yaml`]: file({ ...all, enabled: false }) }, owner: name, prune };
    await gateway.rest(201, 'PUT', `/api/policies/drafts/${name}`, { token, body });
    const { text } = await console_.get(`/console/drafts/${name}`);
    const [etag = '', expected = '', targets = ''] = ['etag', 'expected', 'targets'].map(
      (field) => new RegExp(`name="${field}" value="([^"]*)"`).exec(text)?.[1]?.replaceAll('&#34;', '"') ?? '',
    );
    return async (named = etag) => console_.post(`/console/drafts/${name}`, { do: 'activate', etag: named, expected, targets });
  };
  const pairs = {
    deletions: async () => [remove(await add('deny', 5)), remove(await add('deny', 5))],
    edits: async () => [edit(await add('deny', 5)), edit(await add('deny', 5))],
    drafts: async () => {
      await managed('one');
      await managed('two');
      return [await activate('one', true), await activate('two', false)];
    },
  };
  // A draft that is saved meanwhile must not take the place of the one that was judged.
  const anyDraft = await activate('any', false);
  t.is((await anyDraft('*')).status, 412);
  for (const [kind, begin] of Object.entries(pairs)) {
    const pages = await Promise.all((await begin()).map((send) => send()));
    t.is(pages.filter(({ status }) => status === 303).length, 1, `${kind}: ${pages.map(({ status, text }) => status + text)}`);
    const { body } = await gateway.rest<PolicyJson[]>(200, 'GET', '/api/policies', { token });
    t.is(body.filter(({ effect, enabled }) => effect === 'deny' && enabled).length, 1, kind);
    for (const { id } of body.filter(({ effect }) => effect === 'deny'))
      await gateway.rest(204, 'DELETE', `/api/policies/${id}?override=true`, { token });
  }
});
