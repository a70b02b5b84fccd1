/** A suggestion that does more or less than it says is withheld. */
import test, { type ExecutionContext } from 'ava';
import type { PolicySubject, StoredPolicy } from '../../../src/engine/compile/policy.ts';
import { createEngine, loadPolicyModule } from '../../../src/engine/engine.ts';
import { decisionChanges } from '../../../src/policies/sets/decision-changes.ts';
import type { Need } from '../../../src/policies/suggest/needs.ts';
import { type Claim, proveGrants, proveLeast } from '../../../src/policies/suggest/proof.ts';
import type { Proposed } from '../../../src/policies/suggest/proposal.ts';
import { policy } from '../policies.ts';

const module = await loadPolicyModule();
const TARGETS = [{ id: 't', name: 'everything' }];
const id = (n: number): string => `00000000-0000-7000-8000-${String(n).padStart(12, '0')}`;
const role = (subject_value: string): PolicySubject => ({ id: 's', subject_type: 'role', subject_value });
const EVERYONE: PolicySubject = { id: 's', subject_type: 'everyone', subject_value: null };
const echo = policy(id(1), { target_id: 't', resource_pattern: '^echo$', subjects: [role('a')] });
const proposed: Proposed = {
  ...{ subject_type: 'role', subject_value: 'a', target_id: 't', resource_type: 'tool', resource_pattern: '^echo$' },
  ...{ names: ['echo'], priority: 0, needs: [0], outranks: [] },
};
const NEED: Need = {
  ...{ subject: 'a', target_id: 't', resource_type: 'tool', resource_name: 'echo', policy_id: null, count: 1, last: '' },
  principal: { sub: '', role: 'a', groups: [] },
};

async function outcome(prove: (claim: Claim, ...rest: Rest) => Promise<void>, over: Partial<Claim>): Promise<string> {
  const claim = { before: [], after: [echo], proposed: [proposed], created: [echo], ...over };
  const decided = await decisionChanges(claim.before, claim.after, TARGETS, () => true);
  const engine = await createEngine({ module, policies: claim.after, revision: 0 });
  return prove(claim, decided, engine).then(
    () => 'proved',
    (error: Error) => /failed: (.*)\. Report/.exec(error.message)?.[1] ?? error.message,
  );
}
type Rest = [Awaited<ReturnType<typeof decisionChanges>>, Awaited<ReturnType<typeof createEngine>>];
const grants = (over: Partial<Claim>): Promise<string> =>
  outcome((claim, decided, engine) => proveGrants(claim, decided, TARGETS, [NEED], engine, () => {}), over);
const least = (over: Partial<Claim>): Promise<string> =>
  outcome((claim, decided, engine) => proveLeast(claim, decided, 'a', [NEED], engine, () => {}), over);

const isWithheld = async (t: ExecutionContext, made: Promise<string>, why: RegExp): Promise<void> =>
  void t.regex(await made, why);

test('a suggestion for denied requests is withheld unless it allows exactly what it says', async (t) => {
  t.is(await grants({}), 'proved');
  const as = (over: Partial<StoredPolicy>, more: Partial<Proposed> = {}): Partial<Claim> => {
    const made = { ...echo, ...over };
    return { after: [made], created: [made], proposed: [{ ...proposed, ...more }] };
  };
  for (const over of [
    { subjects: [EVERYONE] },
    { subjects: [role('a'), role('b')] },
    { priority: 1 },
    { target_id: null },
    { resource_type: 'all' },
    { resource_pattern: '^echo' },
  ] as const)
    await isWithheld(t, grants(as(over)), /does not say what was proposed/);
  await isWithheld(t, grants({ created: [undefined] }), /does not say what was proposed/);
  for (const resource_pattern of ['^echo', 'echo', '^ech.$', '^(echo|other)$'])
    await isWithheld(t, grants(as({ resource_pattern }, { resource_pattern })), /matches other names/);
  await isWithheld(t, grants(as({}, { names: ['echo', 'other'] })), /matches other names/);

  const more = policy(id(2), { target_id: 't', resource_pattern: '^more$', subjects: [role('a')] });
  await isWithheld(t, grants({ after: [echo, more] }), /what was announced is looser/);
  await isWithheld(t, grants({ before: [more] }), /current policies is incomparable/);
  const deny = policy(id(3), { effect: 'deny', priority: 9, subjects: [role('a')] });
  await isWithheld(t, grants({ before: [deny], after: [deny, echo] }), /is still denied/);
});

test('a suggestion for a role is withheld if it gives anything, or changes anything for others', async (t) => {
  const wide = policy(id(4), { target_id: 't', subjects: [role('a')] });
  t.is(await least({ before: [wide] }), 'proved');
  await isWithheld(t, least({ before: [] }), /current policies is looser/);
  const both = policy(id(5), { target_id: 't', resource_type: 'prompt', subjects: [role('b')] });
  await isWithheld(t, least({ before: [wide, both] }), /other roles is stricter/);
  const late = { ...echo, priority: -1 };
  const deny = policy(id(6), { effect: 'deny', priority: -1, subjects: [role('a')] });
  const claim = { before: [wide, deny], after: [late, deny], created: [late], proposed: [{ ...proposed, priority: -1 }] };
  await isWithheld(t, least(claim), /still denied/);
});
