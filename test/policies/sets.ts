/** Helpers for tests of the whole policy set over REST: `/api/policies/plan` and similar routes. */

import { formatPolicyFile, type PolicyFile } from '../../src/policies/files/yaml.ts';
import type { PolicyJson } from '../../src/policies/schema.ts';
import type { Answer, TestGateway } from '../support/gateway.ts';

export interface ChangeJson {
  readonly action: string;
  readonly file: string | null;
  readonly policy_id: string | null;
  readonly name: string;
  readonly drift_since: number | null;
  readonly members: readonly string[];
  readonly before: PolicyFile | null;
  readonly after: PolicyFile | null;
}

export interface PlanAnswer {
  readonly revision: number;
  readonly owner_revision: number;
  readonly targets_hash: string;
  readonly changes: readonly ChangeJson[];
  readonly unchanged: number;
  readonly left: readonly {
    readonly file: string;
    readonly policy_id: string;
    readonly name: string;
    readonly drift_since: number | null;
  }[];
  readonly unmanaged: number;
}

export interface RevisionAnswer {
  readonly revision: number;
  readonly actor: { readonly id: string; readonly email: string };
  readonly reason: string | null;
  readonly created: number;
  readonly updated: number;
  readonly deleted: number;
  readonly override: boolean;
  readonly policy: { readonly id: string; readonly name: string } | null;
}

export interface ProblemAnswer {
  readonly code: string;
  readonly detail: string;
  readonly errors?: readonly { path: string; message: string; file?: string; line?: number; column?: number }[];
}

export type Files = Readonly<Record<string, string>>;

export const file = (over: Partial<PolicyFile> = {}): string =>
  formatPolicyFile({
    name: 'Everyone may echo',
    description: null,
    target: null,
    resource_type: 'tool',
    resource_pattern: '^echo$',
    effect: 'allow',
    priority: 10,
    enabled: true,
    subjects: [{ subject_type: 'everyone', subject_value: null }],
    ...over,
  });

/** Calls as one administrator. */
export function policySets(gateway: TestGateway, token: string) {
  const call = <T>(
    expected: number,
    method: string,
    path: string,
    body?: unknown,
    headers: Record<string, string> = {},
  ): Promise<Answer<T>> =>
    gateway.rest<T>(expected, method, `/api/policies${path}`, { token, headers, ...(body === undefined ? {} : { body }) });
  return {
    call,
    exported: async (owner = 'default') =>
      (await call<{ owner: string; files: Files }>(200, 'GET', `/export?owner=${owner}`)).body.files,
    plan: async (files: Files, more: object = {}) => (await call<PlanAnswer>(200, 'POST', '/plan', { files, ...more })).body,
    apply: async (files: Files, more: object = {}) => (await call<PlanAnswer>(200, 'POST', '/apply', { files, ...more })).body,
    /** Returns the refusal of `plan` and `apply`, which must be the same. */
    refused: async (status: number, files: Files, more: object = {}): Promise<ProblemAnswer> => {
      const planned = (await call<ProblemAnswer>(status, 'POST', '/plan', { files, ...more })).body;
      const applied = (await call<ProblemAnswer>(status, 'POST', '/apply', { files, ...more })).body;
      if (planned.detail !== applied.detail) throw new Error(`plan: ${planned.detail}; apply: ${applied.detail}`);
      return applied;
    },
    policies: async () => (await call<PolicyJson[]>(200, 'GET', '')).body,
    revision: async () => Number((await call(200, 'GET', '?limit=1')).headers.get('portcullis-revision')),
  };
}

export async function addTarget(gateway: TestGateway, token: string, name: string): Promise<string> {
  const { body } = await gateway.rest<{ id: string }>(201, 'POST', '/api/targets', {
    token,
    body: { name, url: 'http://127.0.0.1:1/mcp' },
  });
  return body.id;
}
