/** The manifest of a folder of policies: what else commands need to know about its files. Pure. */
import Joi from 'joi';
import { OWNER } from './file.ts';
import { type PolicyFileError, readStrictYaml } from './yaml.ts';

export interface Manifest {
  readonly owner: string;
  readonly prune: boolean;
  /** The name of the subfolder with the tests; null: the manifest does not name it. */
  readonly tests: string | null;
}

/** The name of the subfolder with the tests, if the manifest does not name it. */
export const DEFAULT_TESTS = 'tests';
const FOLDER = /^[a-z0-9][a-z0-9._-]{0,62}$/;

export const manifestForm = Joi.object<Partial<Manifest> & Pick<Manifest, 'owner'>>({
  owner: Joi.string()
    .pattern(OWNER)
    .required()
    .messages({ 'string.pattern.base': 'must consist of a-z, 0-9, ".", "_" and "-", and begin with a letter or digit' })
    .description('The owner of the files.'),
  prune: Joi.boolean()
    .meta({ default: false })
    .description('Whether policies of the owner are deleted if their files are missing.'),
  tests: Joi.string()
    .pattern(FOLDER)
    .meta({ default: DEFAULT_TESTS })
    .messages({ 'string.pattern.base': 'must be the name of a subfolder' })
    .description('The subfolder with the tests.'),
})
  .required()
  .messages({ 'object.base': 'must have the key `owner`', 'object.unknown': 'is not a key of a manifest: owner, prune, tests' });

/** As strict as `parsePolicyFile`. */
export function parseManifest(text: string, file: string): Manifest | { readonly errors: readonly PolicyFileError[] } {
  const read = readStrictYaml(text, file, manifestForm, 'only one document is allowed');
  return 'errors' in read ? read : { prune: false, tests: null, ...read.value };
}
