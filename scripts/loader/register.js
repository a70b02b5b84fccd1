/** Lets node run the TypeScript of this repository: `node --import ./scripts/loader/register.js`. */
import { register } from 'node:module';

register('./hooks.js', import.meta.url);
