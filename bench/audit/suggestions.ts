/** How long suggestions from a log take, how much memory, and how long a caller waits for a recorded decision meanwhile. */
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import express from 'express';
import { v7 as uuidv7 } from 'uuid';
import type { DecisionRecord } from '../../src/audit/records/records.ts';
import { createAuditWriter } from '../../src/audit/writer.ts';
import { makeCounter } from '../../src/db/changes.ts';
import type { Database } from '../../src/db/database.ts';
import type { StoredPolicy } from '../../src/engine/compile/policy.ts';
import { createEngine, loadPolicyModule } from '../../src/engine/engine.ts';
import { createEngineCache } from '../../src/engine/engines.ts';
import { openContext } from '../../src/http/context.ts';
import { createHeavyWork } from '../../src/policies/heavy/heavy.ts';
import { createStoredSet } from '../../src/policies/stored-set.ts';
import { createLogReads } from '../../src/rest/policy-questions/log-reads.ts';
import { createSuggestRoutes } from '../../src/rest/policy-questions/suggest-routes.ts';
import type { Admission } from '../../src/state/admission.ts';
import { createFoundUsers } from '../../src/state/found-users.ts';
import { ADMIN } from '../../test/support/authority.ts';
import { figuresOf } from '../measure.ts';
import { createWorkload, MIXES } from '../workload.ts';
import { KEY, target, user } from './log-rows.ts';

const [USERS, TARGETS, TOOLS] = [200, 20, 400];
const ROLE = 'developer';
const POLICIES = 1_000;
const VICTIM_PER_SECOND = 50;
const CONTROL_MS = 5_000;
/** After everything in the log, so that no recorded request of the victim is part of a suggestion. */
const NOW = Date.UTC(2027, 6, 1);
const RANGE = { from: '2026-01-01T00:00:00Z', to: '2027-06-01T00:00:00Z' };

/** Spreads the users, targets and tools of a log evenly. Every request is for a tool. */
export function evenly(record: DecisionRecord, i: number): DecisionRecord {
  const spread = (factor: number, below: number): number => ((Math.imul(i + 1, factor) >>> 8) * below) >>> 24;
  const of = spread(0x9e3779b1, TARGETS);
  const isNamed = record.resource_type !== null;
  return {
    ...record,
    ...{ user_id: user(spread(0x85ebca6b, USERS)), user_role: ROLE, target_id: target(of), target_name: `target-${of}` },
    resource_type: isNamed ? 'tool' : null,
    resource_name: isNamed ? `tool_${spread(0xc2b2ae35, TOOLS)}` : null,
  };
}

export interface SuggestionFigures {
  readonly asked: 'denied' | 'least privilege';
  readonly seconds: number;
  /** The most resident memory of the process while it worked, less what it had before, in MiB. */
  readonly memory: number;
  /** Milliseconds from a request of the victim to its recorded decision, and the same without the suggestion. */
  readonly victim: { readonly p50: number; readonly p99: number };
  readonly control: { readonly p50: number; readonly p99: number };
  readonly suggested: number;
}

