/** Files name their targets. An apply is refused if a name means a different target than the plan showed. */
import test from 'ava';
import { eachEngine } from '../../support/databases/each-engine.ts';
import { person, startGateway } from '../../support/gateway.ts';
import { addTarget, file, type ProblemAnswer, policySets } from '../sets.ts';

eachEngine(test.serial, 'what was planned for a target is not applied to the one that got its name', async (t, at) => {
  const gateway = await startGateway(t, at.url);
  const { token } = await person(gateway, 'admin@example.com');
  const { apply, plan, refused, revision, policies } = policySets(gateway, token);
  const ids = new Map<string, string>();
  for (const name of ['sandbox', 'production', 'unnamed']) ids.set(name, await addTarget(gateway, token, name));
  const rename = (name: string, to: string) =>
    gateway.rest(200, 'PUT', `/api/targets/${ids.get(name)}`, { token, body: { name: to } });
  /** Gives the targets that were added as sandbox and production these names. */
  const nameThem = async (sandbox: string, production: string) => {
    await rename('sandbox', 'between');
    await rename('production', production);
    await rename('sandbox', sandbox);
  };

  const files = { 'a.yaml': file({ target: 'sandbox' }), 'b.yaml': file({ name: 'Both', target: null }) };
  const before = await plan(files);
  const expected = { expected_revision: before.owner_revision, expected_targets: before.targets_hash };
  await gateway.rest(201, 'PUT', '/api/policies/drafts/d', { token, body: { files } });
  const activate = (status: number, body: object) =>
    gateway.rest<ProblemAnswer>(status, 'POST', '/api/policies/drafts/d/activate', { token, body });

  await nameThem('production', 'sandbox');
  t.is((await plan(files)).owner_revision, before.owner_revision, 'the revision does not show it');
  const { detail } = await refused(412, files, expected);
  t.is(
    detail,
    'A target that the files name was created, renamed or deleted, so the files no longer mean the same targets. Review the policies again, then repeat the request.',
  );
  await activate(412, expected);
  t.is((await policies()).length, 0);

  // Back again, the names mean what the plan showed. Targets that no file names do not matter.
  await nameThem('sandbox', 'production');
  await rename('unnamed', 'renamed');
  t.is((await plan(files, expected)).targets_hash, before.targets_hash);
  for (const wrong of ['', 'x', before.targets_hash.toUpperCase(), `${before.targets_hash}0`, 7]) {
    await refused(400, files, { expected_targets: wrong });
  }
  await activate(200, expected);
  t.is((await policies()).find(({ name }) => name !== 'Both')?.target_id, ids.get('sandbox'));

  // Files that already match their policies count, too: after a swap, they would move their policies.
  const matching = await plan(files);
  t.deepEqual(matching.changes, []);
  await nameThem('production', 'sandbox');
  await refused(412, files, { expected_targets: matching.targets_hash });
  const moved = await plan(files);
  t.like(moved, { changes: [{ action: 'update', members: ['target'] }] });
  await apply(files, { expected_targets: moved.targets_hash });
  t.is(await revision(), 2);
});
