/** Merges the lists of all targets. Each target's page is decided and recorded by itself; the cursors are sealed into one. */
import { principalKey } from '../../auth/principal.ts';
import { isOverdrawn, type Taken } from '../../base/budgets.ts';
import { signalOf } from '../../base/cancellation.ts';
import { isObject, type JsonObject, type JsonValue } from '../../base/json/json.ts';
import { deferred } from '../../base/promises.ts';
import { type Answer, finalOf, type MessageAnswer, refuse, unavailable } from '../../protocol/answer.ts';
import { CODES, LONG_TEXT, type RpcRequest, resultMessage, wholeText } from '../../protocol/message.ts';
import { methodNotFound } from '../../protocol/operation.ts';
import { type Admission, isDecidedAlike } from '../../state/admission.ts';
import type { RoutedTarget } from '../../targets/target.ts';
import { type Caller, turnsOf } from '../context/context.ts';
import { admissionNow, stillUsable } from '../context/readmission.ts';
import { askedAt, sessionAt } from '../context/upstream-opening.ts';
import { handleRequest } from '../requests/handle-request.ts';
import { fingerprintOf, type Session } from '../sessions/sessions.ts';
import { SEAL_ISSUER, TASKS_REVISION } from '../sessions/tasks.ts';
import { askAmong } from './asking.ts';
import { itemRenaming, readList } from './names.ts';
import type { Plan } from './route.ts';
import { forEachWhile, type LivePosted, noting, recordEmptyAggregate, usableTargets } from './usable.ts';

/** The member of the result's `_meta` that names usable targets whose items are missing. */
const UNAVAILABLE = 'portcullis/unavailable';
/**
 * The cursor of each target's next page; '' for the first page. By target fingerprint: a target that has moved is a different
 * server, and must not get the cursor of the old one.
 */
type Cursors = Readonly<Record<string, string>>;
/** A longer cursor of one target would make the joint cursor too long for a request. */
const MAX_CURSOR_LENGTH = 16 * 1024;
/** The maximum of bytes of all cursors together, as JSON. They are sealed in one piece. */
const MAX_CURSORS_BYTES = 256 * 1024;

/** How many targets are asked at once for one long list. */
const LONG_AT_ONCE = 6;

interface Page {
  readonly target: RoutedTarget;
  /** JSON texts of one or more items; null: the target did not answer. */
  readonly items: readonly string[] | null;
  readonly next: string | null;
  /** The admission that decided which items are shown. null: nothing was decided. */
  readonly decidedBy: Admission | null;
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
  const pages = await readPages(noted, method, targets, (target, now) =>
    pageOf(now, posted, plan, target, cursors?.[fingerprintOf(target)] ?? ''),
  );
  if (pages === null || isUnrecorded()) return unavailable(id);
  // Each target has refused it. A method that the revision does not have gets an error, not an empty list.
  if (plan.member === 'tasks' && session.revision !== TASKS_REVISION) return refuse(id, methodNotFound('stateful'));
  // Each page was decided when it came. Then it has waited for slower targets and for room, and a deny that was answered meanwhile must count.
  const tells = pages.some(tellsSomething);
  const current = tells ? await admissionNow(caller) : caller.admission;
  if (current === null) return unavailable(id);
  if (tells) caller.decidedBy?.(current);
  const shown: string[] = [];
  const next: Record<string, string> = {};
  const missing: string[] = [];
  const before = (target: RoutedTarget): string => cursors?.[fingerprintOf(target)] ?? '';
  let length = 0;
  let cursorsBytes = targets.reduce((sum, target) => sum + bytesOf(before(target)), 0);
  let hasPage = false;
  let isFull = false;
  for (const [index, target] of targets.entries()) {
    const page = pages[index] ?? null;
    if (current !== caller.admission && stillUsable(current, target.name, target) === null) continue;
    if (page !== null && isOutdated(page, current)) {
      next[fingerprintOf(target)] = before(target);
      continue;
    }
    length += lengthOf(page);
    const moreBytes = bytesOf(page?.next ?? '') - bytesOf(before(target));
    const isTooLarge = length > caller.deps.limits.lists.answer || cursorsBytes + moreBytes > MAX_CURSORS_BYTES;
    isFull ||= page === null || (isTooLarge && hasPage);
    if (page?.items === null) missing.push(target.name);
    // Items that would make the answer too large go to the next page.
    else if (page === null || isFull) next[fingerprintOf(target)] = before(target);
    else {
      for (const items of page.items ?? []) shown.push(items);
      if (page.next !== null) next[fingerprintOf(target)] = page.next;
      cursorsBytes += moreBytes;
      hasPage = true;
    }
  }
  const members: string[] = [];
  if (Object.keys(next).length > 0) {
    const sealed = caller.deps.seal.seal('cursor', belongsTo(caller, session, method), next);
    members.push(`,"nextCursor":${JSON.stringify(sealed)}`);
  }
  if (missing.length > 0) members.push(`,"_meta":${JSON.stringify({ [UNAVAILABLE]: missing })}`);
  const begin = `${resultMessage(id, '').slice(0, -1)}{${JSON.stringify(plan.member)}:[`;
  const parts = [begin, ...shown.map((items, index) => (index === 0 ? items : `,${items}`)), `]${members.join('')}}}`];
  return { kind: 'message', status: 200, text: length > LONG_TEXT ? parts : parts.join('') };
}

