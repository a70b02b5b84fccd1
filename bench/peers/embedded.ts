/** What runs in this process and needs no installation: the plain loop, our engine, and the rule that reviewers read. */

import type { PolicySubject } from '../../src/engine/compile/policy.ts';
import type { PrincipalFacts } from '../../src/engine/decision.ts';
import { createEngine, type LoadedEngine, type PolicyModule } from '../../src/engine/engine.ts';
import { loadInstance, readResult } from '../../src/engine/instance.ts';
import type { Question } from '../workload.ts';
import type { Answer, Peer } from './peer.ts';

function isFor({ subject_type, subject_value }: PolicySubject, { sub, role, groups }: PrincipalFacts): boolean {
  switch (subject_type) {
    case 'everyone':
      return true;
    case 'role':
      return subject_value === role;
    case 'user':
      return subject_value === sub;
    case 'group':
      return subject_value !== null && groups.includes(subject_value);
  }
}

/** The floor for interpreted code: cheap comparisons first, expressions compiled before. */
export const loop: Peer = {
  name: 'plain TypeScript loop',
  kind: 'embedded',
  upTo: Number.POSITIVE_INFINITY,
  missing: () => null,
  start: async (policies) => {
    const rules = policies.map((policy) => ({
      target: policy.target_id,
      type: policy.resource_type,
      subjects: policy.subjects,
      regex: policy.resource_pattern === null ? null : new RegExp(policy.resource_pattern, 'u'),
      answer: { effect: policy.effect, policyId: policy.id } satisfies Answer,
    }));
    const none: Answer = { effect: 'deny', policyId: null };
    return {
      ask({ principal, target, object }) {
        for (const rule of rules) {
          if (rule.target !== null && rule.target !== target) continue;
          if (rule.type !== 'all' && rule.type !== object.resource_type) continue;
          if (!rule.subjects.some((subject) => isFor(subject, principal))) continue;
          if (rule.regex === null || rule.regex.test(object.resource_name)) return rule.answer;
        }
        return none;
      },
    };
  },
};

export const ask =
  (engine: Pick<LoadedEngine, 'decide'>) =>
  ({ principal, target, object }: Question): Answer => {
    const { effect, policy, reason } = engine.decide(principal, target, object);
    if (reason === 'error') throw new Error('The engine failed');
    return { effect, policyId: policy?.id ?? null };
  };

export const portcullis = (module: PolicyModule): Peer => ({
  name: 'Portcullis',
  kind: 'embedded',
  upTo: Number.POSITIVE_INFINITY,
  missing: () => null,
  start: async (policies) => ({ ask: ask(await createEngine({ module, policies, revision: 1 })) }),
});

export const inputOf = ({ principal: { sub, role, groups }, target, object }: Question): object => ({
  sub,
  role,
  groups,
  target,
  type: object.resource_type,
  name: object.resource_name,
});

/** `rego/reference.rego` as the published SDK would run it: nothing is kept from one evaluation to the next. */
export const naive = (module: PolicyModule): Peer => ({
  name: 'naive Rego in WASM',
  kind: 'embedded',
  upTo: 10_000,
  missing: () => null,
  start: async (policies) => {
    const { compiled } = await createEngine({ module, policies, revision: 1 });
    const value = JSON.stringify({ policies: compiled.document.policies });
    const loading = loadInstance(module.instantiate(), [{ path: [], value }], -1);
    let step = loading.next();
    while (step.done !== true) step = loading.next();
    const instance = step.value;
    return {
      ask(question) {
        const answer = instance.ask('portcullis/reference/decision', JSON.stringify(inputOf(question)));
        const { effect, policy } = readResult(answer) as { effect: Answer['effect']; policy: string | null };
        return { effect, policyId: policy };
      },
    };
  },
});
