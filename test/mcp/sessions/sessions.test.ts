import { randomBytes } from 'node:crypto';
import test from 'ava';
import { atOnce, telling } from '../../../src/base/turns/slices.ts';
import { createSeal } from '../../../src/mcp/sessions/seal.ts';
import {
  openAskedId,
  openEventId,
  openSession,
  openState,
  type Session,
  type SessionPair,
  type StateBinding,
  sealAskedId,
  sealEventId,
  sealSession,
  sealState,
  stateBinding,
} from '../../../src/mcp/sessions/sessions.ts';
import { readMessage } from '../../../src/protocol/message.ts';

const [newer, older] = [randomBytes(32), randomBytes(32)];
const seal = createSeal([newer, older]);
const alice = { issuer: 'i', sub: 'alice' };
const session: Session = {
  id: 'r',
  fingerprint: 't',
  binding: 'b',
  upstreamId: 'u',
  revision: '2025-11-25',
  lists: ['tools'],
  replica: null,
  issuedAt: 1000,
};
const linked: SessionPair = { session, link: session };
const HOUR = 3_600_000;

test('a session id opens only for its principal and target, and only for a day', (t) => {
  const text = sealSession(seal, alice, 'one', session);
  t.regex(text, /^[\x21-\x7e]+$/);
  t.notRegex(Buffer.from(text, 'base64url').toString('latin1'), /2025-11-25/);
  t.deepEqual(openSession(seal, alice, 'one', text, 1000 + 23 * HOUR), session);
  t.is(openSession(seal, alice, 'one', text, 1000 + 25 * HOUR), null);
  t.is(openSession(seal, alice, 'two', text, 1000), null);
  t.is(openSession(seal, { ...alice, sub: 'bob' }, 'one', text, 1000), null);
});

test('an edited, truncated or invented text opens nothing', (t) => {
  const text = sealSession(seal, alice, 'one', session);
  for (let at = 0; at < text.length; at += 7) {
    const flipped = `${text.slice(0, at)}${text[at] === 'A' ? 'B' : 'A'}${text.slice(at + 1)}`;
    t.is(openSession(seal, alice, 'one', flipped, 1000), null, `at ${at}`);
  }
  for (const other of [
    '',
    'x',
    text.slice(0, -1),
    `${text}A`,
    `${text}=`,
    `${text.slice(0, 8)} ${text.slice(8)}`,
    'A'.repeat(5000),
  ]) {
    t.is(openSession(seal, alice, 'one', other, 1000), null);
  }
});

test('the newest key seals, older keys open, and foreign keys do nothing', (t) => {
  const byOlder = sealSession(createSeal([older]), alice, 'one', session);
  t.truthy(openSession(seal, alice, 'one', byOlder, 1000));
  const byNewest = sealSession(seal, alice, 'one', session);
  t.is(openSession(createSeal([older]), alice, 'one', byNewest, 1000), null);
  t.throws(() => createSeal([]));
  t.throws(() => createSeal([randomBytes(16)]));
});

test('a handle of one kind is not valid as another kind', (t) => {
  const asked = sealAskedId(seal, alice, 'one', linked, { id: 5, method: 'elicitation/create', permission: 'elicitation' });
  t.is(openSession(seal, alice, 'one', asked, 1000), null);
  t.is(openEventId(seal, alice, 'one', linked, asked), null);
  t.is(openAskedId(seal, alice, 'one', session, sealEventId(seal, alice, 'one', linked, 'e', null) ?? ''), null);
});

test('ids of target requests and events are valid in one session only', (t) => {
  const other = { ...session, id: 's' };
  const asked = sealAskedId(seal, alice, 'one', linked, { id: 5, method: 'elicitation/create', permission: 'elicitation' });
  t.deepEqual(openAskedId(seal, alice, 'one', session, asked), {
    id: 5,
    method: 'elicitation/create',
    permission: 'elicitation',
    upstreamId: 'u',
  });
  t.is(openAskedId(seal, alice, 'one', other, asked), null);
  t.is(openAskedId(seal, alice, 'one', session, 5), null);
  const object = { resource_type: 'tool', resource_name: 'x' } as const;
  const origin = { id: 'a', method: 'tools/call', object, decisionId: 'd' };
  const event = sealEventId(seal, alice, 'one', linked, 'e~1', origin) ?? '';
  t.deepEqual(openEventId(seal, alice, 'one', linked, event), { eventId: 'e~1', origin });
  t.deepEqual(openEventId(seal, alice, 'one', linked, sealEventId(seal, alice, 'one', linked, 'e', null) ?? ''), {
    eventId: 'e',
    origin: null,
  });
  t.is(openEventId(seal, alice, 'one', { session: other, link: other }, event), null);
  // Older versions sealed no object.
  const old = sealEventId(seal, alice, 'one', linked, 'e~1', { ...origin, object: undefined } as never) ?? '';
  t.is(openEventId(seal, alice, 'one', linked, old), null);
  // The upstream session has been replaced: its stream starts again from the beginning.
  const replaced = { session, link: { ...session, upstreamId: 'v' } };
  t.deepEqual(openEventId(seal, alice, 'one', replaced, event), { eventId: null, origin: null });
  t.deepEqual(openEventId(seal, alice, 'one', { session, link: null }, event), { eventId: 'e~1', origin });
});

