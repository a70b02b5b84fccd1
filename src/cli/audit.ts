/** `portcullis audit`: what is done with the audit log on the host. */
import { createReadStream, existsSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { parseArgs } from 'node:util';
import { createChainKey } from '../audit/chain.ts';
import { type Checkpoint, isCutOff, readCheckpoint } from '../audit/checkpoint.ts';
import { type AuditLine, auditLines, readLine } from '../audit/lines.ts';
import { createVerification, type Problem, type Report, type Verification } from '../audit/verify.ts';
import { createVault, masterKeyFile } from '../auth/vault.ts';
import { type Config, configFromProcess } from '../config.ts';
import { openDatabase } from '../db/database.ts';
import { AppError } from '../errors.ts';
import { reproduceCommand } from './bundle.ts';

const AUDIT_USAGE = `Usage: portcullis audit verify [--export FILE] [--checkpoints FILE] [--since CHECKPOINT] [--json]

Checks that no record of the audit log was changed, added or taken away, and names the first that was.

  --export FILE        checks an export (GET /api/logs/export?format=ndjson, without filters) instead of the database
  --checkpoints FILE   also holds the log to checkpoints that were kept outside of the database: without them, it is not
                       noticed if what came last was cut off
  --since CHECKPOINT   checks only what was written after the checkpoint, and that every chain still goes on from there. It
                       says nothing about older records. CHECKPOINT is a file with one checkpoint, or the checkpoint itself
  --json               prints the result as JSON

It needs the master key (MASTER_KEY, or DATA_DIR with master.key), and MASTER_KEY_PREVIOUS for chains from before the key was
replaced. The database is the one of the gateway's variables. A SQLite database belongs to the running gateway: stop that
first, or check an export.

Exit code: 0 the log is whole, 1 it is not, 2 it could not be checked.
`;

const PROGRESS_MS = 5_000;
const PROBLEMS_SHOWN = 20;

/** The exit code. */
export async function audit(argv: readonly string[]): Promise<number> {
  const [verb, ...rest] = argv;
  if (verb === 'reproduce') return reproduceCommand(rest);
  if (verb === undefined || verb === 'help' || verb === '--help' || rest.includes('--help')) {
    process.stdout.write(AUDIT_USAGE);
    return 0;
  }
  const options = verb === 'verify' ? readOptions(rest) : null;
  if (options === null) {
    process.stderr.write(`portcullis: no such command\n\n${AUDIT_USAGE}`);
    return 2;
  }
  try {
    const report = await verify(options);
    process.stdout.write(options.json ? `${JSON.stringify(report)}\n` : inWords(report));
    return report.intact ? 0 : 1;
  } catch (error) {
    process.stderr.write(`portcullis: ${error instanceof Error ? error.message : String(error)}\n`);
    return 2;
  }
}

interface Options {
  readonly export?: string | undefined;
  readonly checkpoints?: string | undefined;
  readonly since?: string | undefined;
  readonly json: boolean;
}

function readOptions(args: readonly string[]): Options | null {
  const file = { type: 'string' } as const;
  try {
    const { values } = parseArgs({
      args: [...args],
      options: { export: file, checkpoints: file, since: file, json: { type: 'boolean', default: false } },
    });
    return { export: values.export, checkpoints: values.checkpoints, since: values.since, json: values.json ?? false };
  } catch {
    return null;
  }
}

async function verify(options: Options): Promise<Report> {
  const config = configFromProcess();
  const verification = createVerification(chainKeys(config));
  // First of all: the log may grow while they are read, and must have what they say.
  if (options.checkpoints !== undefined) {
    for await (const checkpoint of checkpointsOf(options.checkpoints)) verification.expect(checkpoint);
  }
  if (options.since !== undefined) verification.since(await oneCheckpoint(options.since));
  const timer = setInterval(() => {
    process.stderr.write(`portcullis: ${verification.taken()} records checked\n`);
  }, PROGRESS_MS);
  try {
    if (options.export === undefined) await takeDatabase(verification, config);
    else await takeExport(verification, options.export);
  } finally {
    clearInterval(timer);
  }
  const { report, keyFits } = verification.finish();
  if (!keyFits) {
    throw new AppError(
      'unavailable',
      'No chain was written under this master key: MASTER_KEY or DATA_DIR must be those of the gateway.',
    );
  }
  return report;
}

function chainKeys({ masterKey, previousMasterKeys, dataDir }: Config) {
  const file = join(dataDir, 'master.key');
  // The key of a gateway is not made here: nothing was written under a new one.
  if (masterKey === null && !existsSync(file)) {
    throw new AppError(
      'not_found',
      `There is no master key: set MASTER_KEY, or DATA_DIR to the folder with master.key (not at ${file}).`,
    );
  }
  const keys = [masterKey ?? masterKeyFile(file), ...previousMasterKeys];
  return keys.map((key) => createChainKey(createVault(key).derive('audit chain')));
}

async function* linesOf(file: string): AsyncGenerator<string> {
  const input = createReadStream(file);
  const failed = new Promise<never>((_, reject) => input.once('error', reject));
  failed.catch(() => undefined);
  const lines = createInterface({ input, crlfDelay: Number.POSITIVE_INFINITY })[Symbol.asyncIterator]();
  for (;;) {
    const { done, value } = await Promise.race([lines.next(), failed]);
    if (done) return;
    yield value;
  }
}

async function* checkpointsOf(file: string): AsyncGenerator<Checkpoint> {
  let at = 0;
  for await (const line of linesOf(file)) {
    at++;
    if (line.trim() === '') continue;
    const checkpoint = readCheckpoint(line);
    if (checkpoint !== null) yield checkpoint;
    else if (isCutOff(line))
      process.stderr.write(`portcullis: ${file}, line ${at}: the checkpoint was cut off and is left out\n`);
    else throw new AppError('invalid_request', `${file}, line ${at}: this is no checkpoint`);
  }
}

/** The checkpoint that the text is, or that the file of this name holds. */
async function oneCheckpoint(given: string): Promise<Checkpoint> {
  const itself = readCheckpoint(given);
  if (itself !== null) return itself;
  const found: Checkpoint[] = [];
  for await (const checkpoint of checkpointsOf(given)) found.push(checkpoint);
  const [only] = found;
  if (only !== undefined && found.length === 1) return only;
  throw new AppError(
    'invalid_request',
    `--since takes one checkpoint, and ${given} has ${found.length}: put the line of the one that you mean into a file of its own.`,
  );
}

async function takeDatabase(verification: Verification, { database: where }: Config): Promise<void> {
  if (where.kind === 'sqlite' && !existsSync(where.path)) {
    throw new AppError(
      'not_found',
      `There is no database at ${where.path}: DATA_DIR or DATABASE_URL must be those of the gateway.`,
    );
  }
  const database = await openDatabase(where, async () => {});
  try {
    for await (const line of auditLines(database.knex, Date.now(), null, verification.skips)) verification.take(line);
  } finally {
    await database.close();
  }
}

async function takeExport(verification: Verification, file: string): Promise<void> {
  let at = 0;
  for await (const text of linesOf(file)) {
    at++;
    const line = readLine(text);
    if (line === null || (at === 1) !== (line.kind === 'audit')) {
      const what = at === 1 ? 'this is no export of the whole log (NDJSON, without filters)' : 'this is no line of an export';
      throw new AppError('invalid_request', `${file}, line ${at}: ${what}`);
    }
    expectOwn(verification, line);
    verification.take(line);
  }
  if (at === 0) throw new AppError('invalid_request', `${file} is empty`);
}

/** An export names the heads that it was made from. */
function expectOwn(verification: Verification, line: AuditLine): void {
  const checkpoint = line.kind === 'audit' && line.checkpoint !== null ? readCheckpoint(line.checkpoint) : null;
  if (checkpoint !== null) verification.expect(checkpoint);
}

function inWords(report: Report): string {
  const { decision, shown, outcome } = report.records;
  const counted = `${report.chains} chains, ${decision} decisions, ${shown} lists, ${outcome} outcomes`;
  const aside = [
    ...(report.erased > 0 ? [`${report.erased} decisions have their personal data erased`] : []),
    ...(report.shortened > 0 ? [`${report.shortened} chains were shortened by age`] : []),
    ...(report.unproven > 0 ? [`${report.unproven} of these by an older version: age not proven`] : []),
    ...(report.since === null
      ? []
      : [`checked from the checkpoint of ${new Date(report.since).toISOString()} on; older records were not read`]),
    ...(report.unchained > 0 ? [`${report.unchained} records are from before there were chains, and cannot be checked`] : []),
  ].map((line) => `  ${line}\n`);
  if (report.intact) return `The audit log is whole: ${counted}.\n${aside.join('')}`;
  const more = report.problems.length - PROBLEMS_SHOWN;
  const problems = report.problems.slice(0, PROBLEMS_SHOWN).map((problem) => `  ${problemText(problem)}\n`);
  return `The audit log is NOT whole: ${counted}.\n${problems.join('')}${more > 0 ? `  and ${more} more\n` : ''}${aside.join('')}`;
}

function problemText({ problem, chain, seq, record, decision_id, detail }: Problem): string {
  const place = [
    ...(chain === null ? [] : [`chain ${chain}`]),
    ...(seq === null ? [] : [`record ${seq}`]),
    ...(record === null ? [] : [`${record} of decision ${decision_id}`]),
  ].join(', ');
  return `${problem}: ${place === '' ? '' : `${place}: `}${detail}`;
}
