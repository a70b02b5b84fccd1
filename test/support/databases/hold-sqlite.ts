/** Opens the SQLite file that is its argument, says so, and holds it until it is killed. */
import { openDatabase } from '../../../src/db/database.ts';

const [path] = process.argv.slice(2);
if (path === undefined) throw new Error('usage: hold-sqlite.ts <file>');
await openDatabase({ kind: 'sqlite', path }, async () => {});
process.stdout.write('open');
setInterval(() => {}, 1000);
