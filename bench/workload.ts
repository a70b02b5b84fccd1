/** Policy sets and questions for the benchmark: the same for every engine, the same in every run. */

import type { Policy } from '../src/engine/compile/policy.ts';
import type { NamedObject, PrincipalFacts } from '../src/engine/decision.ts';

export const TARGETS = 20;
export const ROLES = 10;
/** Typical priorities: few levels and many ties. Cerbos can express only a few levels. */
export const PRIORITIES = 5;

/** The shares of the forms of patterns. The rest are regular expressions. */
export interface Mix {
  readonly name: string;
  readonly exact: number;
  readonly prefix: number;
  /**
   * `spread`: a policy speaks of one target and one role; one of ten, but no more than 20, of every target, and as many of
   * everyone. `everyone`: all of every target and of everyone, so that a rule without an index must try them all. `bare`: the
   * same with patterns without fixed text at either end.
   */
  readonly scope: 'spread' | 'everyone' | 'bare';
}

export const MIXES = {
  literal: { name: 'all literal', exact: 0.7, prefix: 0.3, scope: 'spread' },
  mixed: { name: '60% exact, 25% prefix, 15% regex', exact: 0.6, prefix: 0.25, scope: 'spread' },
  half: { name: '30% exact, 20% prefix, 50% regex', exact: 0.3, prefix: 0.2, scope: 'spread' },
  regex: { name: 'all regex', exact: 0, prefix: 0, scope: 'spread' },
  worst: { name: 'all regex, every target, everyone', exact: 0, prefix: 0, scope: 'everyone' },
  bare: { name: 'all regex, every target, everyone, open at both ends', exact: 0, prefix: 0, scope: 'bare' },
} as const satisfies Record<string, Mix>;

export interface Question {
  /**
   * `hit`: fits some policy. `miss`: a name that some policy speaks of, from a role that it does not. `default`: a name like no
   * policy's.
   */
  readonly kind: 'hit' | 'miss' | 'default';
  readonly principal: PrincipalFacts;
  readonly target: string;
  readonly object: NamedObject;
}

export interface Workload {
  readonly mix: Mix;
  readonly policies: readonly Policy[];
  /** Questions that no call before has returned: the caller is new each time, the name wherever the pattern leaves room. */
  questions(count: number): Question[];
  /** `count` different tools, as a target might list them, and someone who asks for that list. */
  list(count: number): { principal: PrincipalFacts; target: string; objects: NamedObject[] };
}

