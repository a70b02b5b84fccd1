/** Jobs for the tests of worker threads. */
import { threadId } from 'node:worker_threads';
import { AppError } from '../../../src/base/errors.ts';
import { type Desk, serve } from '../../../src/base/work/thread.ts';

serve({
  /** Waits until the gateway answers. */
  ask: async ({ name }: { name: string }, desk: Desk) => (await desk.ask(name)).value,
  async give({ count }: { count: number }, desk: Desk) {
    desk.give(Array.from({ length: count }, (_, i) => i));
    const { items } = await desk.ask<null, number>('items');
    return items.length;
  },
  async fail({ known }: { known: boolean }) {
    throw known ? new AppError('not_found', 'Nothing.', { errors: [{ path: 'a', message: 'b' }] }) : new TypeError('a fault');
  },
  async fill() {
    const kept: object[] = [];
    for (;;) kept.push({ at: kept.length, more: [kept.length] });
  },
  async thread() {
    return threadId;
  },
  async exit() {
    process.exit(3);
  },
  async spin() {
    for (;;);
  },
  async bytes() {
    return { json: new TextEncoder().encode('{}') };
  },
});
