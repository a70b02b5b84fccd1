/** `portcullis audit`: works with the audit log on the host. */
import { createReadStream, existsSync } from 'node:fs';
import { join } from 'node:path';
import { type ChainKey, createChainKey } from '../audit/chain/chain.ts';
import { type Checkpoint, isCutOff, readCheckpoint } from '../audit/chain/checkpoint.ts';
import { damageOf } from '../audit/verify/damage.ts';
import { createIndexCheck } from '../audit/verify/index-check.ts';
import { auditLines, readLine } from '../audit/verify/lines.ts';
import type { Problem, Report } from '../audit/verify/report.ts';
import { type SignedStatement, signed, statementJson } from '../audit/verify/statement.ts';
import { unreadableIn } from '../audit/verify/unreadable.ts';
import { createVerification, type Verification } from '../audit/verify/verify.ts';
import { createVault, readMasterKeyFile } from '../auth/vault.ts';
import { AppError } from '../base/errors.ts';
import { type Config, configFromProcess, type DatabaseConfig } from '../config/config.ts';
import { type Database, openDatabase } from '../db/database.ts';
import { reproduce } from './bundle.ts';
import { CLIENT_NOTES, CLIENT_OPTIONS, type Client, connect, type Say } from './client.ts';
import { type Command, CommandError, type CommandGroup, EXIT, UsageError } from './command.ts';
import { linesOf } from './lines.ts';

const PROGRESS_MS = 5_000;
const PROBLEMS_SHOWN = 20;

const verifyCommand: Command = {
  name: 'verify',
  summary: 'checks that no record of the audit log was changed, added or removed, and names the first that was',
  help: `This command needs the master key (MASTER_KEY, or DATA_DIR with master.key). For chains written before the key was replaced, it also
needs MASTER_KEY_PREVIOUS. It reads the database that the gateway's environment variables name. A SQLite database belongs to the
running gateway: stop the gateway first, or check an export. It refuses a database that a gateway of this version has not migrated yet.`,
  options: {
    export: {
      value: 'FILE',
      help: 'checks an export (GET /api/logs/export?format=ndjson, without filters) instead of the database',
    },
    checkpoints: {
      value: 'FILE',
      help: `also checks the log against checkpoints kept outside the database. Without them, this command
cannot notice that the newest records were cut off`,
    },
    since: {
      value: 'CHECKPOINT',
      help: `checks only records written after the checkpoint, and that every chain still continues from it.
It does not check older records. CHECKPOINT is a file with one checkpoint, or the checkpoint itself`,
    },
    report: {
      help: `also tells the gateway (--server) the result, so that the console shows it. Sign in as an administrator
with portcullis login, or set PORTCULLIS_TOKEN. The gateway must run`,
    },
    ...CLIENT_OPTIONS,
  },
  notes: 'Exit code: 0 the log is intact, 1 it is not, 2 it could not be checked, or the gateway could not be told.',
  async run(given, say) {
    try {
      const client = given.flag('report') ? connect(given) : null;
      const config = configFromProcess();
      const [began, keys] = [Date.now(), chainKeys(config)];
      const report = await verify(
        { file: given.text('export'), checkpoints: given.text('checkpoints'), since: given.text('since') },
        { config, keys, say },
      );
      if (client !== null && keys[0] !== undefined) await tell(client, signed(keys[0], began, report), inWords(report));
      return { code: report.intact ? EXIT.ok : EXIT.failed, text: inWords(report), json: report };
    } catch (error) {
      if (error instanceof UsageError) throw error;
      throw new CommandError(error instanceof Error ? error.message : String(error), 'not_checked', [], EXIT.usage);
    }
  },
};

export const auditGroup: CommandGroup = {
  path: 'portcullis audit',
  about: 'Checks the audit log, and evaluates recorded decisions again.',
  notes: CLIENT_NOTES,
  commands: [verifyCommand, reproduce],
  options: CLIENT_OPTIONS,
};

