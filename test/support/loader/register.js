/** Lets node run the TypeScript of this repository: `node --import ./test/support/loader/register.js`. */
import { register } from 'node:module';

register('./hooks.js', import.meta.url);
