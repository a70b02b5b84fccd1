/** Sessions. */
import { get, many, nothing, one, type Paths, paged, parameter } from './operation.ts';
import { described, integer, named, object, orNull, type Schema, strict, string, time, uuid } from './schema.ts';

export const SESSION_SCHEMAS = {
  Session: object({
    id: uuid,
    user_id: string,
    target_id: described('null: every target that its user may use.', orNull(uuid)),
    revision: described('Of the protocol.', string),
    client: described(
      'What the client says it is.',
      named('SessionClient', object({ name: orNull(string), version: orNull(string) })),
    ),
    created_at: time,
    seen_at: described('Of its last request, give or take a minute.', time),
  }),
  Recycling: {
    ...strict(
      { user_id: uuid, target_id: uuid, all: described('Every session. Stands alone.', { type: 'boolean', const: true }) },
      [],
    ),
    minProperties: 1,
  },
  Recycled: object({ recycled: described('How many sessions were reconnected.', integer) }),
} satisfies Record<string, Schema>;

export const SESSION_PATHS: Paths = {
  '/api/sessions': {
    get: get('listSessions', 'Sessions that are open.', 'admin', many('Session', 'Link'), {
      query: [
        ...paged,
        parameter('query', 'user_id', uuid, 'Those of one user.'),
        parameter('query', 'target_id', uuid, 'Those with one target.'),
      ],
    }),
  },
  '/api/sessions/{id}': { delete: { id: 'endSession', summary: 'End a session.', access: 'admin', gives: { 204: nothing() } } },
  '/api/sessions/recycle': {
    post: {
      id: 'recycleSessions',
      summary: 'Reconnect sessions to their targets: those of a user, a target, or both; `all` means every session.',
      access: 'admin',
      takes: 'Recycling',
      gives: { 200: one('Recycled') },
      refuses: [404],
    },
  },
};
