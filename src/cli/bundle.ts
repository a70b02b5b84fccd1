/** `portcullis bundle` and `portcullis audit reproduce`: export the policies for OPA, and evaluate recorded decisions again. */
import { writeFileSync } from 'node:fs';
import type { LogJson } from '../audit/search/log-json.ts';
import { createEngine, loadPolicyModule } from '../engine/engine.ts';
import type { Question } from '../engine/explain.ts';
import { askedIn, differencesOf, type NotAsked, reproduce as reproduceDecision } from '../policies/reproduction.ts';
import { type PolicyJson, policyFromJson } from '../policies/schema.ts';
import { CLIENT_NOTES, CLIENT_OPTIONS, connect } from './client.ts';
import { type Command, CommandError, type CommandGroup, jsonText, shellWord, UsageError } from './command.ts';
import { changing } from './policies/policy-folder.ts';

const REVISION = /^[0-9]{1,15}$/;
const ID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

const bundle: Command = {
  name: 'bundle',
  summary: 'writes the policies as a bundle that stock OPA reads',
  help: `The bundle contains the rule that people review, the rule that runs, the policies, and their revision:
  opa eval -b portcullis.tar.gz -i input.json data.portcullis.reference.decision
The input is {"sub", "role", "groups", "target", "type", "name"}; data.portcullis.reference.target needs no type and name.
The input names a target by its id.`,
  options: {
    out: { value: 'FILE', help: 'the file to write (default: portcullis.tar.gz)' },
    revision: { value: 'REVISION', help: 'a revision of the history (default: the newest)' },
    signed: { help: 'signs the bundle with the signing key of the gateway; its public keys are at /.well-known/jwks.json' },
  },
  async run(given) {
    const revision = given.text('revision');
    if (revision !== undefined && !REVISION.test(revision)) throw new UsageError(`--revision must be a number, not ${revision}`);
    const query = new URLSearchParams({ ...(revision === undefined ? {} : { revision }), signed: String(given.flag('signed')) });
    const { bytes, headers } = await connect(given).download(`/api/policies/bundle?${query}`);
    const out = given.text('out') ?? 'portcullis.tar.gz';
    changing(out, () => writeFileSync(out, bytes));
    const written = revision ?? headers.get('portcullis-revision') ?? '';
    return {
      text: `wrote ${out}: revision ${written}, ${bytes.length} bytes\n`,
      json: { out, revision: Number(written), bytes: bytes.length },
    };
  },
};

export const reproduce: Command = {
  name: 'reproduce',
  takes: '<decision-id>',
  summary: 'evaluates a recorded decision again, with the policies of its revision',
  help: `This command uses its own engine, which must have the recorded hash. It compares the effect, policy and reason of both decisions,
and the hashes of the policies. It also prints the commands that ask stock OPA the same question.`,
  async run(given) {
    const [id = ''] = given.args;
    if (!ID.test(id)) throw new UsageError(`${id} is not a decision id: GET /api/logs lists the ids`);
    const client = connect(given);
    const [row] = await client.items<LogJson>(`/api/logs?id=${id}`);
    if (row === undefined) throw new CommandError(`no recorded decision has the id ${id}`, 'not_found');
    // Only the gateway has the key that shows whether the record was changed.
    const { result } = await client.call<{ result: NotAsked | 'same' | 'differs' }>('GET', `/api/logs/${id}/reproduction`);
    const question = result === 'damaged' || result === 'unproven' ? result : askedIn(row);
    if (typeof question === 'string') throw new CommandError(whyNot(question, row), question);
    const { policies } = await client.call<{ policies: PolicyJson[] }>('GET', `/api/policies/history/${row.revision}`);
    const engine = await createEngine({
      module: await loadPolicyModule(),
      policies: policies.map((policy) => policyFromJson(policy)),
      revision: row.revision,
    });
    if (engine.engineHash !== row.engine_hash) {
      const hashes = `${row.engine_hash} then, ${engine.engineHash} here`;
      throw new CommandError(
        `a different engine made this decision (${hashes}): run the portcullis of that version`,
        'other_engine',
      );
    }
    const now = reproduceDecision(engine, question);
    const differences = differencesOf(row, now);
    if (differences.length > 0) {
      const each = differences.map(({ member, recorded, reproduced }) => `${member} ${recorded} then, ${reproduced} now`);
      throw new CommandError(`the decision differs from the recorded one: ${each.join('; ')}`, 'not_reproduced');
    }
    const asked = inputOf(question);
    const commands = [
      // Some shells interpret backslashes in `echo`, so this uses printf.
      `printf '%s\\n' ${shellWord(jsonText(asked.input))} > input.json`,
      `portcullis bundle --revision ${row.revision}`,
      `opa eval -b portcullis.tar.gz -i input.json data.portcullis.reference.${asked.rule}`,
    ];
    const why = now.policy_id === null ? 'no policy matched' : `policy ${JSON.stringify(row.policy_name)} (${now.policy_id})`;
    return {
      text: `${now.effect}: ${why}, as recorded at revision ${row.revision}. To ask stock OPA the same:\n\n${commands.join('\n')}\n`,
      json: {
        id,
        revision: row.revision,
        ...now,
        input: asked.input,
        rule: `data.portcullis.reference.${asked.rule}`,
      },
    };
  },
};

function whyNot(not: NotAsked, { reason }: LogJson): string {
  switch (not) {
    case 'erased':
      return 'the decision cannot be evaluated again: the groups of its user have been erased';
    case 'damaged':
      return (
        'the decision cannot be evaluated again: its record is not what the gateway wrote, or parts of it are missing. ' +
        'Find out what was changed with portcullis audit verify'
      );
    case 'unproven':
      return (
        'the decision cannot be evaluated again: the gateway cannot tell whether its record is what it wrote. ' +
        'Set MASTER_KEY_PREVIOUS to the master key of that time. A record that is older than the first chain can never be proven'
      );
    case 'not_by_policy':
      return `no policy made this decision: it was denied for the reason ${reason}`;
  }
}

/** The input of the rule in Rego. */
function inputOf({ principal: { sub, role, groups }, targetId: target, object }: Question) {
  const input = { sub, role, groups, target };
  return object === null
    ? { rule: 'target', input }
    : { rule: 'decision', input: { ...input, type: object.resource_type, name: object.resource_name } };
}

export const bundleGroup: CommandGroup = {
  path: 'portcullis',
  about: 'Exports the policies for OPA.',
  notes: CLIENT_NOTES,
  commands: [bundle],
  options: CLIENT_OPTIONS,
};
