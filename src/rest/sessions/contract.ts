/** The REST contract of sessions. */
import Joi from 'joi';
import { model, uuid } from '../../base/validate.ts';
import type { SessionFilter, SessionRow } from '../../sessions/session-store.ts';
import { queryOf } from '../openapi/from-joi.ts';
import { get, many, nothing, type Operations, one, paged } from '../openapi/operation.ts';
import * as s from '../openapi/schema.ts';

export const sessionQuery = {
  user_id: uuid().description('Only sessions of this user.'),
  target_id: uuid().description('Only sessions with this target.'),
};

/** The body must say whose sessions are meant, so that an empty body does not disturb all users. */
export const recycling = model<SessionFilter & { readonly all?: true }>('Recycling', {
  ...sessionQuery,
  all: Joi.valid(true)
    .messages({ 'any.only': 'must be true. To recycle fewer sessions, send user_id or target_id instead' })
    .description('Every session. Must be the only member.'),
})
  .or('all', 'user_id', 'target_id')
  .without('all', ['user_id', 'target_id'])
  .messages({
    'object.missing': 'the body must have user_id, target_id or both; for every session send "all": true',
    'object.without': 'cannot be combined with user_id or target_id: leave them out',
  })
  .meta({ minProperties: 1 });

export type SessionJson = ReturnType<typeof sessionJson>;

export function sessionJson(session: SessionRow) {
  const { name, version } = session.client.clientInfo;
  return {
    id: session.id,
    user_id: session.user_id,
    target_id: session.target_id,
    revision: session.revision,
    client: { name: typeof name === 'string' ? name : null, version: typeof version === 'string' ? version : null },
    created_at: new Date(session.created_at).toISOString(),
    seen_at: new Date(session.seen_at).toISOString(),
  };
}

const Session = s.model<SessionJson>('Session', {
  id: s.uuid,
  user_id: s.string,
  target_id: s.described(
    'null: the session is at the aggregate endpoint, with every target that its user may use.',
    s.orNull(s.uuid),
  ),
  revision: s.described('The revision of the MCP protocol.', s.string),
  client: s.described(
    'The name and version that the client reports.',
    s.model('SessionClient', { name: s.orNull(s.string), version: s.orNull(s.string) }),
  ),
  created_at: s.time,
  seen_at: s.described('The time of the last request, to within about a minute.', s.time),
});
const Recycled = s.model('Recycled', { recycled: s.described('How many sessions were reconnected.', s.integer) });

export const SESSION_OPERATIONS: Operations = {
  'GET /api/sessions': get('listSessions', 'List the open sessions.', many(Session, 'Link'), {
    access: ['read', 'targets:operate'],
    query: [...paged, ...queryOf(sessionQuery)],
  }),
  'DELETE /api/sessions/{id}': { id: 'endSession', access: 'admin', summary: 'End a session.', gives: { 204: nothing() } },
  'POST /api/sessions/recycle': {
    id: 'recycleSessions',
    access: ['targets:operate'],
    summary: 'Reconnect sessions to their targets: the sessions of a user, of a target, or of both; with `all`, every session.',
    takes: recycling,
    gives: { 200: one(Recycled) },
    refuses: [404],
  },
};

export const USER_SESSION_OPERATIONS: Operations = {
  'POST /api/users/{id}/recycle': {
    id: 'recycleSessionsOfUser',
    access: ['targets:operate'],
    summary: "Reconnect the user's sessions to their targets.",
    gives: { 200: one(Recycled) },
  },
};
