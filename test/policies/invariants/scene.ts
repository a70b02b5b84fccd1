/** A gateway with an invariant: contractors may never use a tool that matches `exec`, except at the target sandbox. */
import type { ExecutionContext } from 'ava';
import type { InvariantJson } from '../../../src/policies/invariants/invariant.ts';
import type { BrokenInvariant } from '../../../src/policies/invariants/judge.ts';
import { type Person, person, startGateway, type TestGateway } from '../../support/gateway.ts';
import { policyBody } from '../policies.ts';
import { addTarget, policySets } from '../sets.ts';

export interface Refusal {
  readonly code: string;
  readonly detail: string;
  readonly invariant?: BrokenInvariant;
  readonly errors?: readonly { readonly path: string; readonly message: string }[];
}

export const CONTRACTORS = { subject_type: 'group', subject_value: 'contractors' };

export const invariantBody = (over: object = {}, never: object = {}) => ({
  name: 'Contractors run nothing',
  reason: 'Their machines are not managed',
  never: { subjects: [CONTRACTORS], resource_type: 'tool', resource_pattern: 'exec', ...never },
  ...over,
});

/** A policy that breaks the invariant. */
export const breaking = (over: object = {}) =>
  policyBody({ name: 'Run', resource_pattern: '^exec$', subjects: [CONTRACTORS], ...over });

/** A deny that keeps contractors from everything. */
export const denial = (over: object = {}) =>
  policyBody({ name: 'No', resource_type: 'all', effect: 'deny', priority: 20, subjects: [CONTRACTORS], ...over });

/** Calls as one administrator. */
export function asAdmin(gateway: TestGateway, { token }: Pick<Person, 'token'>) {
  const call = async <T>(expected: number, method: string, path: string, body?: unknown): Promise<T> =>
    (await gateway.rest<T>(expected, method, `/api${path}`, { token, ...(body === undefined ? {} : { body }) })).body;
  return {
    call,
    sets: policySets(gateway, token),
    policy: async (body: object): Promise<string> => (await call<{ id: string }>(201, 'POST', '/policies', body)).id,
    makeInvariant: (body: object) => call<InvariantJson>(201, 'POST', '/invariants', body),
    invariants: () => call<InvariantJson[]>(200, 'GET', '/invariants'),
    refused: (method: string, path: string, body?: unknown) => call<Refusal>(409, method, path, body),
  };
}

export async function scene(t: ExecutionContext, databaseUrl: string | null = null) {
  const gateway = await startGateway(t, databaseUrl);
  const admin = await person(gateway, 'admin@example.com');
  const [prod, sandbox] = [await addTarget(gateway, admin.token, 'prod'), await addTarget(gateway, admin.token, 'sandbox')];
  const rest = asAdmin(gateway, admin);
  const invariant = await rest.makeInvariant(invariantBody({}, { except: { targets: [sandbox] } }));
  return { gateway, admin, prod, sandbox, invariant, ...rest };
}
