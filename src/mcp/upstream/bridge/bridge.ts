/**
 * Bridges stateful clients to targets that speak only 2026-07-28, which has no sessions. The bridge keeps the session in this
 * process and turns each of its requests into one of 2026-07-28. Requests to all other targets pass unchanged.
 */

import { errors } from 'undici';
import { onAbort } from '../../../base/cancellation.ts';
import { CODES, errorMessage, isId, type RpcId, resultMessage } from '../../../protocol/message.ts';
import { LOG_LEVELS } from '../../../protocol/mode.ts';
import { jsonAnswer, statusAnswer, streamAnswer } from '../answers.ts';
import { sourceAt } from '../connect.ts';
import type { UpstreamModes } from '../modes.ts';
import type { Upstream, UpstreamAnswer, UpstreamFault, UpstreamRequest } from '../upstream.ts';
import { read } from './messages.ts';
import { createOpening } from './opening.ts';
import type { BridgeParts } from './requests.ts';
import { createRounds } from './rounds.ts';
import { type BridgedSession, createBridgedSessions, isBridged } from './sessions.ts';

export function createBridge({ modes, ...parts }: BridgeParts & { readonly modes: UpstreamModes }): Upstream {
  const { http } = parts;
  const sessions = createBridgedSessions(parts);
  const opening = createOpening(parts, modes, sessions);
  const rounds = createRounds(parts, opening.forget);

  async function proceed(session: BridgedSession, request: UpstreamRequest): Promise<UpstreamAnswer | UpstreamFault> {
    switch (request.method) {
      case 'DELETE':
        session.end();
        return statusAnswer(200);
      case 'GET':
        return stand(session, request);
      case 'POST':
        return receive(session, request);
    }
  }

  async function begin(request: UpstreamRequest): Promise<UpstreamAnswer | UpstreamFault> {
    const message = (await read(request.body ?? '', sourceAt(request)))?.message;
    return message?.kind === 'request' && message.method === 'initialize' ? opening.open(request, message) : http.send(request);
  }

  async function receive(session: BridgedSession, request: UpstreamRequest): Promise<UpstreamAnswer | UpstreamFault> {
    const received = await read(request.body ?? '', sourceAt(request));
    if (received === null) return statusAnswer(400);
    const { message, reading } = received;
    if (message.kind === 'response') {
      const isAwaited = session.questions.reply(message.id, { outcome: message.outcome, located: reading });
      return statusAnswer(isAwaited ? 202 : 400);
    }
    if (message.kind === 'notification') {
      const cancelled = message.method === 'notifications/cancelled' ? message.params?.requestId : undefined;
      if (isId(cancelled)) session.running.get(cancelled)?.abort();
      // Other notifications concern state that a target of 2026-07-28 does not keep.
      return statusAnswer(202);
    }
    session.subscriptions.resume(request);
    const { id, params } = message;
    switch (message.method) {
      case 'ping':
        return done(id);
      case 'initialize':
        return failed(id, CODES.invalidRequest, 'Invalid Request: the session is already open');
      case 'logging/setLevel':
        if (typeof params?.level !== 'string' || !LOG_LEVELS.includes(params.level)) {
          return failed(id, CODES.invalidParams, 'Invalid params: params.level');
        }
        session.logLevel = params.level;
        return done(id);
      case 'resources/subscribe':
      case 'resources/unsubscribe': {
        const { uri } = params ?? {};
        if (typeof uri !== 'string') return failed(id, CODES.invalidParams, 'Invalid params: params.uri');
        if (message.method === 'resources/subscribe') return subscribe(session, request, id, uri);
        await session.subscriptions.unsubscribe(request, uri);
        return done(id);
      }
      default:
        return rounds.forward(session, request, { message, reading });
    }
  }

  return {
    send(request) {
      const { method, target, session: named } = request;
      if (target.transport !== 'streamable-http' || request.stateless !== undefined) return http.send(request);
      if (named === undefined) return method === 'POST' ? begin(request) : http.send(request);
      if (named.upstreamId === null || !isBridged(named.upstreamId)) return http.send(request);
      const session = sessions.use(named.upstreamId, request);
      return session === null ? Promise.resolve(statusAnswer(404)) : proceed(session, request);
    },
    async close() {
      sessions.endAll();
      await http.close();
    },
  };
}

function stand(session: BridgedSession, request: UpstreamRequest): UpstreamAnswer {
  const stream = session.mailbox.stand();
  if (stream === null) return statusAnswer(409);
  onAbort(request.signal, () => stream.abort(new errors.RequestAbortedError()));
  session.subscriptions.listenAgain(request);
  return streamAnswer(stream.events, stream.close);
}

async function subscribe(session: BridgedSession, request: UpstreamRequest, id: RpcId, uri: string): Promise<UpstreamAnswer> {
  if (!session.maySubscribe) return failed(id, CODES.methodNotFound, 'Method not found');
  const subscribed = await session.subscriptions.subscribe(request, uri);
  switch (subscribed) {
    case 'done':
      return done(id);
    case 'full':
      return failed(id, CODES.invalidParams, 'Too many subscriptions');
    case 'unheard':
      return failed(id, CODES.internal, 'The target accepts no subscriptions at the moment');
    case 'unreported':
      return failed(id, CODES.invalidParams, 'The target does not report changes of this resource');
  }
}

function done(id: RpcId): UpstreamAnswer {
  return jsonAnswer(200, resultMessage(id, '{}'));
}

function failed(id: RpcId, code: number, message: string): UpstreamAnswer {
  return jsonAnswer(200, errorMessage(id, { code, message }));
}
