/** `portcullis policies context`. */
import { writeFileSync } from 'node:fs';
import { printableJson } from '../../../base/printable.ts';
import { DEFAULT_OWNER } from '../../../policies/files/file.ts';
import { formatContext, type PolicyContext, readContext } from '../../../policies/review/context.ts';
import { connect, type Progress, progressOf } from '../../client.ts';
import { type Command, CommandError, counted } from '../../command.ts';
import { dirOf, manifestIn } from '../manifest.ts';
import { changing } from '../policy-folder.ts';

export const contextCommand: Command = {
  name: 'context',
  summary: 'writes the policies of other owners, without names of people, so that lint, test and compare see conflicts with them',
  help: `The file leaves out the policies of the owner of your files. It needs the right bundles:read. docs/policies.md says what it discloses.`,
  options: {
    out: { value: 'FILE', help: 'the file to write (default: policy-context.json)' },
    owner: {
      value: 'NAME',
      help: `the owner of your files (default: the one that policies/portcullis.yaml names, otherwise ${DEFAULT_OWNER})`,
    },
  },
  async run(given, say) {
    const out = given.text('out') ?? 'policy-context.json';
    const owner = given.text('owner') ?? manifestIn(dirOf(given))?.owner ?? DEFAULT_OWNER;
    const path = `/api/policies/context?${new URLSearchParams({ owner })}`;
    const answer = await connect(given).follow<PolicyContext, Progress>('GET', path, undefined, progressOf(say));
    const context = readContext(JSON.stringify(answer));
    if (typeof context === 'string')
      throw new CommandError(`the gateway sent a context that is not allowed: ${context}`, 'no_gateway');
    changing(out, () => writeFileSync(out, printableJson(formatContext(context))));
    const { revision, as_of, policies } = context;
    return {
      text: `wrote ${out}: ${counted(policies.length, 'policy', 'policies')} of other owners at revision ${revision} (${as_of})\n`,
      json: { out, owner, revision, as_of, policies: policies.length },
    };
  },
};
