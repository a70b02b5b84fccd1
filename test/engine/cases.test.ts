import { readdirSync, readFileSync } from 'node:fs';
import test from 'ava';
import { parse } from 'yaml';
import {
  type Effect,
  type Policy,
  type PolicyResourceType,
  type PolicySubject,
  RESOURCE_TYPES,
  type ResourceType,
} from '../../src/engine/compile/policy.ts';
import type { NamedObject, PrincipalFacts } from '../../src/engine/decision.ts';
import { createEngine, loadPolicyModule } from '../../src/engine/engine.ts';
import { inputOf, loadDocument, type Verdict } from './support.ts';

interface WrittenPolicy {
  readonly id: string;
  readonly effect: Effect;
  readonly priority?: number;
  readonly target?: string | null;
  readonly type?: PolicyResourceType;
  readonly pattern?: string | null;
  readonly subjects?: readonly string[];
  readonly enabled?: boolean;
}
interface Case extends Partial<Readonly<Record<ResourceType, string>>> {
  readonly name: string;
  readonly caller?: { readonly user: string; readonly role: string; readonly groups: readonly string[] };
  readonly target?: string;
  readonly effect: Effect;
  readonly policy: string | null;
  readonly reason: string;
}
interface Group {
  readonly policies: readonly WrittenPolicy[];
  readonly cases: readonly Case[];
}

const FOLDER = new URL('cases/', import.meta.url);
const module = await loadPolicyModule();
const files = readdirSync(FOLDER).filter((file) => file.endsWith('.yaml'));
let total = 0;

for (const file of files) {
  const groups = parse(readFileSync(new URL(file, FOLDER), 'utf8')) as Group[];
  total += groups.reduce((sum, group) => sum + group.cases.length, 0);
  test(file, async (t) => {
    for (const { policies, cases } of groups) {
      const engine = await createEngine({ module, policies: policies.map(toPolicy), revision: 1 });
      const rule = loadDocument(module, engine.compiled.json);
      for (const { name, caller, target = 'github', effect, policy, reason, ...rest } of cases) {
        const principal: PrincipalFacts = {
          sub: caller?.user ?? 'ann',
          role: caller?.role ?? 'user',
          groups: caller?.groups ?? [],
        };
        const object = objectOf(rest);
        const expected = { effect, policy, reason };
        const answers =
          object === null
            ? [engine.decideTarget(principal, target)]
            : [engine.decide(principal, target, object), ...engine.decideMany(principal, target, [object])];
        for (const answer of answers)
          t.deepEqual({ effect: answer.effect, policy: answer.policy?.id ?? null, reason: answer.reason }, expected, name);
        const { rank, ...reference } = rule(
          object === null ? 'reference/target' : 'reference/decision',
          inputOf(principal, target, object ?? undefined),
        ) as Verdict;
        t.deepEqual(reference, expected, `${name} (reference)`);
        t.is(rank === null, policy === null, name);
      }
    }
  });
}

test('the cases cover the semantics', (t) => {
  t.true(total >= 150, `${total} cases`);
});

function objectOf(asked: Partial<Record<ResourceType, string>>): NamedObject | null {
  const type = RESOURCE_TYPES.find((type) => asked[type] !== undefined);
  return type === undefined ? null : { resource_type: type, resource_name: asked[type] ?? '' };
}

function toPolicy({
  id,
  effect,
  priority = 0,
  target = null,
  type = 'all',
  pattern = null,
  subjects = ['everyone'],
  enabled = true,
}: WrittenPolicy): Policy {
  return {
    id,
    name: `policy ${id}`,
    description: null,
    target_id: target,
    resource_type: type,
    resource_pattern: pattern,
    effect,
    priority,
    enabled,
    subjects: subjects.map(toSubject),
    created_at: 0,
    updated_at: 0,
  };
}

function toSubject(written: string): PolicySubject {
  const [kind = '', value = null] = written.split(/ (.*)/s);
  return { id: written, subject_type: kind as PolicySubject['subject_type'], subject_value: value };
}
