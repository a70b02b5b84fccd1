/** Does the work that a request of an admitted caller calls for. */
import { principalKey } from '../auth/principal.ts';
import { isOverdrawn, type Taken } from '../base/budgets.ts';
import { turnToCall } from '../base/turns/caller-turns.ts';
import { restInLane } from '../base/turns/lane.ts';
import { partsOf } from '../base/turns/slices.ts';
import { ACCEPTED, type Answer, finalOf, unavailable } from '../protocol/answer.ts';
import { arrayText, CODES, errorMessage, LONG_TEXT, lengthOfText, type MessageText, partsOfText } from '../protocol/message.ts';
import { type Admission, isDecidedAlike } from '../state/admission.ts';
import { answerAggregate, handleAggregate, notifyAggregate, openAggregate } from './aggregate/aggregate.ts';
import { deleteAggregate, getAggregate } from './aggregate/stream.ts';
import type { Caller } from './context/context.ts';
import { readmit, readmitted } from './context/readmission.ts';
import { handleRequest } from './requests/handle-request.ts';
import { handleDelete, handleGet, handleNotification, handleResponse } from './requests/session-messages.ts';
import { AGGREGATE } from './sessions/sessions.ts';
import type { Work } from './work.ts';

export function carryOut(caller: Caller, work: Work): Promise<Answer> {
  const everywhere = caller.targetName === AGGREGATE;
  switch (work.do) {
    case 'request':
      return handleRequest(caller, work.request);
    case 'notification':
      return (everywhere ? notifyAggregate : handleNotification)(caller, work.posted);
    case 'response':
      return (everywhere ? answerAggregate : handleResponse)(caller, work.posted);
    case 'open aggregate':
      return openAggregate(caller, work.message);
    case 'aggregate':
      return handleAggregate(caller, work.posted, work.plan);
    case 'batch':
      return carryOutAll(caller, work.elements);
    case 'GET':
      return (everywhere ? getAggregate : handleGet)(caller, work.session, work.lastEventId);
    case 'DELETE':
      return (everywhere ? deleteAggregate : handleDelete)(caller, work.session);
    case 'answer':
      return Promise.resolve(work.answer);
  }
}

/** A part of the answer to a batch. `decidedBy`: the admission that has decided what it shows; null: nothing was decided. */
interface Part extends Pick<Work, 'id'> {
  readonly text: MessageText;
  readonly decidedBy: Admission | null;
}

const OUTDATED = 'Your access has changed while this answer waited for the others of the batch. Send the request alone.';
const TOO_LARGE = 'The answers to this batch, or to other requests of yours, are too large together. Send the request alone.';

/** The answers to the elements of a batch as one. A notification has none. */
async function carryOutAll(caller: Caller, elements: readonly Work[]): Promise<Answer> {
  const principal = principalKey(caller.claims);
  const held: Taken[] = [];
  const answers = elements.map(async (element): Promise<Part | null> => {
    const { id } = element;
    const ended: (() => void)[] = [];
    let decidedBy: Admission | null = null;
    const own: Caller = {
      ...caller,
      isInBatch: true,
      whenAnswered: (then) => void ended.push(then),
      decidedBy(by) {
        decidedBy = by;
      },
    };
    // Each element takes a turn of its sender, as each call does. Otherwise a batch would begin fifty of them at once.
    ended.push(await turnToCall(principal));
    const begin = async (): Promise<Answer> => {
      const now = await readmitted(own);
      return now === null ? unavailable(id) : carryOut(now, element);
    };
    try {
      const final = await finalOf(await begin());
      if (final === null || element.do === 'notification') return null;
      const { text } = final;
      const room = caller.deps.outbox.hold(principal, await restInLane(principal, memoryOf(text)));
      if (isOverdrawn(room)) return { id, text: errorText(id, TOO_LARGE), decidedBy: null };
      held.push(room);
      return { id, text, decidedBy };
    } finally {
      // An element must not keep what another one waits for.
      for (const then of ended) then();
    }
  });
  // Give back only when all have come: if one fails, others may still arrive.
  void Promise.allSettled(answers).then(() => {
    for (const { giveBack } of held) giveBack();
  });
  const parts = (await Promise.all(answers)).filter((part) => part !== null);
  // Each part has waited for the others, and a deny that was answered meanwhile must count.
  const now = parts.some(({ decidedBy }) => decidedBy !== null) ? await readmit(caller) : null;
  const texts = parts.map(({ id, text, decidedBy }) =>
    decidedBy === null || (now !== null && isDecidedAlike(decidedBy, now)) ? text : errorText(id, OUTDATED),
  );
  return texts.length === 0 ? ACCEPTED : { kind: 'message', status: 200, text: arrayText(texts) };
}

const errorText = (id: Work['id'], message: string): string => errorMessage(id, { code: CODES.internal, message });

/** The bytes that the text takes in memory: with one character outside of ASCII, each character takes two. */
function* memoryOf(text: MessageText): Generator<undefined, number> {
  const length = lengthOfText(text);
  for (const part of partsOf(partsOfText(text), LONG_TEXT)) {
    if (Buffer.byteLength(part) > part.length) return 2 * length;
    if (length > LONG_TEXT) yield;
  }
  return length;
}
