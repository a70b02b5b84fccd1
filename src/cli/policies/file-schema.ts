/** The JSON Schema of policy files and test files, with which editors complete and check YAML. */
import { manifestForm } from '../../policies/files/manifest.ts';
import { testFileForm } from '../../policies/files/test-file.ts';
import { policyFileForm } from '../../policies/files/yaml.ts';
import { invariantFileForm } from '../../policies/invariants/invariant-files.ts';
import { schemaOf } from '../../rest/openapi/from-joi.ts';

/** Draft 7, which editors support. */
const $schema = 'http://json-schema.org/draft-07/schema#';

export const POLICY_FILE_SCHEMA = {
  ...{ $schema, title: 'Portcullis policy' },
  description:
    'One policy. Policies are evaluated by priority, the highest first. The first one that matches decides; if none matches, the answer is deny.',
  ...schemaOf(policyFileForm),
};

/** It does not check that the names in a file refer to something. */
export const TEST_FILE_SCHEMA = {
  ...{ $schema, title: 'Portcullis policy tests' },
  description: 'Who may do what, and which policy decides. A request without an expectation must be denied.',
  ...schemaOf(testFileForm),
};

export const INVARIANT_FILE_SCHEMA = {
  ...{ $schema, title: 'Portcullis invariant' },
  description: 'What the policies may never allow. The gateway refuses a change that adds a request which breaks it.',
  ...schemaOf(invariantFileForm),
};

export const MANIFEST_SCHEMA = {
  ...{ $schema, title: 'Portcullis manifest' },
  description: 'What commands need to know about the policy files of the folder.',
  ...schemaOf(manifestForm),
};
