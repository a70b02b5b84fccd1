import test from 'ava';
import { createCancellation, signalOf } from '../../src/base/cancellation.ts';

test('each listener is called once with the first reason, and not after it was removed', (t) => {
  const call = createCancellation();
  const heard: string[] = [];
  const leaver = (): void => void heard.push('leaver');
  call.addEventListener('abort', leaver, { once: true });
  call.addEventListener('abort', () => heard.push(`first ${call.aborted} ${call.reason}`), { once: true });
  call.addEventListener('abort', () => heard.push('second'), { once: true });
  call.removeEventListener('abort', leaver);
  t.false(call.aborted);
  call.abort('revoked');
  call.abort('again');
  call.addEventListener('abort', leaver, { once: true });
  t.deepEqual(heard, ['first true revoked', 'second']);
  t.is(call.reason, 'revoked');
});

test('the derived AbortSignal aborts with the same reason, before and after', (t) => {
  const call = createCancellation();
  const before = signalOf(call);
  t.false(before.aborted);
  call.abort('revoked');
  for (const signal of [before, signalOf(call), AbortSignal.any([signalOf(call)])]) {
    t.true(signal.aborted);
    t.is(signal.reason, 'revoked');
  }
  const own = new AbortController().signal;
  t.is(signalOf(own), own);
});