/** mulberry32: 32 bits of state are plenty here. */
function createRandom(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return (((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32) * below;
  };
}

const VERBS = ['get', 'list', 'search', 'create', 'update', 'delete', 'send', 'read', 'run', 'export'];
const NOUNS = [
  'issue',
  'branch',
  'invoice',
  'message',
  'report',
  'page',
  'customer',
  'deploy',
  'file',
  'query',
  'ticket',
  'user',
];

interface Named {
  readonly pattern: string;
  readonly exact: boolean;
  /** A name that fits; another serial gives another name, unless the pattern is exact. */
  readonly name: (serial: number) => string;
}

export function createWorkload(mix: Mix, count: number, seed = 1): Workload {
  const random = createRandom(seed + count * 31);
  const int = (below: number): number => Math.floor(random(below));
  const pick = <T>(from: readonly [T, ...T[]] | readonly T[]): T => {
    const one = from[int(from.length)];
    if (one === undefined) throw new Error('Nothing to pick from');
    return one;
  };
  /** Policies share nouns the more, the more there are. */
  const noun = (): string => `${pick(NOUNS)}${int(Math.max(4, count / 20))}`;
  /** Whether the policy is one of every ten, but one of at most 20 in all. */
  const isOneOfFew = (i: number): boolean => i % Math.max(10, Math.ceil(count / 20)) === 0;
  const hex = (digits: number): string => Array.from({ length: digits }, () => int(16).toString(16)).join('');
  const uuid = (): string => `${hex(8)}-${hex(4)}-4${hex(3)}-8${hex(3)}-${hex(12)}`;
  const targetIds = Array.from({ length: TARGETS }, uuid);
  const targetId = (): string => pick(targetIds);

  function exact(): Named {
    const text = `${pick(VERBS)}_${noun()}`;
    return { pattern: `^${text}$`, exact: true, name: () => text };
  }
  function prefix(): Named {
    const text = `${pick(VERBS)}_${noun()}_`;
    return { pattern: `^${text}`, exact: false, name: (serial) => `${text}${serial}` };
  }
  function regex(): Named {
    const [one, two, what] = [pick(VERBS), pick(VERBS), noun()];
    switch (mix.scope === 'bare' ? 4 : int(4)) {
      case 0:
        return { pattern: `^(${one}|${two})_${what}_[0-9]+$`, exact: false, name: (serial) => `${two}_${what}_${serial}` };
      case 1:
        return {
          pattern: `^${one}_[a-z]+_${what}(_v[0-9]+)?$`,
          exact: false,
          name: (serial) => `${one}_all_${what}_v${serial}`,
        };
      case 2:
        return {
          pattern: `^(${one}_|${two}_)?${what}(_[a-z0-9]{1,12}){1,3}$`,
          exact: false,
          name: (serial) => `${one}_${what}_x_${serial}`,
        };
      case 3:
        return { pattern: `_${what}_([0-9]+_)*(raw|full)$`, exact: false, name: (serial) => `${one}_${what}_${serial}_full` };
      default:
        return {
          pattern: `^[a-z]+_(${one}|${two})_${what}_[0-9]+$`,
          exact: false,
          name: (serial) => `my_${two}_${what}_${serial}`,
        };
    }
  }

  const named = Array.from({ length: count }, (_, i): Named => {
    const place = ((i * 7 + 3) % 20) / 20;
    return place < mix.exact ? exact() : place < mix.exact + mix.prefix ? prefix() : regex();
  });
  const policies = named.map(
    ({ pattern }, i): Policy => ({
      id: uuid(),
      name: `policy ${i}`,
      description: null,
      target_id: mix.scope === 'spread' && !isOneOfFew(i) ? targetId() : null,
      resource_type: 'tool',
      resource_pattern: pattern,
      effect: int(10) < 7 ? 'allow' : 'deny',
      priority: int(PRIORITIES) * 100,
      enabled: true,
      subjects: [
        mix.scope === 'spread' && !isOneOfFew(i + 5)
          ? { id: `s${i}`, subject_type: 'role', subject_value: `role-${int(ROLES)}` }
          : { id: `s${i}`, subject_type: 'everyone', subject_value: null },
      ],
      created_at: 0,
      updated_at: 0,
    }),
  );

  let serial = 0;
  const caller = (role: string): PrincipalFacts => ({
    sub: uuid(),
    role,
    groups: [`team-${int(30)}`, `office-${int(5)}`],
  });
  function question(): Question {
    serial++;
    const chosen = int(count);
    const [policy, { name }] = [policies[chosen], named[chosen] ?? exact()];
    const role = policy?.subjects[0]?.subject_value ?? `role-${int(ROLES)}`;
    const target = policy?.target_id ?? targetId();
    const at = int(4);
    const kind = at < 2 ? 'hit' : at === 2 ? 'miss' : 'default';
    const resource_name = kind === 'default' ? `${pick(VERBS)}_other${serial}_thing` : name(serial);
    const asking = kind === 'miss' ? `role-${(Number(role.slice(5)) + 1 + int(ROLES - 1)) % ROLES}` : role;
    return { kind, principal: caller(asking), target, object: { resource_type: 'tool', resource_name } };
  }

  return {
    mix,
    policies: fromTheWire(policies),
    questions: (wanted) => fromTheWire(Array.from({ length: wanted }, question)),
    list(wanted) {
      const names = new Set<string>();
      const target = targetId();
      while (names.size < wanted) {
        serial++;
        const { name } = pick(named);
        const text = name(serial);
        names.add(names.has(text) || int(4) === 0 ? `${pick(VERBS)}_other${serial}` : text);
      }
      const objects = [...names].map((resource_name) => ({ resource_type: 'tool' as const, resource_name }));
      return fromTheWire({ principal: caller(`role-${int(ROLES)}`), target, objects });
    },
  };
}

/** Requests and policies that share texts by reference would be compared faster than what comes from a socket and a table. */
const fromTheWire = <T>(value: T): T => JSON.parse(JSON.stringify(value)) as T;
