/** Merges the lists of all targets. Each target's page is decided and recorded by itself; the cursors are sealed into one. */
import { principalKey } from '../../auth/principal.ts';
import { isOverdrawn, type Taken } from '../../base/budgets.ts';
import { isObject, type JsonObject } from '../../base/json/json.ts';
import { type Answer, finalText, refuse, unavailable } from '../../protocol/answer.ts';
import { CODES, type RpcRequest, resultMessage } from '../../protocol/message.ts';
import { methodNotFound } from '../../protocol/operation.ts';
import type { RoutedTarget } from '../../targets/target.ts';
import type { Caller } from '../context/context.ts';
import { askedAt, sessionAt } from '../context/upstream-opening.ts';
import { handleRequest } from '../requests/handle-request.ts';
import { fingerprintOf, type Session } from '../sessions/sessions.ts';
import { SEAL_ISSUER, TASKS_REVISION } from '../sessions/tasks.ts';
import { readList } from './names.ts';
import type { Plan } from './route.ts';
import { askAmong, forEach, type LivePosted, noting, recordEmptyAggregate, usableTargets } from './usable.ts';

/** The member of the result's `_meta` that names usable targets whose items are missing. */
const UNAVAILABLE = 'portcullis/unavailable';
/**
 * The cursor of each target's next page; '' for the first page. By target fingerprint: a target that has moved is a different
 * server, and must not get the cursor of the old one.
 */
type Cursors = Readonly<Record<string, string>>;
/** A longer cursor of one target would make the joint cursor too long for a request. */
const MAX_CURSOR_LENGTH = 16 * 1024;

interface Page {
  readonly target: RoutedTarget;
  /** The JSON texts of the items, joined; null: the target did not answer. */
  readonly items: string | null;
  readonly next: string | null;
}

export async function listAggregate(caller: Caller, posted: LivePosted, plan: Plan & { readonly kind: 'list' }): Promise<Answer> {
  const { session, message } = posted;
  const { id, method, params } = message;
  const cursors = readCursors(caller, session, method, params?.cursor);
  if (cursors === 'invalid') {
    return refuse(id, { status: 200, code: CODES.invalidParams, message: 'Invalid params: params.cursor' });
  }
  const targets = usableTargets(caller.admission).filter(
    (target) => cursors === null || Object.hasOwn(cursors, fingerprintOf(target)),
  );
  if (targets.length === 0 && !(await recordEmptyAggregate(caller, method))) return unavailable(id);
  const { noted, isUnrecorded } = noting(caller);
  const held: Taken[] = [];
  const coming = forEach(caller, targets, async (target): Promise<Page> => {
    const page = await pageOf(noted, posted, plan, target, cursors?.[fingerprintOf(target)] ?? '');
    // The page stays in memory until the slowest target has answered, so it counts.
    const room = caller.deps.outbox.hold(principalKey(caller.claims), page.items?.length ?? 0);
    if (isOverdrawn(room)) return { target, items: null, next: null };
    held.push(room);
    return page;
  });
  void Promise.allSettled(coming).then(() => {
    for (const { giveBack } of held) giveBack();
  });
  const pages = await Promise.all(coming);
  if (isUnrecorded()) return unavailable(id);
  // Each target has refused it. A method that the revision does not have gets an error, not an empty list.
  if (plan.member === 'tasks' && session.revision !== TASKS_REVISION) return refuse(id, methodNotFound('stateful'));
  const shown: string[] = [];
  const next: Record<string, string> = {};
  let length = 0;
  for (const { target, items, next: cursor } of pages) {
    length += items?.length ?? 0;
    // Items that would make the answer too large go to the next page.
    if (items !== null && length > caller.deps.limits.answerBytes && shown.length > 0) {
      next[fingerprintOf(target)] = cursors?.[fingerprintOf(target)] ?? '';
    } else if (items !== null) {
      if (items !== '') shown.push(items);
      if (cursor !== null) next[fingerprintOf(target)] = cursor;
    }
  }
  const missing = pages.filter(({ items }) => items === null).map(({ target }) => target.name);
  const members = [`${JSON.stringify(plan.member)}:[${shown.join()}]`];
  if (Object.keys(next).length > 0) {
    const sealed = caller.deps.seal.seal('cursor', belongsTo(caller, session, method), next);
    members.push(`"nextCursor":${JSON.stringify(sealed)}`);
  }
  if (missing.length > 0) members.push(`"_meta":${JSON.stringify({ [UNAVAILABLE]: missing })}`);
  return { kind: 'message', status: 200, text: resultMessage(id, `{${members.join()}}`) };
}

async function pageOf(
  caller: Caller,
  { session, message, located }: LivePosted,
  { member, operation }: Plan & { readonly kind: 'list' },
  target: RoutedTarget,
  cursor: string,
): Promise<Page> {
  const { cursor: _, ...rest } = message.params ?? {};
  const own: RpcRequest = { ...message, params: cursor === '' ? rest : { ...rest, cursor } };
  const sessionTarget = sessionAt(session, target, caller.admission);
  const client = { mode: 'stateful', session } as const;
  const page = await askAmong(caller, sessionTarget, message.method, async (aimed) => {
    const text = await finalText(await handleRequest(aimed, { client, message: own, located, operation }));
    const read = text === null ? null : await readPage(target, message.method, member, text);
    if (read?.items != null) caller.deps.health.answered({ ...askedAt(sessionTarget), list: message.method });
    return read;
  });
  return page ?? { target, items: null, next: null };
}

async function readPage(target: RoutedTarget, method: string, member: string, text: string): Promise<Page> {
  const { message, items } = await readList(target.name, method, member, text);
  const { result, error } = message;
  // A target without this method has no items. A target that the caller may no longer use is not mentioned.
  if (isObject(error) && (error.code === CODES.methodNotFound || error.code === CODES.noTarget))
    return { target, items: '', next: null };
  const nextCursor = isObject(result) ? result.nextCursor : undefined;
  // Clients treat an empty cursor as none.
  const next = typeof nextCursor === 'string' && nextCursor !== '' ? nextCursor : null;
  return (next?.length ?? 0) > MAX_CURSOR_LENGTH ? { target, items: null, next: null } : { target, items, next };
}

const belongsTo = ({ admission }: Caller, session: Session, method: string): string =>
  JSON.stringify([SEAL_ISSUER, admission.principal.sub, session.id, method]);

/** null: start at the first page. */
function readCursors(
  caller: Caller,
  session: Session,
  method: string,
  cursor: JsonObject[string] | undefined,
): Cursors | null | 'invalid' {
  if (cursor === undefined) return null;
  const opened = typeof cursor === 'string' ? caller.deps.seal.open('cursor', belongsTo(caller, session, method), cursor) : null;
  return (opened as Cursors | null) ?? 'invalid';
}
