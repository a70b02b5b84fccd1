/** Sessions. */
import { get, many, nothing, one, type Paths, paged, parameter } from './operation.ts';
import { described, integer, object, orNull, type Schema, strict, string, time, uuid } from './schema.ts';

export const SESSION_SCHEMAS = {
  Session: object({
    id: uuid,
    user_id: string,
    target_id: described('null: every target that its user may use.', orNull(uuid)),
    revision: described('Of the protocol.', string),
    client: described('What the client says it is.', object({ name: orNull(string), version: orNull(string) })),
    created_at: time,
    seen_at: described('Of its last request, give or take a minute.', time),
  }),
  Recycling: strict({ user_id: uuid, target_id: uuid }, []),
  Recycled: object({ recycled: described('Sessions that go on with a fresh half at the target.', integer) }),
} satisfies Record<string, Schema>;

export const SESSION_PATHS: Paths = {
  '/api/sessions': {
    get: get('Sessions that are open.', 'admin', many('Session', 'Link'), {
      query: [
        ...paged,
        parameter('query', 'user_id', uuid, 'Those of one user.'),
        parameter('query', 'target_id', uuid, 'Those with one target.'),
      ],
    }),
  },
  '/api/sessions/{id}': { delete: { summary: 'End a session.', access: 'admin', gives: { 204: nothing() } } },
  '/api/sessions/recycle': {
    post: {
      summary: 'Give sessions a fresh half at their targets; all, or those of a user, a target, or both.',
      access: 'admin',
      takes: 'Recycling',
      gives: { 200: one('Recycled') },
      refuses: [404],
    },
  },
};