export async function measureSuggestions(database: Database): Promise<SuggestionFigures[]> {
  const module = await loadPolicyModule();
  await makeCounter(database.knex);
  const others = createWorkload(MIXES.mixed, POLICIES).policies.map(
    (policy): StoredPolicy => ({
      ...policy,
      subjects: policy.subjects.map((subject) => ({ ...subject, id: uuidv7() })),
      managed_as: null,
      drift_since: null,
    }),
  );
  const everything = (subject_value: string): StoredPolicy => ({
    ...{ id: uuidv7(), name: subject_value, description: null, enabled: true, priority: 0, created_at: 0, updated_at: 0 },
    ...{ effect: 'allow', target_id: null, resource_type: 'all', resource_pattern: null, managed_as: null, drift_since: null },
    subjects: [{ id: uuidv7(), subject_type: 'role', subject_value }],
  });
  const figures: SuggestionFigures[] = [];
  for (const asked of ['denied', 'least privilege'] as const) {
    const policies = asked === 'denied' ? others : [...others, everything(ROLE)];
    figures.push(await measureOne(database, asked, policies));
  }
  return figures;

  async function measureOne(
    database: Database,
    asked: SuggestionFigures['asked'],
    policies: readonly StoredPolicy[],
  ): Promise<SuggestionFigures> {
    const targets = Array.from({ length: TARGETS }, (_, i) => ({ id: target(i), name: `target-${i}`, enabled: true }));
    const heavy = createHeavyWork({
      database,
      targets: async () => targets,
      findDraft: async () => null,
      readStoredSet: createStoredSet(),
      foundUsers: createFoundUsers(),
    });
    const position = { sequence: 1, nonce: '', revision: 1 };
    const moment = { position, policies, stored: policies, targets, changes: [] };
    const app = express()
      .use((_req, res, next) => {
        openContext(res, { requestId: 'bench', admission: { principal: ADMIN.principal } as Admission });
        next();
      })
      .use(express.json())
      .use(
        createSuggestRoutes({
          ...{ database, module, heavy, engineOf: createEngineCache(module), logReads: createLogReads(), now: () => NOW },
          foundUsers: createFoundUsers(),
          moments: { now: async () => moment },
        }),
      );
    const server = app.listen(0, '127.0.0.1');
    await once(server, 'listening');
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/suggest`;

    const engine = await createEngine({ module, policies: [...policies, everything('victim')], revision: 0 });
    const log = { info: () => {}, warn: (record: object): void => console.warn(record) };
    const writer = createAuditWriter({ database, key: KEY, host: {}, log, now: () => NOW });
    /** Decides and records at a steady rate until the work is done, and returns the times. */
    async function victimDuring(work: Promise<unknown>) {
      const times: number[] = [];
      let done = false;
      const over = work.finally(() => {
        done = true;
      });
      over.catch(() => undefined);
      const waiting: Promise<void>[] = [];
      const began = performance.now();
      for (let n = 0; !done; n++) {
        const due = began + (n * 1_000) / VICTIM_PER_SECOND;
        await sleep(Math.max(0, due - performance.now()));
        waiting.push(decideAndRecord().then(() => void times.push(performance.now() - due)));
      }
      await Promise.all(waiting);
      await over;
      const { p50, p99 } = figuresOf(times);
      return { p50, p99 };
    }
    async function decideAndRecord(): Promise<void> {
      const principal = { sub: user(0), role: 'victim', groups: [] };
      const { effect, reason } = engine.decide(principal, target(0), { resource_type: 'tool', resource_name: 'echo' });
      await writer.decision({
        ...{ id: uuidv7(), created_at: NOW, issuer: 'portcullis', user_id: user(0), user_email: 'victim@example.com' },
        ...{ user_role: 'victim', user_groups: [], target_id: target(0), target_name: 'target-0', method: 'tools/call' },
        ...{ resource_type: 'tool', resource_name: 'echo', arguments: null, effect, reason },
        ...{ policy_id: null, policy_name: null, policy_priority: null, revision: 1 },
        ...{ data_hash: engine.compiled.hash, engine_hash: module.hash },
      });
    }

    await victimDuring(sleep(CONTROL_MS / 2));
    const control = await victimDuring(sleep(CONTROL_MS));
    const body = JSON.stringify({
      ...RANGE,
      ...(asked === 'denied' ? { denied: {}, for: 'role' } : { least_privilege: ROLE }),
    });
    const before = process.memoryUsage.rss();
    let most = before;
    const sampling = setInterval(() => {
      most = Math.max(most, process.memoryUsage.rss());
    }, 20);
    const began = performance.now();
    let seconds = 0;
    const answered = fetch(url, { method: 'POST', headers: { 'content-type': 'application/json' }, body }).then(
      async (answer) => {
        const text = await answer.text();
        seconds = (performance.now() - began) / 1_000;
        if (!answer.ok) throw new Error(`${answer.status}: ${text.slice(0, 500)}`);
        return (JSON.parse(text) as { suggested: unknown[] }).suggested.length;
      },
    );
    const victim = await victimDuring(answered);
    clearInterval(sampling);
    const suggested = await answered;
    await writer.close();
    await heavy.close();
    server.close();
    return { asked, seconds, memory: (most - before) / 2 ** 20, victim, control, suggested };
  }
}
