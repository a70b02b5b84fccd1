/** Makes the command line executable. `npm link` does so only when it makes the link, and a new build makes a new file. */
import { chmodSync } from 'node:fs';

chmodSync('dist/cli/portcullis.js', 0o755);
