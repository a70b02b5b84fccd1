/** `/api/logs`. */
import { type Request, type Response, Router } from 'express';
import { type AuditStore, auditStore } from '../../audit/audit-store.ts';
import { chainStore } from '../../audit/chain/tables/chain-store.ts';
import { countStore } from '../../audit/search/count-store.ts';
import type { AuditEntry, AuditPage } from '../../audit/search/entries.ts';
import { FILTER_NAMES, type LogFilter, readFilter } from '../../audit/search/filter.ts';
import { type ExportedEntry, logCsv, logJson, ndjsonOf } from '../../audit/search/log-json.ts';
import type { Erasure } from '../../audit/upkeep/erasure.ts';
import type { Heads } from '../../audit/upkeep/heads.ts';
import type { Genuineness } from '../../audit/verify/genuine.ts';
import { auditLines, lineText } from '../../audit/verify/lines.ts';
import { statementJson } from '../../audit/verify/statement.ts';
import type { verificationStore } from '../../audit/verify/verification-store.ts';
import type { Administer } from '../../auth/caller.ts';
import { AppError, invalidRequest } from '../../base/errors.ts';
import type { InTurn } from '../../base/turns/line.ts';
import { joinInSlices, pause } from '../../base/turns/slices.ts';
import { pathId, validate } from '../../base/validate.ts';
import type { Connection, Database } from '../../db/database.ts';
import { createTurns, eachInTurn, readInTurn } from '../../db/turns.ts';
import { whileAllowed } from '../../http/allowed.ts';
import { callerOf } from '../../http/caller.ts';
import { admissionOf } from '../../http/context.ts';
import { ID_KEY, linkNext, readPage, streamTo } from '../../http/page.ts';
import type { HeavyWork } from '../../policies/heavy/heavy.ts';
import { answerWork } from '../policies/heavy-answer.ts';
import { denialJson, erasing, type VerifiedJson, verificationBody } from './contract.ts';
import { countsOf, readCounts } from './counts.ts';
import { demandOf, readDemand } from './demand.ts';

const PAGE = { defaultLimit: 100, maxLimit: 1000, key: ID_KEY, also: FILTER_NAMES };
/** Rows per read. The number is small because calls may wait for the read. */
const READ_ROWS = 100;
/** How long a request for a page continues if it has found nothing yet. */
const SEARCH_MS = 1_000;
/** The clock of the machine that verifies may be ahead by this much. */
const CLOCKS_MS = 5 * 60_000;
const FORMATS = { ndjson: 'application/x-ndjson', csv: 'text/csv; charset=utf-8' } as const;
type Format = keyof typeof FORMATS;

export interface LogRouteParts {
  readonly database: Database;
  readonly administer: Administer;
  readonly heads: Heads;
  readonly erasure: Erasure;
  readonly verifications: ReturnType<typeof verificationStore>;
  /** Whether a decision of the log is what the gateway wrote. */
  readonly genuineness: (entry: AuditEntry) => Promise<Genuineness>;
  readonly heavy: Pick<HeavyWork, 'answer'>;
  readonly now: () => number;
}

