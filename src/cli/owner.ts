/** `portcullis owner`: the limits of owners of policies. */
import Joi from 'joi';
import { Document } from 'yaml';
import { UUID } from '../base/validate.ts';
import { OWNER } from '../policies/files/file.ts';
import { describePolicyFileError, readStrictYaml } from '../policies/files/yaml.ts';
import { limitsForm, type OwnerJson } from '../policies/owner-document.ts';
import { CLIENT_NOTES, CLIENT_OPTIONS, type Client, connect } from './client.ts';
import { type Command, CommandError, type CommandGroup, type Given, UsageError } from './command.ts';
import { readWhole } from './read-text.ts';

/** Checks the name before it becomes part of a path. */
function pathOf(given: Given): string {
  const [name = ''] = given.args;
  if (!OWNER.test(name))
    throw new UsageError(`the name of an owner must consist of a-z, 0-9, ".", "_" and "-"; ${name} does not`);
  return `/api/owners/${name}`;
}

const ON_ONE_LINE = { collectionStyle: 'flow', flowCollectionPadding: false, lineWidth: 0 } as const;
type TargetNames = ReadonlyMap<string, string>;

/** In the form of the file that `set` reads. `names`: the names of targets by id. */
function ownerText({ name, limits }: OwnerJson, names: TargetNames): string {
  const { targets } = limits;
  const named = { ...limits, ...(targets === undefined ? {} : { targets: targets.map((id) => names.get(id ?? '') ?? id) }) };
  const rows = Object.entries(named).map(([member, value]) => `    ${member}: ${new Document(value).toString(ON_ONE_LINE)}`);
  return `${name}${rows.length === 0 ? ': no limits' : ''}\n${rows.join('')}`;
}

/** The holder of an owner may read its limits, but perhaps not the targets. */
function unlessForbidden(error: unknown): TargetNames {
  if (error instanceof CommandError && error.code === 'forbidden') return new Map();
  throw error;
}

const list: Command = {
  name: 'list',
  summary: 'lists the owners that have a record',
  async run(given) {
    const owners = await connect(given).items<OwnerJson>('/api/owners');
    const width = Math.max(...owners.map(({ name }) => name.length));
    const lines = owners.map(
      ({ name, limits, updated_at }) =>
        `${name.padEnd(width)}  ${updated_at}  ${Object.keys(limits).join(', ') || 'no limits'}\n`,
    );
    return { text: lines.length === 0 ? 'No owner has a record.\n' : lines.join(''), json: owners };
  },
};

const show: Command = {
  name: 'show',
  takes: '<owner>',
  summary: 'prints the limits of an owner',
  async run(given) {
    const client = connect(given);
    const owner = await client.call<OwnerJson>('GET', pathOf(given));
    return { text: ownerText(owner, await targetsById(client).catch(unlessForbidden)), json: owner };
  },
};

const set: Command = {
  name: 'set',
  takes: '<owner> <file>',
  summary: 'sets the limits of an owner from a YAML or JSON file; {} limits nothing',
  help: `The file has the members of "limits" (docs/rights.md). Targets may be given by name. Limits that a policy of the owner breaks are
refused.`,
  async run(given) {
    const path = pathOf(given);
    const client = connect(given);
    const written = readLimits(given.args[1] ?? '');
    const names = written.targets?.some(isName) ? await targetsById(client) : new Map();
    const owner = await client.call<OwnerJson>('PUT', path, { limits: withTargetIds(written, names) });
    return { text: ownerText(owner, names), json: owner };
  },
};

const limitsFile = limitsForm.keys({ targets: Joi.array().items(Joi.string().allow(null)) }).required();

interface Written extends Readonly<Record<string, unknown>> {
  readonly targets?: readonly (string | null)[];
}

/** Reads strictly. The gateway checks the values. */
function readLimits(file: string): Written {
  let text: string;
  try {
    text = readWhole(file);
  } catch (error) {
    throw new CommandError(`${file} cannot be read (${(error as NodeJS.ErrnoException).code})`, 'invalid_file');
  }
  const read = readStrictYaml(text, file, limitsFile, 'only one document is allowed');
  if ('errors' in read) throw new CommandError(read.errors.map(describePolicyFileError).join('\n'), 'invalid_file');
  return read.value as Written;
}

const isName = (target: string | null): target is string => target !== null && !UUID.test(target);

async function targetsById(client: Client): Promise<TargetNames> {
  const targets = await client.items<{ id: string; name: string }>('/api/targets');
  return new Map(targets.map(({ id, name }) => [id, name]));
}

/** Replaces the names of targets by their ids. */
function withTargetIds(written: Written, names: TargetNames): Written {
  const { targets } = written;
  if (targets === undefined) return written;
  const ids = new Map([...names].map(([id, name]) => [name, id]));
  const unknown = targets.filter(isName).filter((name) => !ids.has(name));
  if (unknown.length > 0) throw new CommandError(`no target has the name ${unknown.join(', ')}`, 'not_found');
  return { ...written, targets: targets.map((target) => (isName(target) ? (ids.get(target) ?? null) : target)) };
}

const remove: Command = {
  name: 'delete',
  takes: '<owner>',
  summary: 'deletes the record of an owner that has no policies',
  async run(given) {
    await connect(given).call('DELETE', pathOf(given));
    return { text: `deleted the record of ${given.args[0]}\n`, json: { deleted: given.args[0] } };
  },
};

export const ownerGroup: CommandGroup = {
  path: 'portcullis owner',
  about: 'Limits of the policies of each owner.',
  notes: CLIENT_NOTES,
  commands: [list, show, set, remove],
  options: CLIENT_OPTIONS,
};