interface Options {
  readonly file: string | undefined;
  readonly checkpoints: string | undefined;
  readonly since: string | undefined;
}

interface Verifying {
  readonly config: Config;
  readonly keys: readonly ChainKey[];
  readonly say: Say;
}

/** `found`: what the verification says. It must not be lost if the gateway cannot be told. */
async function tell(client: Client, statement: SignedStatement, found: string): Promise<void> {
  await client.call('PUT', '/api/logs/verification', statementJson(statement)).catch((error: unknown) => {
    throw new CommandError(`${found}The gateway was not told: ${error instanceof Error ? error.message : error}`, 'not_reported');
  });
}

async function verify(options: Options, { config, keys, say }: Verifying): Promise<Report> {
  const verification = createVerification(keys, Date.now());
  // Read the checkpoints first: the log may grow while they are read, and it must contain every record that they name.
  if (options.checkpoints !== undefined) {
    let found = false;
    for await (const checkpoint of checkpointsOf(options.checkpoints, say)) {
      verification.expect(checkpoint);
      found = true;
    }
    // The check would call a log intact whose newest records were cut off.
    if (!found)
      throw new AppError(
        'invalid_request',
        `${options.checkpoints} has no checkpoint: give the file of AUDIT_CHECKPOINTS, or a copy of it.`,
      );
  }
  if (options.since !== undefined) verification.since(await oneCheckpoint(options.since, say));
  const timer = setInterval(() => {
    say(`${verification.taken()} records checked`);
  }, PROGRESS_MS);
  let others: readonly Problem[] = [];
  try {
    if (options.file !== undefined) await takeExport(verification, options.file);
    else {
      const found = await takeDatabase(verification, config);
      if ('unreadable' in found) return { ...verification.finish().report, intact: false, problems: found.unreadable };
      others = found.others;
    }
  } finally {
    clearInterval(timer);
  }
  const { report, keyFits } = verification.finish();
  if (!keyFits) {
    throw new AppError(
      'unavailable',
      'This master key wrote none of the chains: set MASTER_KEY or DATA_DIR to those of the gateway.',
    );
  }
  // If a chain fails its check, nothing that the index hides in it makes this worse. So such a chain has only one problem.
  const known = new Set(report.problems.map(({ chain }) => chain));
  const problems = [...report.problems, ...others.filter(({ chain }) => chain === null || !known.has(chain))];
  return { ...report, intact: problems.length === 0, problems };
}

function chainKeys({ masterKey, previousMasterKeys, dataDir }: Config) {
  const file = join(dataDir, 'master.key');
  // Do not create a master key here: no record was written under a new one.
  const known = masterKey ?? readMasterKeyFile(file);
  if (known === null) {
    throw new AppError(
      'not_found',
      `No master key was found at ${file}: set MASTER_KEY, or set DATA_DIR to the folder with master.key.`,
    );
  }
  const keys = [known, ...previousMasterKeys];
  return keys.map((key) => createChainKey(createVault(key).derive('audit chain')));
}

async function* checkpointsOf(file: string, say: Say): AsyncGenerator<Checkpoint> {
  let at = 0;
  for await (const line of linesOf(createReadStream(file))) {
    at++;
    if (line.trim() === '') continue;
    const checkpoint = readCheckpoint(line);
    if (checkpoint !== null) yield checkpoint;
    else if (isCutOff(line)) say(`${file}, line ${at}: the checkpoint is cut off, so it is skipped`);
    else throw new AppError('invalid_request', `${file}, line ${at}: this is not a checkpoint`);
  }
}

/** Returns the checkpoint that the text is, or the one in the file with this name. */
async function oneCheckpoint(given: string, say: Say): Promise<Checkpoint> {
  const itself = readCheckpoint(given);
  if (itself !== null) return itself;
  const found: Checkpoint[] = [];
  for await (const checkpoint of checkpointsOf(given, say)) found.push(checkpoint);
  const [only] = found;
  if (only !== undefined && found.length === 1) return only;
  throw new AppError(
    'invalid_request',
    `--since takes one checkpoint, but ${given} has ${found.length}: put the line of the one that you mean into a separate file.`,
  );
}

