/** Says what to do first in a clone without its dependencies. */
import { existsSync } from 'node:fs';

if (!existsSync(new URL('../node_modules/typescript', import.meta.url))) {
  process.stderr.write('The dependencies are not installed. Run this first: npm ci\n');
  process.exit(1);
}
