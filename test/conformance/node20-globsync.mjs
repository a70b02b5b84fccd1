// Lets the conformance CLI start on Node 20.
// Its bundle links against fs.globSync (Node 22+), which only its `tier-check`
// command calls. We hand that one module a view of `fs` with a stub added.
// Usage: node --import ./node20-globsync.mjs <conformance package>/dist/index.js server ...
import * as fs from 'node:fs';
import { register } from 'node:module';

if (!('globSync' in fs)) {
  const view = [
    "export * from 'node:fs';",
    "export { default } from 'node:fs';",
    "export function globSync() { throw new Error('fs.globSync needs Node 22 or later'); }",
  ].join('\n');
  const viewUrl = `data:text/javascript,${encodeURIComponent(view)}`;
  const hook = `
    export async function resolve(specifier, context, next) {
      if (specifier === 'fs' && /conformance[^/]*\\/dist\\//.test(context.parentURL ?? '')) {
        return { url: ${JSON.stringify(viewUrl)}, shortCircuit: true };
      }
      return next(specifier, context);
    }`;
  register(`data:text/javascript,${encodeURIComponent(hook)}`);
}