/**
 * Opens the database of the gateway. It never makes one, and never migrates one: after that, a gateway of the older version could not start
 * again.
 */
export async function openExisting(where: DatabaseConfig): Promise<Database> {
  if (where.kind === 'mysql' || existsSync(where.path)) return openDatabase(where, null);
  throw new AppError(
    'not_found',
    `No database was found at ${where.path}: set DATA_DIR or DATABASE_URL to those of the gateway.`,
  );
}

type Unreadable = { readonly unreadable: readonly Problem[] };

/**
 * Returns what else is wrong: decisions that the search index hides, and damage of the database file. If there is something that must not be
 * read, it reads nothing.
 */
async function takeDatabase(
  verification: Verification,
  { database: where }: Config,
): Promise<Unreadable | { readonly others: readonly Problem[] }> {
  const database = await openExisting(where);
  try {
    const unreadable = await unreadableIn(database.knex);
    if (unreadable.length > 0) return { unreadable };
    const index = createIndexCheck(database.knex);
    for await (const line of auditLines(database.knex, Date.now(), null, verification.skipping(), true)) {
      verification.take(line);
      const reading = line.kind === 'decision' ? index.take(line) : null;
      if (reading !== null) await reading;
    }
    return { others: [...(await index.hidden()), ...(await damageOf(database.knex))] };
  } finally {
    await database.close();
  }
}

async function takeExport(verification: Verification, file: string): Promise<void> {
  let at = 0;
  for await (const text of linesOf(createReadStream(file))) {
    at++;
    const line = readLine(text);
    if (line === null || (at === 1) !== (line.kind === 'audit')) {
      const what =
        at === 1 ? 'this is not an export of the whole log (NDJSON, without filters)' : 'this is not a line of an export';
      throw new AppError('invalid_request', `${file}, line ${at}: ${what}`);
    }
    verification.takeExported(line);
  }
  if (at === 0) throw new AppError('invalid_request', `${file} is empty`);
}

function inWords(report: Report): string {
  const { decision, shown, outcome } = report.records;
  const counted = `${report.chains} chains, ${decision} decisions, ${shown} lists, ${outcome} outcomes`;
  const aside = [
    ...(report.erased > 0 ? [`the personal data of ${report.erased} decisions has been erased`] : []),
    ...(report.shortened > 0 ? [`retention has removed old records from ${report.shortened} chains`] : []),
    ...(report.unproven > 0
      ? [`an older version removed records from ${report.unproven} of these chains: nothing proves their age`]
      : []),
    ...(report.since === null ? [] : [`checked only records after the checkpoint of ${new Date(report.since).toISOString()}`]),
    ...(report.unchained > 0 ? [`${report.unchained} records were written before chains existed, and cannot be checked`] : []),
  ].map((line) => `  ${line}\n`);
  if (report.intact) return `The audit log is intact: ${counted}.\n${aside.join('')}`;
  const more = report.problems.length - PROBLEMS_SHOWN;
  const problems = report.problems.slice(0, PROBLEMS_SHOWN).map((problem) => `  ${problemText(problem)}\n`);
  return `The audit log is NOT intact: ${counted}.\n${problems.join('')}${more > 0 ? `  and ${more} more\n` : ''}${aside.join('')}`;
}

function problemText({ problem, chain, seq, record, decision_id, detail }: Problem): string {
  const where = [
    ...(chain === null ? [] : [`chain ${chain}`]),
    ...(seq === null ? [] : [`record ${seq}`]),
    ...(record === null ? [] : [decision_id === null ? record : `${record} of decision ${decision_id}`]),
  ].join(', ');
  return `${problem}: ${where === '' ? '' : `${where}: `}${detail}`;
}