export function createLogRoutes(parts: LogRouteParts): Router {
  const { database, administer, heads, erasure, verifications, genuineness, heavy, now } = parts;
  const router = Router({ caseSensitive: true, strict: true });
  /** A call that records its decision waits for at most one short read, however many administrators read the log. */
  const inTurn = createTurns();

  router.get('/', async (req, res) => {
    const page = readPage(req, PAGE);
    const read = pageInParts(auditStore(database.knex), inTurn, ownerOf(res));
    const { json, next } = await read(filterOf(req), page.limit ?? PAGE.defaultLimit, page.cursor);
    if (next !== null) linkNext(req, res, page, next);
    res.type('json').send(json);
  });

  router.get('/counts', async (req, res) => {
    const owner = ownerOf(res);
    res.json(await countsOf(countStore(database.knex), readCounts(req.query, now()), (work) => inTurn(owner, work)));
  });

  router.get('/demand', async (req, res) => {
    const [owner, store] = [ownerOf(res), auditStore(database.knex)];
    const read = (filter: LogFilter, cursor: string | null) => inTurn(owner, () => store.page(filter, READ_ROWS, cursor));
    res.json(await demandOf(read, readDemand(req.query, now())));
  });

  router.get('/denials', async (req, res) => {
    const page = readPage(req, { ...PAGE, also: [] });
    const read = pageInParts(auditStore(database.knex), inTurn, ownerOf(res), denialJson);
    const { json, next } = await read({ user_id: ownerOf(res), effect: 'deny' }, page.limit ?? PAGE.defaultLimit, page.cursor);
    if (next !== null) linkNext(req, res, page, next);
    res.type('json').send(json);
  });

  /** There is a head for each start of a replica. */
  const checkpointFor = (res: Response): Promise<string> => readInTurn(ownerOf(res), () => heads.checkpoint());

  router.get('/checkpoint', async (_req, res) => {
    res.json({ checkpoint: await checkpointFor(res) });
  });

  async function verified(): Promise<VerifiedJson> {
    const { verification, full } = await verifications.newest();
    return { verification: verification && statementJson(verification), full: full && statementJson(full) };
  }

  router.get('/verification', async (_req, res) => {
    res.json(await verified());
  });

  router.put('/verification', async (req, res) => {
    const statement = validate(verificationBody, req.body);
    // No later report could replace it.
    if (statement.verified_at > now() + CLOCKS_MS)
      throw invalidRequest([{ path: 'verified_at', message: 'is in the future: set the clock of the machine that verified' }]);
    const isSigned = await verifications.report(statement);
    if (!isSigned) throw invalidRequest([{ path: 'mac', message: 'was not made with the master key of this gateway' }]);
    res.json(await verified());
  });

  router.get('/export', async (req, res) => {
    const { limit, cursor } = readPage(req, { defaultLimit: null, maxLimit: 1000, also: [...FILTER_NAMES, 'format'] });
    if (limit !== null || cursor !== null)
      throw invalidRequest([{ path: '', message: 'must not have limit or cursor: an export has no pages' }]);
    const format = formatOf(req.query['format']);
    const filter = filterOf(req);
    const whole = format === 'ndjson' && Object.keys(filter).length === 0;
    const at = now();
    const name = `audit-${new Date(at).toISOString().replaceAll(':', '')}.${format}`;
    const entries = (): AsyncGenerator<ExportedEntry> => allEntries(database.knex, filter);
    const all = async (): Promise<AsyncGenerator<string>> =>
      ndjsonOf(auditLines(database.knex, at, await checkpointFor(res)), lineText);
    const some = (): AsyncGenerator<string> => (format === 'csv' ? logCsv(entries()) : ndjsonOf(entries(), JSON.stringify));
    const texts = whileAllowed(res, eachInTurn(inTurn, ownerOf(res), whole ? await all() : some()));
    await streamTo(res, { 'Content-Type': FORMATS[format], 'Content-Disposition': `attachment; filename="${name}"` }, texts);
  });

  router.post('/erase', async (req, res) => {
    const { user_id } = validate(erasing, req.body);
    const { result: row } = await administer(callerOf(res), 'admin', (trx) => erasure.begin(trx, user_id));
    res.json({ erased: await erasure.finish(row) });
  });

  async function requireEntry(id: unknown): Promise<AuditEntry> {
    const entry = await auditStore(database.knex).find(pathId(id));
    if (!entry) throw new AppError('not_found', 'No decision has this id.');
    return entry;
  }

  router.get('/:id', async (req, res) => {
    res.json(logJson(await requireEntry(req.params.id)));
  });

  router.get('/:id/reproduction', async (req, res) => {
    const { id } = req.params;
    const entry = await requireEntry(id);
    const found = await inTurn(ownerOf(res), () => genuineness(entry));
    // It may have been removed by age since it was read.
    if (found === 'altered') await requireEntry(id);
    await answerWork(req, res, (asked) => heavy.answer('reproduce', { ...logJson(entry), genuineness: found }, asked));
  });

  return router;
}

/** A page as the JSON of the array of its entries. */
interface JsonPage extends Pick<AuditPage, 'next'> {
  readonly json: Buffer;
}

const ownerOf = (res: Response): string => admissionOf(res).principal.sub;

/**
 * Returns a function that reads a page of the log in parts. It writes the JSON in slices, because lists of names make it long. A part that is
 * not full has reached the limit of rows that it may search, or of their length. A page that has something ends there. A page that has
 * nothing continues, because few clients ask for a next page after an empty one.
 */
function pageInParts(store: AuditStore, inTurn: InTurn, owner: string, show: (entry: AuditEntry) => object = logJson) {
  return async (filter: LogFilter, limit: number, cursor: string | null): Promise<JsonPage> => {
    const texts: string[] = [];
    const began = performance.now();
    for (let [count, next] = [0, cursor]; ; ) {
      const wanted = Math.min(READ_ROWS, limit - count);
      const part = await inTurn(owner, () => store.page(filter, wanted, next));
      for (const entry of part.entries) {
        await pause();
        texts.push(`${count++ === 0 ? '[' : ','}${JSON.stringify(show(entry))}`);
      }
      next = part.next;
      const isOver = count > 0 || performance.now() - began > SEARCH_MS;
      if (next === null || count === limit || (part.entries.length < wanted && isOver)) {
        texts.push(count === 0 ? '[]' : ']');
        return { json: await joinInSlices(texts), next };
      }
    }
  };
}

/** Yields the newest entries first. It leaves out records written after it began, however slowly the client reads. */
async function* allEntries(db: Connection, filter: LogFilter): AsyncGenerator<ExportedEntry> {
  const store = auditStore(db);
  const lastOf = new Map((await chainStore(db).extents()).map(({ chain_id, last }) => [chain_id, last]));
  let cursor: string | null = null;
  do {
    const page: AuditPage = await store.page(filter, READ_ROWS, cursor);
    for (const entry of page.entries) {
      const { chain_id, chain_seq } = entry;
      if (chain_id === null || (chain_seq ?? 0) <= (lastOf.get(chain_id) ?? 0)) yield { ...logJson(entry), chain_id, chain_seq };
    }
    cursor = page.next;
  } while (cursor !== null);
}

function filterOf(req: Request): LogFilter {
  const filter = readFilter(req.query);
  if (Array.isArray(filter)) throw invalidRequest(filter);
  return filter as LogFilter;
}

function formatOf(format: unknown): Format {
  if (format === 'ndjson' || format === 'csv') return format;
  throw invalidRequest([{ path: 'format', message: 'must be ndjson or csv' }]);
}
