/** The gateway of one measurement with its users, and the parts of a bad neighbour. */
import type { Guardian } from '../../test/support/databases/guardian.ts';
import { type Api, apiAt, type Portcullis, startPortcullis, type User } from '../gateway/own.ts';
import type { Instrument } from './instrument.ts';
import type { VictimPlan } from './victim.ts';
import type { Instead, Step, Workload } from './workload.ts';

/** The load generator's traffic goes to the gateway, or, as the control, past it. */
export type Phase = 'neighbour' | 'control';

export interface World {
  readonly phase: Phase;
  readonly api: Api;
  readonly origin: string;
  readonly pid: number;
  /** An administrator's login token. */
  readonly admin: string;
  readonly victim: User;
  readonly neighbour: User;
  /** Origin of `target.ts`. */
  readonly bad: string;
  /** Origin of `discard.ts`. */
  readonly discard: string;
  /** Users may call the tools of the target, and nothing else. */
  addTarget(name: string, document: object): Promise<void>;
}

export interface Attack {
  readonly workload: Workload;
  /** Where the control sends the workload. A process that is the bad neighbour is run by the shell instead. */
  readonly instead: Instead | { readonly shell: string };
  /** Left out: see `callsOf`. */
  readonly victim?: VictimPlan;
}

export interface Neighbour {
  readonly name: string;
  readonly what: string;
  /** Node options and environment of the gateway. */
  readonly nodeOptions?: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
  /** How long it lasts. Left out: as long as all others. */
  readonly ms?: number;
  prepare(world: World, ms: number): Promise<Attack>;
}

export interface WorldParts {
  readonly guardian: Guardian;
  readonly instrument: Instrument;
  /** The target that all use. */
  readonly upstream: string;
  readonly bad: string;
  readonly discard: string;
}

const POLICIES = 10;
/** The gateway takes an empty variable as not set, so these limits have their defaults. */
const DEFAULT_LIMITS = { MCP_RATE_LIMIT: '', API_RATE_LIMIT: '', DENIAL_RATE_LIMIT: '', LOGIN_RATE_LIMIT: '' };

export interface StartedWorld {
  readonly world: World;
  /** This user's calls warm up the gateway. */
  readonly warmer: User;
}

export async function startWorld(
  { guardian, instrument, upstream, bad, discard }: WorldParts,
  databaseUrl: string,
  { nodeOptions = [], env = {} }: Neighbour,
  phase: Phase,
): Promise<StartedWorld> {
  const gateway: Portcullis = await startPortcullis({ guardian, upstream }, databaseUrl, {
    users: 3,
    policies: POLICIES,
    nodeOptions: [...instrument.nodeOptions, ...nodeOptions],
    env: { ...DEFAULT_LIMITS, ...instrument.env, ...env },
  });
  const { origin, pid, admin } = gateway;
  const [victim, neighbour, warmer] = gateway.users;
  if (victim === undefined || neighbour === undefined || warmer === undefined) throw new Error('no users');
  const api = apiAt(origin);
  const world: World = {
    ...{ phase, api, origin, pid, admin, victim, neighbour, bad, discard },
    async addTarget(name, document) {
      const { id } = await api.call<{ id: string }>('POST', '/api/targets', admin, { name, ...document });
      await api.call('POST', '/api/policies', admin, {
        name: `users call ${name}`,
        resource_type: 'tool',
        effect: 'allow',
        priority: 50,
        target_id: id,
        subjects: [{ subject_type: 'role', subject_value: 'user' }],
      });
    },
  };
  return { world, warmer };
}

export const callsOf = ({ url, headers }: User): VictimPlan => ({ url, headers, kind: 'call', tool: 'echo', perSecond: 50 });

export const jsonHeaders = (token: string): Record<string, string> => ({
  authorization: `Bearer ${token}`,
  'content-type': 'application/json',
});

const REVISION = '2025-11-25';

const mcpHeaders = (token: string, revision = REVISION): Record<string, string> => ({
  ...jsonHeaders(token),
  accept: 'application/json, text/event-stream',
  'mcp-protocol-version': revision,
});

export const message = (method: string, params: object, id = 1): string => JSON.stringify({ jsonrpc: '2.0', id, method, params });

/** A body in the session that this loop has opened. */
export const posted = (path: string, token: string, body: string, revision = REVISION): Step => ({
  ...{ method: 'POST', path, body },
  headers: { ...mcpHeaders(token, revision), 'mcp-session-id': '{session}' },
});

/** A message in the session that this loop has opened. */
export const inSession = (path: string, token: string, method: string, params: object): Step =>
  posted(path, token, message(method, params));

/** What later steps know as `{session}`. */
export function opening(path: string, token: string, revision = REVISION): Step[] {
  const params = { protocolVersion: revision, capabilities: {}, clientInfo: { name: 'neighbour', version: '1' } };
  const capture = { name: 'session', pattern: 'mcp-session-id: (\\S+)' };
  const initialized = { jsonrpc: '2.0', method: 'notifications/initialized' };
  return [
    { method: 'POST', path, headers: mcpHeaders(token, revision), body: message('initialize', params), capture },
    posted(path, token, JSON.stringify(initialized), revision),
  ];
}

export const listening = (path: string, token: string): Step => ({
  ...{ method: 'GET', path },
  headers: { ...mcpHeaders(token), accept: 'text/event-stream', 'mcp-session-id': '{session}' },
});
