/** Saves findings of differential tests in the form of `cases/`. Copy the useful ones there. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { stringify } from 'yaml';
import { matcher, type World } from './arbitraries.ts';
import { type Answer, decide, decideTarget } from './oracle.ts';

const FOLDER = join(import.meta.dirname, 'failures');

/** The set and its requests with the oracle's answers, as YAML. */
export function casesOf({ policies, patterns, requests }: World): string {
  const matches = matcher(patterns);
  const answer = ({ effect, policyId }: Answer): object => ({
    effect,
    policy: policyId,
    reason: policyId === null ? 'default' : 'matched',
  });
  const cases = requests.flatMap(({ principal, target, object }, i) => {
    const caller = { user: principal.sub, role: principal.role, groups: principal.groups };
    const call = decide(policies, principal, target, object, matches);
    const named = { [object.resource_type]: object.resource_name };
    return [
      { name: `request ${i}`, caller, target, ...named, ...answer(call) },
      { name: `request ${i}, its target`, caller, target, ...answer(decideTarget(policies, principal, target)) },
    ];
  });
  const written = policies.map(({ id, effect, priority, target_id, resource_type, resource_pattern, subjects, enabled }) => ({
    id,
    effect,
    priority,
    target: target_id,
    type: resource_type,
    pattern: resource_pattern,
    subjects: subjects.map(({ subject_type, subject_value }) =>
      subject_value === null ? subject_type : `${subject_type} ${subject_value}`,
    ),
    enabled,
  }));
  return stringify([{ policies: written, cases }], { aliasDuplicateObjects: false });
}

/** Returns the path of the new file. */
export function saveFailure(world: World, seed: number): string {
  mkdirSync(FOLDER, { recursive: true });
  const path = join(FOLDER, `differential-${seed}.yaml`);
  writeFileSync(path, `# Found by the differential test, seed ${seed}, and made as small as it could be.\n${casesOf(world)}`);
  return relative(process.cwd(), path);
}