/**
 * Reads the targets' pages one after the other, several at once, until the answer is full. null: the page was not read. The pages stay in
 * memory until the answer is written, so a long answer waits for room. It holds only a short part of its pages while it waits. Returns null
 * if there was no room in time.
 */
async function readPages(
  caller: Caller,
  method: string,
  targets: readonly RoutedTarget[],
  pageAt: (target: RoutedTarget, now: Caller) => Promise<Page>,
): Promise<(Page | null)[] | null> {
  const { deps, gone, whenAnswered } = caller;
  const { answer, smallAnswer, answerWaitMs } = deps.limits.lists;
  const principal = principalKey(caller.claims);
  /** The characters of the pages that have been read, and the number of pages. */
  let [length, read, pending] = [0, 0, 0];
  let progress = deferred();
  let room: Promise<Taken | null> | null = null;
  const isGoingOn = async (): Promise<boolean> => {
    if (room === null && Math.max(length, deps.lists.lastLength(principal, method)) > smallAnswer) {
      room = deps.lists.toAnswer(principal, answer, AbortSignal.any([signalOf(gone), AbortSignal.timeout(answerWaitMs)]));
      whenAnswered(() => void room?.then((taken) => taken?.giveBack()));
    }
    return (room === null || (await room) !== null) && !gone.aborted;
  };
  // Pages for which the answer probably has no room would be read in vain, and pages that arrive faster than they are read take memory.
  const mustWait = (): boolean =>
    pending > 0 && (length + (pending + 1) * (length / Math.max(1, read)) > answer || (room !== null && pending >= LONG_AT_ONCE));
  const mayBegin = async (): Promise<boolean> => {
    while ((await isGoingOn()) && length <= answer) {
      // Nothing may come between this check and the count: many targets ask at once.
      if (!mustWait()) {
        pending++;
        return true;
      }
      await progress.promise;
    }
    return false;
  };
  const held: Taken[] = [];
  try {
    const pages = await forEachWhile(caller, targets, mayBegin, async (target, now) => {
      try {
        const page = await pageAt(target, now);
        const small = deps.outbox.hold(principal, lengthOf(page));
        if (isOverdrawn(small)) return noPage(target);
        held.push(small);
        length += lengthOf(page);
        read++;
        return page;
      } finally {
        pending--;
        progress.resolve();
        progress = deferred();
      }
    });
    const isCrowdedOut = room !== null && (await room) === null && !gone.aborted;
    return isCrowdedOut ? null : pages;
  } finally {
    deps.lists.note(principal, method, length);
    for (const { giveBack } of held) giveBack();
  }
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
  const sessionTarget = sessionAt(session, target, caller);
  const client = { mode: 'stateful', session } as const;
  let decidedBy: Admission | null = null;
  const decided = (by: Admission): void => {
    decidedBy = by;
  };
  const page = await askAmong(caller, sessionTarget, message.method, async (aimed) => {
    const changeItem = operation.kind === 'list' ? itemRenaming(target.name, message.method) : undefined;
    const final = await finalOf(
      await handleRequest({ ...aimed, decidedBy: decided }, { client, message: own, located, operation, changeItem }),
    );
    const read = final === null ? null : await readPage({ caller, target, method: message.method, member }, final);
    if (read?.items != null) caller.deps.health.answered({ ...askedAt(sessionTarget), list: message.method });
    return read;
  });
  return page === null ? noPage(target) : { ...page, decidedBy };
}

async function readPage(
  {
    caller,
    target,
    method,
    member,
  }: { readonly caller: Caller; readonly target: RoutedTarget; readonly method: string; readonly member: string },
  { text, listed }: Pick<MessageAnswer, 'text' | 'listed'>,
): Promise<Page> {
  if (listed !== undefined) return pageWith(target, listed.items, listed.nextCursor);
  const { message, items } = await readList(target.name, method, member, wholeText(text), turnsOf(caller, target.name));
  const { result, error } = message;
  // A target without this method has no items. A target that the caller may no longer use is not mentioned.
  if (isObject(error) && (error.code === CODES.methodNotFound || error.code === CODES.noTarget))
    return { ...noPage(target), items: [] };
  return pageWith(target, items === null ? null : items === '' ? [] : [items], isObject(result) ? result.nextCursor : undefined);
}

function pageWith(target: RoutedTarget, items: readonly string[] | null, nextCursor: JsonValue | undefined): Page {
  // Clients treat an empty cursor as none.
  const next = typeof nextCursor === 'string' && nextCursor !== '' ? nextCursor : null;
  return (next?.length ?? 0) > MAX_CURSOR_LENGTH ? noPage(target) : { ...noPage(target), items, next };
}

const noPage = (target: RoutedTarget): Page => ({ target, items: null, next: null, decidedBy: null });

/** Whether the caller would possibly see different items now. The client then reads the page again. */
const isOutdated = ({ decidedBy }: Page, current: Admission): boolean =>
  decidedBy !== null && !isDecidedAlike(decidedBy, current);

/** Whether the page shows items, or names a target that has not answered. */
const tellsSomething = (page: Page | null): boolean => page !== null && page.items?.length !== 0;

const lengthOf = (page: Page | null): number => page?.items?.reduce((sum, { length }) => sum + length, 0) ?? 0;

const bytesOf = (cursor: string): number => (cursor === '' ? 0 : Buffer.byteLength(JSON.stringify(cursor)));

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
