import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { runGroup } from '../../../src/cli/command.ts';
import { invariantsGroup } from '../../../src/cli/policies/invariants.ts';
import { breaking, denial, scene } from '../../policies/invariants/scene.ts';
import { file } from '../../policies/sets.ts';
import { folder, inProcess, policies } from '../cli.ts';

test.serial('invariants are planned, applied and exported from the command line', async (t) => {
  const { gateway, admin, policy, invariants, sets, call } = await scene(t);
  const environment = { PORTCULLIS_URL: gateway.url, PORTCULLIS_TOKEN: admin.token };
  const run = async (code: number, ...args: string[]) => {
    const ran = await inProcess(environment, (terminal) => runGroup(invariantsGroup, args, terminal));
    t.is(ran.code, code, `${args.join(' ')}: ${ran.out}${ran.err}`);
    return code === 2 || ran.out === '' ? ran.err : ran.out;
  };
  const dir = join(folder(t), 'invariants');
  t.regex(await run(0, 'export', '--dir', dir), /1 file written, 0 unchanged/);
  const path = join(dir, 'contractors-run-nothing.yaml');
  const text = readFileSync(path, 'utf8');
  t.is(
    text,
    `name: Contractors run nothing
reason: Their machines are not managed
never:
  subjects:
    - group: contractors
  except:
    targets:
      - sandbox
  resource_type: tool
  resource_pattern: exec
`,
  );
  t.regex(await run(0, 'plan', '--dir', dir), /0 changes, 1 unchanged/);
  t.regex(await run(0, 'list'), /^Contractors run nothing: Their machines are not managed$/m);

  // A policy that belongs to a file, and an exception for it.
  await sets.apply({ 'deploy.yaml': file({ name: 'Deploy', resource_pattern: '^deploy$' }) }, { owner: 'payments' });
  const exception = `exceptions:
  - policy: payments/deploy
    reason: Until the migration is done
    expires_at: 2099-01-31T00:00:00Z
`;
  const wider = text.replace('exec', '^deploy$');
  writeFileSync(path, wider);
  t.regex(await run(1, 'plan', '--dir', dir), /^Breaks the invariant: "Contractors run nothing".*"Deploy"/);
  t.regex(await run(1, 'apply', '--dir', dir), /The invariant was not stored, because the policies break it/);
  writeFileSync(path, wider + exception);
  t.regex(
    await run(0, 'apply', '--dir', dir, '--reason', 'SEC-1'),
    /~ update contractors-run-nothing.yaml "Contractors run nothing": never, exceptions/,
  );
  t.is((await invariants())[0]?.exceptions.length, 1);
  const [change] = await call<{ action: string; reason: string }[]>(200, 'GET', '/changes?limit=1');
  t.like(change, { action: 'invariant.update', reason: 'SEC-1' });
  t.regex(await run(0, 'export', '--dir', dir), /0 files written, 1 unchanged/);
  t.is(readFileSync(path, 'utf8'), wider + exception);

  // A file that describes a different invariant stays, although it has the name that the gateway gives the file.
  const elsewhere = join(folder(t), 'invariants');
  mkdirSync(elsewhere);
  for (const name of ['contractors-run-nothing.yaml', 'contractors-run-nothing-2.yaml'])
    writeFileSync(join(elsewhere, name), text.replace('nothing', `all ${name}`));
  t.regex(await run(0, 'export', '--dir', elsewhere), /^wrote .*contractors-run-nothing-3\.yaml\n1 file written, 0 unchanged/);
  t.regex(readFileSync(join(elsewhere, 'contractors-run-nothing.yaml'), 'utf8'), /^name: Contractors run all/);

  // Errors have their places.
  writeFileSync(join(dir, 'bad.yaml'), wider.replace('sandbox', 'nowhere').replace('nothing', 'all'));
  t.regex(await run(1, 'plan', '--dir', dir), /bad\.yaml:8:9: never\.except\.targets\.0 is nowhere, but no target has this name/);
  writeFileSync(join(dir, 'bad.yaml'), wider.replace('^deploy$', '(').replace('nothing', 'all'));
  t.regex(await run(1, 'plan', '--dir', dir), /bad\.yaml:10:3: never\.resource_pattern /);
  writeFileSync(join(dir, 'bad.yaml'), `${text}targets: []\n`);
  t.regex(await run(1, 'plan', '--dir', dir), /bad\.yaml:11:1: targets is not a key of an invariant/);

  // Without its file, an invariant stays unless the apply prunes.
  writeFileSync(join(dir, 'bad.yaml'), text.replace('nothing', 'all'));
  writeFileSync(path, text.replace('nothing', 'everything'));
  t.regex(await run(0, 'apply', '--dir', dir), /"Contractors run nothing" has no file: --prune deletes it/);
  t.regex(await run(0, 'apply', '--dir', dir, '--prune'), /- delete "Contractors run nothing"/);
  t.is(JSON.parse(await run(0, 'schema', '--json')).title, 'Portcullis invariant');

  // The plan of policies shows what would be broken.
  await policy(denial());
  await policy(breaking());
  const own = join(folder(t), 'policies');
  mkdirSync(own);
  writeFileSync(join(own, 'higher.yaml'), file({ name: 'Higher', priority: 90, resource_pattern: 'exec' }));
  const planned = await inProcess(environment, (terminal) => policies(['plan', '--dir', own, '--owner', 'default'], terminal));
  t.is(planned.code, 1);
  t.regex(planned.out, /Breaks the invariant: "Contractors run all" .*"Higher"/);
});
