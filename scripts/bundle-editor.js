/** Makes `dist/elements/editor.js`: the code editor of the console with CodeMirror. Writes nothing if the file is already so. */
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { build } from 'esbuild';

const outfile = 'dist/elements/editor.js';
const { outputFiles } = await build({
  ...{ entryPoints: ['elements/editor.js'], outfile, write: false, logLevel: 'warning' },
  ...{ bundle: true, minify: true, format: 'esm', target: 'es2022' },
});
const [made] = outputFiles;
if (!existsSync(outfile) || !readFileSync(outfile).equals(made.contents)) {
  mkdirSync(dirname(outfile), { recursive: true });
  writeFileSync(outfile, made.contents);
}
