/** Engines from npm that are asked in this process: casbin and Cedar. `bench/package.json` pins them. */
import type { Policy } from '../../src/engine/compile/policy.ts';
import { isInstalled } from './installed.ts';
import type { Answer, Peer } from './peer.ts';

interface CasbinModel {
  readonly model: Map<string, Map<string, { policy: string[][] }>>;
}
interface Casbin {
  newModelFromString(text: string): CasbinModel;
  newEnforcer(
    model: CasbinModel,
    adapter: { loadPolicy(model: CasbinModel): Promise<void> },
  ): Promise<{
    addFunction(name: string, does: (name: string, pattern: string) => boolean): Promise<void>;
    enforceSync(...request: string[]): boolean;
  }>;
}

const CASBIN_MODEL = `
[request_definition]
r = role, target, type, name
[policy_definition]
p = priority, sub, target, type, pattern, eft
[policy_effect]
e = priority(p.eft) || deny
[matchers]
m = (p.target == "*" || p.target == r.target) && (p.sub == "*" || p.sub == r.role) && (p.type == "all" || p.type == r.type) && matches(r.name, p.pattern)
`;

/** Its own `regexMatch` compiles at every call, so it is given one that does not. */
export const casbin: Peer = {
  name: 'casbin',
  kind: 'embedded',
  upTo: 10_000,
  missing: () => isInstalled('casbin'),
  start: async (policies) => {
    const library = (await import('casbin' as string)) as Casbin;
    const width = String(policies.length).length;
    // Its priorities are compared as texts.
    const rows = policies.map((policy, rank) => [
      String(rank).padStart(width, '0'),
      policy.subjects[0]?.subject_value ?? '*',
      policy.target_id ?? '*',
      policy.resource_type,
      policy.resource_pattern ?? '',
      policy.effect,
    ]);
    const enforcer = await library.newEnforcer(library.newModelFromString(CASBIN_MODEL), {
      loadPolicy: async ({ model }) => {
        model
          .get('p')
          ?.get('p')
          ?.policy.push(...rows);
      },
    });
    const compiled = new Map(rows.map((row) => [row[4] ?? '', new RegExp(row[4] ?? '', 'u')]));
    await enforcer.addFunction('matches', (name, pattern) => compiled.get(pattern)?.test(name) === true);
    return {
      ask: ({ principal, target, object }) => ({
        effect: enforcer.enforceSync(principal.role, target, object.resource_type, object.resource_name) ? 'allow' : 'deny',
      }),
    };
  },
};

interface Cedar {
  preparsePolicySet(id: string, policies: { staticPolicies: Record<string, string> }): { type: string };
  statefulIsAuthorized(call: object): {
    type: string;
    response?: { diagnostics: { reason: string[]; errors: unknown[] } };
  };
}

const PLAIN_PATTERN = /^\^([a-z0-9_]+)(\$?)$/;
const quote = (text: string): string => JSON.stringify(text);

function cedarPolicy({ target_id, subjects, resource_pattern }: Policy): string {
  const conditions: string[] = [];
  if (target_id !== null) conditions.push(`context.target == ${quote(target_id)}`);
  const role = subjects[0]?.subject_value;
  if (role != null) conditions.push(`context.role == ${quote(role)}`);
  const [, text = '', end] = PLAIN_PATTERN.exec(resource_pattern ?? '') ?? [];
  conditions.push(end === '$' ? `context.name == ${quote(text)}` : `context.name like ${quote(`${text}*`)}`);
  return `permit(principal, action, resource) when { ${conditions.join(' && ')} };`;
}

/**
 * Cedar has neither order nor regular expressions. So it is given sets of texts and prefixes alone; each policy is a permit named
 * by its rank, and the least rank among the permits that it reports decides.
 */
export const cedar: Peer = {
  name: 'Cedar (WASM)',
  kind: 'embedded',
  upTo: 10_000,
  missing: () => isInstalled('@cedar-policy/cedar-wasm'),
  expresses: (policies) => policies.every(({ resource_pattern }) => PLAIN_PATTERN.test(resource_pattern ?? '')),
  start: async (policies) => {
    const library = (await import('@cedar-policy/cedar-wasm/nodejs' as string)) as Cedar;
    const staticPolicies = Object.fromEntries(policies.map((policy, rank) => [String(rank), cedarPolicy(policy)]));
    const parsed = library.preparsePolicySet('bench', { staticPolicies });
    if (parsed.type !== 'success') throw new Error(`Cedar does not read the policies: ${JSON.stringify(parsed)}`);
    return {
      ask({ principal, target, object }): Answer {
        const { response } = library.statefulIsAuthorized({
          principal: { type: 'User', id: principal.sub },
          action: { type: 'Action', id: 'use' },
          resource: { type: 'Object', id: object.resource_name },
          context: { target, role: principal.role, name: object.resource_name },
          preparsedPolicySetId: 'bench',
          validateRequest: false,
          entities: [],
        });
        if (response === undefined || response.diagnostics.errors.length > 0) throw new Error('Cedar failed');
        const ranks = response.diagnostics.reason.map(Number);
        const policy = ranks.length === 0 ? undefined : policies[Math.min(...ranks)];
        return { effect: policy?.effect ?? 'deny', policyId: policy?.id ?? null };
      },
    };
  },
};
