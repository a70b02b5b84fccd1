import test from 'ava';
import type { TokenClaims } from '../../../src/auth/principal.ts';
import type { NamedObject } from '../../../src/engine/decision.ts';
import type { Decide } from '../../../src/engine/estimate.ts';
import type { Caller } from '../../../src/mcp/context/context.ts';
import { accessFor, filteredNow, UndecidedFault } from '../../../src/mcp/context/readmission.ts';
import type { Admission } from '../../../src/state/admission.ts';
import type { RoutedTarget } from '../../../src/targets/target.ts';
import { admissionOf, noCredentials, routed } from '../gateway.ts';

const [OLD, NEW] = [-1_000, 0];
const tool = (resource_name: string): NamedObject => ({ resource_type: 'tool', resource_name });

/** A caller who was admitted `agoMs` before now, and whose state a test changes. */
function world(agoMs: number) {
  const principal = { sub: 'ann', role: 'user', groups: [] };
  const credentials = { ...noCredentials, identity: 'one' };
  const bound = (binding: string): RoutedTarget =>
    routed('a', 'http://a.test/mcp', { accessOf: () => ({ credentials, scope: null, binding, user: 'ann' }) });
  const w = {
    target: bound('one') as RoutedTarget | null,
    denied: new Set<string>(),
    isUsable: true,
    isRefused: false,
    isDown: false,
    looks: 0,
    /** How long a decision takes, and what happens then. */
    takesMs: 0,
    afterwards: (): unknown => null,
  };
  const admission = (): Admission =>
    ({
      principal,
      snapshot: {
        targets: new Map(w.target === null ? [] : [['a', w.target]]),
        engine: {
          decideTarget: () => ({ effect: w.isUsable ? 'allow' : 'deny' }),
          estimate: () => 0,
          decideMany(_: unknown, __: string, objects: readonly NamedObject[]) {
            const decisions = objects.map(({ resource_name }) => ({ effect: w.denied.has(resource_name) ? 'deny' : 'allow' }));
            for (const until = performance.now() + w.takesMs; performance.now() < until; );
            w.afterwards();
            return decisions;
          },
        },
      },
    }) as unknown as Admission;
  const admit = async () => {
    w.looks++;
    if (w.isDown) throw new Error('down');
    return w.isRefused ? { refused: 'invalid_token', detail: 'revoked' } : admission();
  };
  const claims = { iss: 'test', sub: 'ann' } as unknown as TokenClaims;
  const caller = { deps: { admit }, claims, admission: admission(), admittedAt: performance.now() + agoMs } as unknown as Caller;
  const { stillAllowed = () => false } = accessFor(caller, bound('one'), [tool('echo')]);
  return { w, bound, stillAllowed };
}

test.serial('what is sent soon after the caller was admitted needs no second look', (t) => {
  const { w, stillAllowed } = world(NEW);
  w.denied.add('echo');
  t.true(stillAllowed());
  t.is(w.looks, 0);
});

test.serial('what is sent later is looked at, and what was good needs no look for a while', async (t) => {
  const { w, stillAllowed } = world(OLD);
  t.true(await stillAllowed());
  t.true(stillAllowed());
  t.is(w.looks, 1);
});

for (const since of [OLD, NEW]) {
  test.serial(`what was decided ${since === NEW ? 'just now' : 'before'} says nothing about another object`, async (t) => {
    const { w, stillAllowed } = world(since);
    w.denied.add('secret');
    t.true(await stillAllowed());
    t.false(await stillAllowed([tool('secret')]));
    t.true(await stillAllowed([]));
  });
}

test.serial('a change during a long decision counts', async (t) => {
  const { w, stillAllowed } = world(OLD);
  w.takesMs = 150;
  w.afterwards = () => w.denied.add('echo');
  t.false(await stillAllowed());
  t.is(w.looks, 2);
});

test.serial('a decision that always takes long is refused in the end', async (t) => {
  const { w, stillAllowed } = world(OLD);
  w.takesMs = 150;
  t.false(await stillAllowed());
});

for (const [what, change] of [
  ['the object is denied', ({ w }) => void w.denied.add('echo')],
  ['the target is denied', ({ w }) => void Object.assign(w, { isUsable: false })],
  ['the target is gone', ({ w }) => void Object.assign(w, { target: null })],
  ['the target has moved', ({ w }) => void Object.assign(w, { target: { ...w.target, url: 'http://b.test/mcp' } })],
  ['the credentials have changed', ({ w, bound }) => void Object.assign(w, { target: bound('two') })],
  ['the caller is refused', ({ w }) => void Object.assign(w, { isRefused: true })],
] as readonly [string, (at: ReturnType<typeof world>) => void][]) {
  test.serial(`what waited is not sent if ${what} meanwhile`, async (t) => {
    const at = world(OLD);
    change(at);
    t.false(await at.stillAllowed());
  });
}

test.serial('if the state cannot be read, nobody can say it', async (t) => {
  const { w, stillAllowed } = world(OLD);
  w.isDown = true;
  await t.throwsAsync(async () => stillAllowed(), { message: 'down' });
});

/** An answer for a caller who was admitted `agoMs` before now. Its filter waits for longer than a decision holds. */
function answering(agoMs: number) {
  const all = admissionOf('ann', new Map(), () => true);
  const w = {
    state: all as Admission | null,
    filtered: 0,
    decidedBy: null as Admission | null,
    whileItWaits: (): unknown => null,
  };
  const admit = async () => {
    if (w.state === null) throw new Error('down');
    return w.state;
  };
  const caller = {
    ...{ deps: { admit }, claims: {}, admission: all, admittedAt: performance.now() + agoMs },
    decidedBy: (by: Admission) => {
      w.decidedBy = by;
    },
  } as unknown as Caller;
  const filter =
    (names: readonly string[]) =>
    async (decide: Decide): Promise<unknown> => {
      const allowed = decide(names.map(tool));
      w.filtered++;
      for (const until = performance.now() + 101; performance.now() < until; );
      w.whileItWaits();
      return allowed;
    };
  return { w, filtered: async (...names: string[]) => filteredNow(caller, 'a', filter(names)) };
}

for (const since of [OLD, NEW]) {
  const when = since === NEW ? 'early' : 'late';
  test.serial(`an answer that came ${when} and has waited is filtered again if the policies have changed`, async (t) => {
    const same = answering(since);
    t.deepEqual(await same.filtered('secret'), [true]);
    t.is(same.w.filtered, 1);
    const { w, filtered } = answering(since);
    const denied = admissionOf('ann', new Map(), () => false);
    w.whileItWaits = () => {
      w.state = denied;
    };
    t.deepEqual(await filtered('secret'), [false]);
    t.is(w.decidedBy, denied);
  });

  test.serial(`an answer that came ${when} needs a state that can be read only if it names something`, async (t) => {
    for (const names of [['secret'], []]) {
      const { w, filtered } = answering(since);
      w.whileItWaits = () => {
        w.state = null;
      };
      if (names.length > 0) await t.throwsAsync(filtered(...names), { instanceOf: UndecidedFault });
      else t.deepEqual(await filtered(), []);
      t.is(w.decidedBy === null, names.length === 0);
    }
  });
}

test.serial('an answer is filtered three times at most, although the policies change all the time', async (t) => {
  const { w, filtered } = answering(NEW);
  w.whileItWaits = () => {
    w.state = admissionOf('ann', new Map(), () => true);
  };
  t.deepEqual(await filtered('secret'), [true]);
  t.is(w.filtered, 3);
});
