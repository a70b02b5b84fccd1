/** Sessions. */
import Joi from 'joi';
import { uuid as id, model } from '../../base/validate.ts';
import type { SessionFilter } from '../../sessions/session-store.ts';
import { queryOf } from '../openapi/from-joi.ts';
import { get, many, nothing, one, type Paths, paged } from '../openapi/operation.ts';
import { described, integer, named, object, orNull, type Schema, string, time, uuid } from '../openapi/schema.ts';

export const sessionQuery = {
  user_id: id().description('Only sessions of this user.'),
  target_id: id().description('Only sessions with this target.'),
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

export const SESSION_SCHEMAS = {
  Session: object({
    id: uuid,
    user_id: string,
    target_id: described(
      'null: the session is at the aggregate endpoint, with every target that its user may use.',
      orNull(uuid),
    ),
    revision: described('The revision of the MCP protocol.', string),
    client: described(
      'The name and version that the client reports.',
      named('SessionClient', object({ name: orNull(string), version: orNull(string) })),
    ),
    created_at: time,
    seen_at: described('The time of the last request, to within about a minute.', time),
  }),
  Recycled: object({ recycled: described('How many sessions were reconnected.', integer) }),
} satisfies Record<string, Schema>;

export const SESSION_PATHS: Paths = {
  '/api/sessions': {
    get: get('listSessions', 'List the open sessions.', 'admin', many('Session', 'Link'), {
      query: [...paged, ...queryOf(sessionQuery)],
    }),
  },
  '/api/sessions/{id}': { delete: { id: 'endSession', summary: 'End a session.', access: 'admin', gives: { 204: nothing() } } },
  '/api/sessions/recycle': {
    post: {
      id: 'recycleSessions',
      summary: 'Reconnect sessions to their targets: the sessions of a user, of a target, or of both; with `all`, every session.',
      access: 'admin',
      takes: recycling,
      gives: { 200: one('Recycled') },
      refuses: [404],
    },
  },
};
