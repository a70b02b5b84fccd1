import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { file, policySets } from '../../policies/sets.ts';
import { apiToken } from '../../support/gateway.ts';
import { modernClient } from '../../support/mcp.ts';
import { world } from '../../support/world.ts';
import { command, folder, inProcess, policies, policyFolder, portcullis } from '../cli.ts';

const TESTS = `target: everything
principals:
  u: { role: user }
requests:
  sum: { tool: get-sum }
tests:
  - name: sums
    expect:
      - effect: allow
`;

test.serial('a draft is saved, replayed, shadowed and activated from the command line', async (t) => {
  const w = await world(t);
  const { gateway, admin } = w;
  const { apply, revision } = policySets(gateway, admin.token);
  const { token } = await apiToken(gateway, admin);
  const environment = { PORTCULLIS_URL: gateway.url, PORTCULLIS_TOKEN: token };
  const run =
    (group: typeof policies) =>
    async (code: number, ...args: string[]) => {
      const ran = await inProcess(environment, (terminal) => group(args, terminal));
      t.is(ran.code, code, `${args.join(' ')}: ${ran.out}${ran.err}`);
      return code === 0 || code === 3 ? ran.out : ran.err;
    };
  const [draft, policy] = [run(command('drafts')), run(policies)];
  await apply({ 'echo.yaml': file({ name: 'Echo' }) });
  const client = await modernClient(t, w.mcp, w.token);
  await client.listTools();
  await client.callTool({ name: 'echo', arguments: { message: 'x' } });

  const dir = policyFolder(t);
  mkdirSync(join(dir, 'tests'), { recursive: true });
  writeFileSync(join(dir, 'echo.yaml'), file({ name: 'Echo', resource_pattern: '^get-sum$' }));
  writeFileSync(join(dir, 'unused.yaml'), file({ name: 'Unused', resource_pattern: '^nobody$' }));
  writeFileSync(join(dir, 'tests', 'sums.yaml'), TESTS);
  const replayed = await policy(3, 'replay', '--dir', dir, '--detailed-exitcode');
  t.regex(replayed, /^Decisions from \S+ to \S+: \d+, evaluated again: \d+ \(100%\)\.$/m);
  t.regex(
    replayed,
    /^- user@example\.com, everything, tool "echo": allow by "Echo", once, last \S+\n {4}then: deny: no policy matches$/m,
  );
  t.regex(replayed, /^- user@example\.com, everything, tool "echo": was listed, once,/m);
  t.regex(replayed, /^Would be allowed: 0\. Would be denied: 1\. Would be hidden in lists: 1\.$/m);
  t.regex(replayed, /The report says nothing about 1 of 2 changed policies.*\n {2}"Unused" \(unused\.yaml, priority 10\)\n$/);
  t.regex(await policy(0, 'replay', '--live', '--since', '7d'), /Would be denied: 0\./);
  t.is(JSON.parse(await policy(0, 'replay', '--live', '--from', '2020-01-01T00:00:00Z', '--json')).flips.length, 0);

  t.is(await draft(0, 'list'), 'There are no drafts.\n');
  t.is(await draft(0, 'save', 'tighter', '--dir', dir), 'saved tighter: 2 policies, 1 file of tests\n');
  const { hash } = JSON.parse(await draft(0, 'show', 'tighter', '--json'));
  const head = `# draft tighter of the owner default, with 1 file of tests, hash ${hash}\n`;
  t.true((await draft(0, 'show', 'tighter')).startsWith(`${head}\n# echo.yaml\nname: Echo\n`));
  await draft(0, 'save', 'wider', '--dir', dir, '--prune', '--adopt');
  t.regex(
    await draft(0, 'show', 'wider'),
    /^# draft wider .*\n# deletes the policies .*\n# takes over policies .*\n\n# echo\.yaml\n/,
  );
  await draft(0, 'delete', 'wider');
  const out = join(folder(t), 'again');
  t.is(await draft(0, 'show', 'tighter', '--out', out), `wrote 2 policies into ${out}\n`);
  for (const name of ['echo.yaml', 'tests/sums.yaml']) {
    t.is(readFileSync(join(out, name), 'utf8'), readFileSync(join(dir, name), 'utf8'));
  }
  t.regex(await draft(1, 'show', 'tighter', '--out', out), /is not an empty folder/);
  t.regex(await policy(0, 'replay', '--draft', 'tighter'), /Would be denied: 1\./);
  t.regex(
    await policy(0, 'simulate', 'everything', 'tool', 'echo', '--role', 'user', '--draft', 'tighter'),
    /1 of 1 would change/,
  );

  t.regex(await draft(0, 'shadow', 'tighter', '--begin'), /: 0, evaluated again: 0/);
  t.regex(await draft(0, 'list'), /^tighter {2}\S+ {2}admin@example\.com {2}\(shadowed\)\n$/);
  await client.callTool({ name: 'echo', arguments: { message: 'x' } });
  let seen = await draft(0, 'shadow', 'tighter');
  while (!/Would be denied: 1\./.test(seen)) seen = await draft(0, 'shadow', 'tighter');
  await draft(3, 'shadow', 'tighter', '--detailed-exitcode');
  t.is(await draft(0, 'shadow', 'tighter', '--end'), 'tighter is no longer shadowed\n');
  t.regex(await draft(1, 'shadow', 'tighter'), /has no shadow/);

  t.regex(await draft(1, 'activate', 'tighter', '--hash', '0'.repeat(64)), /Read it again/);
  t.is(await revision(), 1);
  t.regex(
    await draft(0, 'activate', 'tighter', '--hash', hash, '--reason', 'reviewed'),
    /^Applied, as revision 2:\n {2}update "Echo"\n {2}create "Unused"\n$/,
  );
  t.regex(await draft(1, 'delete', 'tighter'), /No draft has the name tighter/);
  await draft(0, 'save', 'gone', '--dir', dir);
  t.is(await draft(0, 'delete', 'gone'), 'deleted gone\n');

  for (const args of [
    ['save'],
    ['save', '../x'],
    ['shadow', 'a', '--begin', '--end'],
    ['activate', 'a', '--expect-revision', 'x'],
  ]) {
    t.regex(await draft(2, ...args), /See portcullis drafts/);
  }
  for (const args of [
    ['replay', '--since', 'yesterday'],
    ['replay', '--since', '1h', '--from', '2020-01-01T00:00:00Z'],
    ['replay', '--draft', 'a', '--dir', dir],
    ['test', '--draft', 'a'],
  ]) {
    t.regex(await policy(2, ...args), /See portcullis policies/);
  }
  t.regex(await policy(1, 'replay', '--from', 'x', '--live'), /from: must be a time/);
  writeFileSync(join(dir, 'broken.yaml'), 'name: x\n');
  t.true((await draft(1, 'save', 'broken', '--dir', dir)).includes(`${join(dir, 'broken.yaml')}:1:1: `));
  t.false(existsSync(join(dir, 'x')));
});

test.serial('every command about drafts has help', async (t) => {
  for (const [args, said] of [
    [['drafts'], /^Usage: portcullis drafts <command>/],
    [['drafts', 'shadow', '--help'], /--begin/],
    [['policies', 'replay', '--help'], /--since AGO/],
  ] as const) {
    const ran = await portcullis({}, ...args);
    t.is(ran.code, 0);
    t.regex(ran.out, said);
  }
});
