/** Sessions. */
import { get, many, nothing, one, type Paths, paged, parameter } from '../openapi/operation.ts';
import { described, integer, named, object, orNull, type Schema, strict, string, time, uuid } from '../openapi/schema.ts';

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
  Recycling: {
    ...strict(
      {
        user_id: uuid,
        target_id: uuid,
        all: described('Every session. Must be the only member.', { type: 'boolean', const: true }),
      },
      [],
    ),
    minProperties: 1,
  },
  Recycled: object({ recycled: described('How many sessions were reconnected.', integer) }),
} satisfies Record<string, Schema>;

export const SESSION_PATHS: Paths = {
  '/api/sessions': {
    get: get('listSessions', 'List the open sessions.', 'admin', many('Session', 'Link'), {
      query: [
        ...paged,
        parameter('query', 'user_id', uuid, 'Only sessions of this user.'),
        parameter('query', 'target_id', uuid, 'Only sessions with this target.'),
      ],
    }),
  },
  '/api/sessions/{id}': { delete: { id: 'endSession', summary: 'End a session.', access: 'admin', gives: { 204: nothing() } } },
  '/api/sessions/recycle': {
    post: {
      id: 'recycleSessions',
      summary: 'Reconnect sessions to their targets: the sessions of a user, of a target, or of both; with `all`, every session.',
      access: 'admin',
      takes: 'Recycling',
      gives: { 200: one('Recycled') },
      refuses: [404],
    },
  },
};