test('a client can answer with the longest id that the gateway seals, and gets no event id that it cannot send', (t) => {
  const long = { session, link: { ...session, upstreamId: 'u'.repeat(2_900) } };
  const longest = '\0'.repeat(1_024);
  const id = sealAskedId(seal, alice, 'one', long, { id: longest, method: 'elicitation/create', permission: 'elicitation' });
  t.like(readMessage({ jsonrpc: '2.0', id, result: {} }), { kind: 'response', id });
  t.like(readMessage({ jsonrpc: '2.0', id, error: { code: 1, message: 'no' } }), { kind: 'response', id });
  t.is(readMessage({ jsonrpc: '2.0', id, method: 'ping' }).kind, 'invalid');
  t.is(openAskedId(seal, alice, 'one', session, id)?.id, longest);
  const origin = { id: 'i'.repeat(1_000), method: 'tools/list', object: null, decisionId: 'd' };
  const event = sealEventId(seal, alice, 'one', linked, 'e'.repeat(2_000), origin) ?? '';
  t.is(openEventId(seal, alice, 'one', linked, event)?.eventId?.length, 2_000);
  t.is(sealEventId(seal, alice, 'one', linked, 'e'.repeat(8_000), origin), undefined);
});

test('a request state is valid for the same request only, and for ten minutes', (t) => {
  const binding: StateBinding = { fingerprint: 't', method: 'tools/call', name: 'ok', arguments: { a: 1, b: [{ c: 1, d: 2 }] } };
  const text = atOnce(sealState(seal, alice, 'one', binding, 'upstream state', 0));
  const open = (changes: Partial<StateBinding>, now = 0) =>
    atOnce(openState(seal, alice, 'one', { ...binding, ...changes }, text, now));
  t.is(open({}), 'upstream state');
  t.is(open({ arguments: { b: [{ d: 2, c: 1 }], a: 1 } }), 'upstream state');
  t.is(open({}, 11 * 60_000), null);
  for (const change of [
    { fingerprint: 'x' },
    { method: 'prompts/get' },
    { name: 'no' },
    { arguments: { a: 2 } },
    { arguments: undefined },
  ]) {
    t.is(open(change), null, JSON.stringify(change));
  }
  t.is(atOnce(openState(seal, { ...alice, sub: 'bob' }, 'one', binding, text, 0)), null);
  t.is(atOnce(openState(seal, alice, 'two', binding, text, 0)), null);
  const read = (uri: string) => stateBinding('f', 'resources/read', { uri, name: 'x' });
  const ofRead = atOnce(sealState(seal, alice, 'one', read('file:///a'), 'upstream state', 0));
  t.is(atOnce(openState(seal, alice, 'one', read('file:///b'), ofRead, 0)), null, 'a name does not stand for the URI');
});

test('a request state is bound to long arguments in steps', (t) => {
  const members = Array.from({ length: 2_000 }, (_, index) => [`a${index}`, '"'.repeat(500)] as const);
  const binding = (given: readonly (readonly [string, string])[]): StateBinding => ({
    fingerprint: 't',
    method: 'tools/call',
    name: 'ok',
    arguments: { long: 'é'.repeat(500_000), ...Object.fromEntries(given) },
  });
  let pauses = 0;
  const counted = <T>(steps: Generator<undefined, T>): T => {
    pauses = 0;
    return atOnce(telling(steps, () => pauses++));
  };
  const text = counted(sealState(seal, alice, 'one', binding(members), 'upstream state', 0));
  t.true(pauses > 50);
  t.is(counted(openState(seal, alice, 'one', binding(members.toReversed()), text, 0)), 'upstream state');
  t.true(pauses > 50);
  t.is(atOnce(openState(seal, alice, 'one', binding(members.slice(1)), text, 0)), null);
});
