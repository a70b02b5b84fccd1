/** Fifty-six ways to get past the gateway, and the tests that show where each of them ends. */

export interface Case {
  readonly what: string;
  /** File under `test/` -> titles. */
  readonly shownBy: Readonly<Record<string, readonly string[]>>;
}

const HTTP = 'mcp/adversarial/adversarial-http.test.ts';
const MESSAGES = 'mcp/adversarial/adversarial-messages.test.ts';
const SESSIONS = 'mcp/adversarial/adversarial-sessions.test.ts';
const UPSTREAM = 'mcp/adversarial/adversarial-upstream.test.ts';
const RESOURCES = 'mcp/adversarial/adversarial-resources.test.ts';
const LOAD = 'mcp/adversarial/adversarial-load.test.ts';
const GATEWAY = 'mcp/adversarial/adversarial-gateway.test.ts';

const refused = (...what: string[]): string[] => what.map((name) => `400 and nothing forwarded: ${name}`);

export const CASES: ReadonlyMap<number, Case> = new Map<number, Case>([
  [
    1,
    {
      what: 'A member is there twice, plainly or by an escape, so that one reader takes the first and another the last.',
      shownBy: {
        [MESSAGES]: refused('a second name', 'a second name by an escape', 'a second method', 'second params', 'a second uri'),
        'base/json/json.test.ts': ['refuses a repeated name', 'refuses a name repeated by an escape'],
      },
    },
  ],
  [
    2,
    {
      what: 'A member is a protocol member only to readers that fold case, in ASCII or beyond.',
      shownBy: {
        [MESSAGES]: refused('Name beside name', 'paramſ', 'a Kelvin sign', 'Method', '__proto__'),
        'protocol/message.test.ts': ['names that a case-insensitive receiver takes for protocol names are refused'],
      },
    },
  ],
  [
    3,
    {
      what: 'A method is written almost like one that is served.',
      shownBy: {
        [MESSAGES]: [
          'methods are compared byte for byte, and unknown methods are not forwarded',
          'unknown methods of 2026-07-28 are not forwarded and get HTTP 404',
        ],
      },
    },
  ],
  [
    4,
    {
      what: 'A name differs from an allowed one in case, blanks, invisible characters or normalization.',
      shownBy: {
        [MESSAGES]: ['names are compared byte for byte'],
        'attack/names.test.ts': ['list, call and audit log agree on every name'],
      },
    },
  ],
  [
    5,
    {
      what: 'A batch comes where its revision has none.',
      shownBy: {
        [MESSAGES]: [
          'a batch in a session of a later revision is refused',
          'a request is refused if header and body name different versions, and the error names unknown versions',
          ...refused('a batch', 'a nested batch'),
        ],
      },
    },
  ],
  [
    6,
    {
      what: 'A batch of 2025-03-26 mixes what is allowed with what is not.',
      shownBy: { [MESSAGES]: ['each element of a batch of 2025-03-26 is decided and forwarded by itself'] },
    },
  ],
  [
    7,
    {
      what: 'A batch of 2025-03-26 is endless, opens a session, or repeats an id.',
      shownBy: { [MESSAGES]: ['a batch that no revision allows is refused as a whole'] },
    },
  ],
  [
    8,
    {
      what: 'The headers of 2026-07-28 name another method or object than the body, or nothing.',
      shownBy: { [MESSAGES]: ['2026-07-28: a request is refused if a header is missing or differs from the body'] },
    },
  ],
  [
    9,
    {
      what: 'A name in a header is encoded wrongly, twice, or stands for another one.',
      shownBy: { [MESSAGES]: ['2026-07-28: a request is refused if a header is missing or differs from the body'] },
    },
  ],
  [
    10,
    {
      what: 'A header that has one value is sent with two, of which Node keeps the first or joins both.',
      shownBy: {
        [HTTP]: ['a header that may appear only once is refused when it appears twice'],
        'auth/tokens.test.ts': ['two Authorization headers are refused, whichever comes first'],
      },
    },
  ],
  [
    11,
    {
      what: 'Header and body speak different revisions of the protocol, or neither says which.',
      shownBy: {
        [MESSAGES]: [
          'a request is refused if header and body name different versions, and the error names unknown versions',
          '2026-07-28: a request is refused if a header is missing or differs from the body',
        ],
      },
    },
  ],
  [
    12,
    {
      what: 'Other members than the one that names the tool name another tool.',
      shownBy: { [MESSAGES]: ['only params.name names the tool'] },
    },
  ],
  [
    13,
    {
      what: 'A name is no text, or is a property that every object inherits.',
      shownBy: {
        [MESSAGES]: ['a name that is not a valid name is refused before any decision', 'names are compared byte for byte'],
        'attack/names.test.ts': ['list, call and audit log agree on every name'],
      },
    },
  ],
  [
    14,
    {
      what: 'A URI means another resource than it says: dot segments, encodings, other forms of scheme, host and tail.',
      shownBy: {
        [MESSAGES]: ['resources/read: a URI with more than one reading is denied and audited as such'],
        'attack/regex-cost.test.ts': ['a URI that can be decoded again is not canonical'],
      },
    },
  ],
  [
    15,
    {
      what: 'Such a URI comes in a subscription, a listening filter, a completion or an argument.',
      shownBy: {
        [MESSAGES]: [
          'resources/subscribe: a URI with more than one reading is denied and audited as such',
          'a URI with more than one reading is removed from a listening filter before the target is asked',
          'completions for denied, unknown and non-canonical references get the same answer',
          'an argument of a prompt is treated as data, even if it looks like a URI',
        ],
        'protocol/listen.test.ts': ['the target gets only the allowed part of a listening filter, and that part is recorded'],
      },
    },
  ],
  [
    16,
    {
      what: 'A template that may be seen is filled in with what leads elsewhere, or read as it stands.',
      shownBy: { [RESOURCES]: ['a visible template gives access to none of its resources, and its text is not a resource'] },
    },
  ],
  [
    17,
    {
      what: 'A host, path or name is written in letters that look like others.',
      shownBy: {
        [MESSAGES]: [
          'hosts and paths written in lookalike letters are different hosts and paths',
          'names are compared byte for byte',
        ],
      },
    },
  ],
  [
    18,
    {
      what: 'The answer to an allowed read brings contents of other URIs.',
      shownBy: {
        [RESOURCES]: ['reading an allowed directory returns no contents of a denied resource'],
        'mcp/filter/filter.test.ts': ['contents of URIs other than the requested one are decided'],
      },
    },
  ],
  [
    19,
    {
      what: 'The id of a request is missing, no id, changed by a double, or equal to another but for its type.',
      shownBy: {
        [MESSAGES]: [
          ...refused('no id', 'id null', 'id 1.5', 'id 1e400', 'id 2^60', 'id {}', 'an id that is an array'),
          'the ids 1 and "1" are different',
        ],
      },
    },
  ],
  [
    20,
    {
      what: 'A request is disguised as a notification, or a notification is unknown.',
      shownBy: {
        [MESSAGES]: [
          ...refused('no id', 'no id on a subscription'),
          'a notification that is unknown, or has no session, is accepted and dropped',
          'a request is refused if header and body name different versions, and the error names unknown versions',
        ],
      },
    },
  ],
  [
    21,
    {
      what: 'A session id is used by another user, on another target, or edited, cut, or made with another key.',
      shownBy: {
        [SESSIONS]: [
          'a foreign, edited, truncated or invented session id, or one of another target, gets the answer of an unknown session',
          'a session ends after a day, or when its target is replaced',
        ],
        'mcp/sessions/sessions.test.ts': ['the newest key seals, older keys open, and foreign keys do nothing'],
      },
    },
  ],
  [
    22,
    {
      what: "Somebody ends another's session, listens to it, or answers what its target asked.",
      shownBy: {
        [SESSIONS]: [
          'a caller can neither end nor listen to the session of another caller',
          'a request of the target can be answered only in its own session',
        ],
      },
    },
  ],
  [
    23,
    {
      what: "Somebody cancels another's request, or the opening of a session.",
      shownBy: {
        [SESSIONS]: ['a cancellation reaches only the session that it was sent in, and is dropped without a session'],
      },
    },
  ],
  [
    24,
    {
      what: "Somebody goes on with another's stream, or with one of another session.",
      shownBy: { [SESSIONS]: ['only its own session can resume a stream from an event id'] },
    },
  ],
  [
    25,
    {
      what: 'The state of an exchange comes back from another user, with another tool, arguments or target, too late, or edited.',
      shownBy: { [SESSIONS]: ['a request state is accepted only for the request that it belongs to'] },
    },
  ],
  [
    26,
    {
      what: 'The state of an exchange comes back after the right to it was lost.',
      shownBy: {
        [SESSIONS]: ['a request state is accepted only for the request that it belongs to'],
        'sessions/streams.test.ts': ['each round of an exchange gets its own decision (case 46)'],
      },
    },
  ],
  [
    27,
    {
      what: "Somebody uses, ends, listens to or lists another's tasks at a target that knows both as one.",
      shownBy: {
        'mcp/sessions/tasks.test.ts': [
          'stateful: a foreign, edited or invented task id, or one of another target, is unknown and the target is not asked',
          'stateless: a foreign, edited or invented task id, or one of another target, is unknown and the target is not asked',
          "2025-11-25: a list of tasks shows the caller's tasks of tools that it may call",
          "2026-07-28: the target gets only the caller's own tasks of a listening filter",
        ],
        'mcp/tasks-sdk.test.ts': ["another user's client finds no task by any id"],
      },
    },
  ],
  [
    28,
    {
      what: 'Completions tell which prompts, templates and resources there are.',
      shownBy: {
        [MESSAGES]: ['completions for denied, unknown and non-canonical references get the same answer'],
        [RESOURCES]: ['completions offer no denied resource'],
        'mcp/clients.test.ts': [
          '2025-11-25: completions are decided and filtered',
          '2026-07-28: completions are decided and filtered',
        ],
      },
    },
  ],
  [
    29,
    {
      what: 'Updates come of a resource that may not be read, or no longer, or that lies below the one subscribed to.',
      shownBy: {
        [SESSIONS]: ['each update of a resource is decided, and delivered only while the resource may be read'],
        'protocol/listen.test.ts': [
          'a listening stream carries only its own requested notifications, about resources that the caller may read now',
        ],
        'mcp/clients.test.ts': ['an update of a resource is decided when it is delivered'],
      },
    },
  ],
  [
    30,
    {
      what: 'A result, a prompt or a tool links to a resource that may not be read.',
      shownBy: {
        [RESOURCES]: [
          'a tool result loses its links to denied resources, and nothing else',
          'a tool in a list does not point to a denied resource',
          'prompt messages lose their links to denied resources',
        ],
      },
    },
  ],
  [
    31,
    {
      what: 'Names of targets and tools are put together so that they come apart in another place.',
      shownBy: {
        'mcp/aggregate/aggregate-names.test.ts': [
          'a joined name splits into the same target and name, whatever the target calls it',
          'names of two targets never become the same joined name',
          'a name without a target is not a joined name',
        ],
        'mcp/aggregate/aggregate.test.ts': ['a name without a target is refused before any target is asked'],
      },
    },
  ],
  [
    32,
    {
      what: 'A page shows nothing but goes on, or a cursor is forged or belongs to another.',
      shownBy: {
        [UPSTREAM]: ['a page without visible items keeps its cursor, and the cursor is passed on unchanged'],
        'mcp/aggregate/aggregate.test.ts': [
          'a page on which everything is denied is empty and has a next page',
          'a cursor is valid only for its caller, its session and its method',
        ],
      },
    },
  ],
  [
    33,
    {
      what: 'A body is too large, too deep, too full, packed, or never ends.',
      shownBy: {
        [LOAD]: [
          'bodies that are too large, too deep, too many or compressed are refused while other requests are served',
          'a client that does not finish its request is disconnected in time while others are served',
        ],
        [HTTP]: ['a body above the limit is refused, with or without Content-Length, while other requests are served'],
        'base/json/json.test.ts': ['depth and number of values are bounded, without a deep stack'],
      },
    },
  ],
  [
    34,
    {
      what: 'A target writes lines of the event stream into its texts, or cuts its stream where a reader stumbles.',
      shownBy: {
        [UPSTREAM]: ['each event to the client holds exactly one message, whatever the target writes into its stream'],
        'protocol/sse.test.ts': [
          'the events are the same wherever the bytes are split',
          'a written message is read as one event with the same JSON, whatever it holds',
        ],
      },
    },
  ],
  [
    35,
    {
      what: 'A target answers another request, twice, endlessly, never, or with what is no answer.',
      shownBy: {
        [UPSTREAM]: [
          "the client gets -32603 in the gateway's words when the target answers with another id",
          "the client gets -32603 in the gateway's words when the target answers with a batch",
          'the first of two answers counts, and notifications of other requests are dropped',
          'the size of answers and events, and the silence of a target, are limited',
          'an error of the target is passed on as its answer',
        ],
        [MESSAGES]: ['a denied call gets a JSON-RPC error and is not forwarded'],
      },
    },
  ],
  [
    36,
    {
      what: 'A target redirects, asks for a login, or sets cookies.',
      shownBy: { [UPSTREAM]: ['challenges, cookies and redirects of the target do not reach the client'] },
    },
  ],
  [
    37,
    {
      what: 'Headers are too long, too many, or have bytes that readers disagree on.',
      shownBy: {
        [HTTP]: [
          'headers that hold bytes outside ASCII, are too many or too long, are refused',
          'the listener refuses request smuggling through a NUL',
          'the listener refuses request smuggling through a folded header',
        ],
        [GATEWAY]: ['the listener refuses a request that two readers of HTTP would read differently, and closes its connection'],
      },
    },
  ],
  [
    38,
    {
      what: 'Where a request ends depends on who reads it, so that another one hides in its body.',
      shownBy: {
        [GATEWAY]: ['the listener refuses a request that two readers of HTTP would read differently, and closes its connection'],
        [HTTP]: [
          'the listener refuses request smuggling through length and chunks',
          'the listener refuses request smuggling through two lengths',
        ],
      },
    },
  ],
  [
    39,
    {
      what: 'A path leads to another route, or the request target names another host.',
      shownBy: {
        [HTTP]: ['a target has one form of path, and any other path is not found'],
        [GATEWAY]: [
          'the listener refuses a request that two readers of HTTP would read differently, and closes its connection',
          'Host and Origin are checked before the token',
        ],
      },
    },
  ],
  [
    40,
    {
      what: 'A token comes in the query, in a cookie, beside another, or under another scheme.',
      shownBy: { [HTTP]: ['a request without a valid token gets 401 with a challenge, whatever else is wrong with it'] },
    },
  ],
  [
    41,
    {
      what: 'A token is unsigned, signed with what is public, brings its own key, or is out of its time, issuer or audience.',
      shownBy: {
        [GATEWAY]: ['a forged, foreign, early or late token is refused as such, and leaves no trace but the refusal'],
        'auth/tokens.test.ts': ['both readers come to the same verdict on every token'],
      },
    },
  ],
  [
    42,
    {
      what: 'A token is of another kind, or its record, user or password is not what it was a moment ago.',
      shownBy: {
        [GATEWAY]: [
          'a token stops working at once when it, its user or its password is no longer valid',
          'a forged, foreign, early or late token is refused as such, and leaves no trace but the refusal',
        ],
        [HTTP]: ['a revoked token gets 401 although its signature is valid'],
      },
    },
  ],
  [
    43,
    {
      what: 'A token is revoked while streams and calls are open.',
      shownBy: {
        'sessions/streams.test.ts': [
          'a revoked token ends everything that is open within five seconds, and nothing comes after (case 43)',
        ],
        'attack/streams.test.ts': [
          'a revoked token ends a call in flight, in a session',
          'a revoked token ends a call in flight, 2026-07-28',
        ],
      },
    },
  ],
  [
    44,
    {
      what: 'A role is taken while a session is open, here or at another replica.',
      shownBy: {
        'gateway/recycle.test.ts': [
          'a role that is granted or removed decides the next request, and ends streams that it no longer allows (cases 44, 45)',
          'if only the role changes, the upstream session stays, and the client gets list_changed',
        ],
        'gateway/replicas.test.ts': ['a role changed: the next call is refused on every replica'],
        'mcp/clients.test.ts': ['rights that change between two calls of a session apply to the next call'],
      },
    },
  ],
  [
    45,
    {
      what: 'A role is given while a session is open.',
      shownBy: {
        'gateway/recycle.test.ts': [
          'a role that is granted or removed decides the next request, and ends streams that it no longer allows (cases 44, 45)',
        ],
      },
    },
  ],
  [
    46,
    {
      what: 'Policy changes between two pages of a list, two batches, or two rounds of an exchange.',
      shownBy: {
        'sessions/streams.test.ts': [
          'each page of a list and each batch is decided with the policies of its time (case 46)',
          'each round of an exchange gets its own decision (case 46)',
        ],
      },
    },
  ],
  [
    47,
    {
      what: 'A target that serves two users talks to one of them.',
      shownBy: {
        'sessions/streams.test.ts': ['a message of a target to one user reaches no other user (case 47)'],
        'mcp/aggregate/aggregate-streams.test.ts': [
          "a stream carries nothing from other callers' sessions or from other sessions of its caller",
        ],
        [SESSIONS]: ['each principal has its own session with the target'],
      },
    },
  ],
  [
    48,
    {
      what: 'A target asks the client for what it may not ask for, by a request, a result or an error.',
      shownBy: {
        'mcp/asks.test.ts': [
          'a target that asks for a form without permission is refused, and the client does not see the request',
          'a target that asks for an address without permission is refused, and the client does not see the request',
          'neither an error nor a notification carries a URL elicitation that the target may not make',
          '2026-07-28: a request for input that the target may not ask for counts as a fault of the target',
        ],
        [SESSIONS]: ['the gateway refuses a request of the target that no client may be asked'],
      },
    },
  ],
  [
    49,
    {
      what: 'A response answers nothing that was asked, comes in a batch, or in a revision without responses.',
      shownBy: {
        [MESSAGES]: [
          ...refused('an invented response', 'a response to an id of the target', 'a batch of responses'),
          'a request is refused if header and body name different versions, and the error names unknown versions',
        ],
        [SESSIONS]: ['a request of the target can be answered only in its own session'],
      },
    },
  ],
  [
    50,
    {
      what: 'A client sends headers by which targets tell who asks, or the credential of the gateway.',
      shownBy: {
        [HTTP]: [
          'the target gets nothing from the client except the message',
          '2026-07-28: Mcp-Param headers are forwarded, and a session id is ignored',
        ],
      },
    },
  ],
  [
    51,
    {
      what: 'A body is declared to be, or is, in another type or encoding than JSON in UTF-8.',
      shownBy: {
        [HTTP]: ['the gateway reads only JSON in UTF-8 without a content encoding'],
        [MESSAGES]: refused('a byte order mark'),
        'base/json/json.test.ts': ['the reader refuses bytes that are not UTF-8'],
      },
    },
  ],
  [
    52,
    {
      what: 'A page of another origin calls, or a name that is not the gateway is made to point to it.',
      shownBy: {
        [GATEWAY]: ['Host and Origin are checked before the token'],
        [HTTP]: ['Host and Origin are checked before anything else'],
        'gateway/origin.test.ts': ['only pages of an allowed origin may call /mcp, and a preflight needs no token'],
      },
    },
  ],
  [
    53,
    {
      what: 'A method that the gateway does not know is sent in the hope that the target does.',
      shownBy: {
        [RESOURCES]: ['an extension that the gateway does not support is neither announced nor served'],
        [MESSAGES]: [
          'methods are compared byte for byte, and unknown methods are not forwarded',
          'unknown methods of 2026-07-28 are not forwarded and get HTTP 404',
        ],
        'mcp/extensions.test.ts': [
          'stateful: a method that the target does not list is unknown, and makes no audit row',
          'stateless: a method that the target does not list is unknown, and makes no audit row',
          'extension methods do not reveal that a target exists',
        ],
      },
    },
  ],
  [
    54,
    {
      what: 'Answers, documents or the time that they take are asked for whether a target or a tool exists.',
      shownBy: {
        [GATEWAY]: ['a caller that may not use a target cannot tell it from a target that does not exist'],
        [LOAD]: ['a denied request takes as long as one for an unknown target, so that timing does not tell them apart'],
        [UPSTREAM]: ['a forbidden target answers like one that does not exist'],
        'rest/app.test.ts': ['well-known documents are the same for every target name'],
        'mcp/denials.test.ts': ['in a session a hidden denial gets the answer of an unknown name, and the target is not asked'],
      },
    },
  ],
  [
    55,
    {
      what: 'State or audit log cannot be had at the moment of a request.',
      shownBy: {
        [UPSTREAM]: [
          'the client gets 503 and nothing is forwarded if the audit log fails',
          'a list is answered only after its names are recorded',
          'an unreadable state gives 503, and a broken engine denies calls, records an error and empties lists',
        ],
        'gateway/outage.test.ts': [
          'database cut: requests are refused in limited time, nothing is forwarded, and the gateway recovers without a restart',
        ],
      },
    },
  ],
  [
    56,
    {
      what: 'One user opens a thousand streams, or comes back again and again.',
      shownBy: {
        [LOAD]: [
          'a user who opens a thousand idle streams keeps only the allowed number, and other users keep theirs',
          'a storm of reconnecting clients gets the free slots, and holds none of them when it is over',
        ],
        [GATEWAY]: ['a user who sends too many requests has to wait, and other users at the same address do not'],
        'attack/streams.test.ts': ['clients that disconnect during admission hold no slots'],
      },
    },
  ],
]);
