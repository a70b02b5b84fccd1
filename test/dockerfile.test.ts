import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';

test('the image runs as a numbered user that is not root', (t) => {
  const lines = readFileSync(join(import.meta.dirname, '../Dockerfile'), 'utf8').split('\n');
  // The user of earlier stages does not matter.
  const last = lines.slice(lines.findLastIndex((line) => line.startsWith('FROM ')));
  // Kubernetes refuses a name under `runAsNonRoot`, because it cannot tell whether the name is that of root.
  t.regex(last.findLast((line) => line.startsWith('USER ')) ?? '', /^USER [1-9]\d*(:[1-9]\d*)?$/);
});
