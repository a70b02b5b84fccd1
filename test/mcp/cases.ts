/** Fifty-six ways to get past the gateway, and the tests that show where each of them ends. */

export interface Case {
  readonly what: string;
  /** File under `test/` -> titles. */
  readonly shownBy: Readonly<Record<string, readonly string[]>>;
}

const HTTP = 'mcp/adversarial-http.test.ts';
const MESSAGES = 'mcp/adversarial-messages.test.ts';
const SESSIONS = 'mcp/adversarial-sessions.test.ts';
const UPSTREAM = 'mcp/adversarial-upstream.test.ts';
const RESOURCES = 'mcp/adversarial-resources.test.ts';
const LOAD = 'mcp/adversarial-load.test.ts';
const GATEWAY = 'mcp/adversarial-gateway.test.ts';

const refused = (...what: string[]): string[] => what.map((name) => `400 and nothing forwarded: ${name}`);

export const CASES: ReadonlyMap<number, Case> = new Map<number, Case>([
  [
    1,
    {
      what: 'A member is there twice, plainly or by an escape, so that one reader takes the first and another the last.',
      shownBy: {
        [MESSAGES]: refused('a second name', 'a second name by an escape', 'a second method', 'second params', 'a second uri'),
        'http/json.test.ts': ['refuses a repeated name', 'refuses a name repeated by an escape'],
      },
    },
  ],
  [
    2,
    {
      what: 'A member is a protocol member only to readers that fold case, in ASCII or beyond.',
      shownBy: {
        [MESSAGES]: refused('Name beside name', 'paramſ', 'a Kelvin sign', 'Method', '__proto__'),
        'mcp/message.test.ts': ['names that a case-insensitive receiver takes for protocol names are refused'],
      },
    },
  ],
  [
    3,
    {
      what: 'A method is written almost like one that is served.',
      shownBy: {
        [MESSAGES]: [
          'methods are compared byte for byte; unknown ones go nowhere',
          'methods of 2026-07-28 likewise, with HTTP 404',
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
          'versions: header and body never disagree, and unknown ones are named',
          ...refused('a batch', 'a nested batch'),
        ],
      },
    },
  ],
  [
    6,
    {
      what: 'A batch of 2025-03-26 mixes what is allowed with what is not.',
      shownBy: { [MESSAGES]: ['a batch of 2025-03-26: each element is decided and forwarded by itself'] },
    },
  ],
  [
    7,
    {
      what: 'A batch of 2025-03-26 is endless, opens a session, or repeats an id.',
      shownBy: { [MESSAGES]: ['a batch that no revision allows is refused whole'] },
    },
  ],
  [
    8,
    {
      what: 'The headers of 2026-07-28 name another method or object than the body, or nothing.',
      shownBy: { [MESSAGES]: ['2026-07-28: headers that are missing or differ from the body are refused'] },
    },
  ],
  [
    9,
    {
      what: 'A name in a header is encoded wrongly, twice, or stands for another one.',
      shownBy: { [MESSAGES]: ['2026-07-28: headers that are missing or differ from the body are refused'] },
    },
  ],
  [
    10,
    {
      what: 'A header that has one value is sent with two, of which Node keeps the first or joins both.',
      shownBy: {
        [HTTP]: ['headers that must be single are refused when they are not'],
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
          'versions: header and body never disagree, and unknown ones are named',
          '2026-07-28: headers that are missing or differ from the body are refused',
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
        [MESSAGES]: ['names that are no names are refused before any decision', 'names are compared byte for byte'],
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
        'attack/regex-cost.test.ts': ['a URI that can be decoded again and again is not canonical'],
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
          'of what is listened to, a URI with more than one reading is left out before the target is asked',
          'completion: denied, unknown and non-canonical references answer alike',
          'an argument of a prompt is data, whatever it looks like',
        ],
        'mcp/listen.test.ts': ['of the filter only what the caller may have reaches the target, and it is recorded'],
      },
    },
  ],
  [
    16,
    {
      what: 'A template that may be seen is filled in with what leads elsewhere, or read as it stands.',
      shownBy: { [RESOURCES]: ['a template that may be seen opens none of its resources, and its text is no resource'] },
    },
  ],
  [
    17,
    {
      what: 'A host, path or name is written in letters that look like others.',
      shownBy: {
        [MESSAGES]: [
          'hosts and paths in letters that look like others are other hosts and paths',
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
        [RESOURCES]: ['a directory that may be read brings no contents that may not'],
        'mcp/filter.test.ts': ['contents of other URIs than the one asked for are decided'],
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
          '1 and "1" are two ids',
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
          'unknown notifications, and any without a session, are accepted and dropped',
          'versions: header and body never disagree, and unknown ones are named',
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
          'a session of another, of another target, edited, cut or invented answers like one that never was',
          'a session ends after a day, and with the target it was opened on',
        ],
        'mcp/sessions.test.ts': ['older keys open, newer seal, foreign ones do nothing'],
      },
    },
  ],
  [
    22,
    {
      what: "Somebody ends another's session, listens to it, or answers what its target asked.",
      shownBy: {
        [SESSIONS]: ["nobody ends or listens to another's session", "the target's question can be answered on its session alone"],
      },
    },
  ],
  [
    23,
    {
      what: "Somebody cancels another's request, or the opening of a session.",
      shownBy: {
        [SESSIONS]: ['a cancellation goes to the session that it was sent in, and none without a session goes anywhere'],
      },
    },
  ],
  [
    24,
    {
      what: "Somebody goes on with another's stream, or with one of another session.",
      shownBy: { [SESSIONS]: ['events are resumed by their session alone'] },
    },
  ],
  [
    25,
    {
      what: 'The state of an exchange comes back from another user, with another tool, arguments or target, too late, or edited.',
      shownBy: { [SESSIONS]: ['request state is worth something for its own request alone'] },
    },
  ],
  [
    26,
    {
      what: 'The state of an exchange comes back after the right to it was lost.',
      shownBy: {
        [SESSIONS]: ['request state is worth something for its own request alone'],
        'sessions/streams.test.ts': ['each round of an exchange is decided anew (case 46)'],
      },
    },
  ],
  [
    27,
    {
      what: "Somebody uses, ends, listens to or lists another's tasks at a target that knows both as one.",
      shownBy: {
        'mcp/tasks.test.ts': [
          "session: another's, another target's, an edited and an invented id are all no task, and nothing is asked",
          "modern: another's, another target's, an edited and an invented id are all no task, and nothing is asked",
          '2025-11-25: a list of tasks shows those of the caller, of tools that it may call',
          '2026-07-28: of the tasks that are listened to, the target is asked for those of the caller',
        ],
        'mcp/tasks-sdk.test.ts': ["another's client finds no task, by whatever id"],
      },
    },
  ],
  [
    28,
    {
      what: 'Completions tell which prompts, templates and resources there are.',
      shownBy: {
        [MESSAGES]: ['completion: denied, unknown and non-canonical references answer alike'],
        [RESOURCES]: ['completions offer no resource that may not be read'],
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
        [SESSIONS]: ['updates of a resource come while it may be read, each of them decided'],
        'mcp/listen.test.ts': [
          'heard is what was asked for, on this subscription, of resources that the caller may read at that moment',
        ],
        'mcp/clients.test.ts': ['updates of resources are decided when they are delivered'],
      },
    },
  ],
  [
    30,
    {
      what: 'A result, a prompt or a tool links to a resource that may not be read.',
      shownBy: {
        [RESOURCES]: [
          'a result of a tool loses its links to what may not be read, and nothing else',
          'a tool in a list points to no resource that may not be read',
          'messages of a prompt lose their links to what may not be read',
        ],
      },
    },
  ],
  [
    31,
    {
      what: 'Names of targets and tools are put together so that they come apart in another place.',
      shownBy: {
        'mcp/aggregate-names.test.ts': [
          'a joined name comes apart as it was put together, whatever the target calls it',
          'no two names of two targets are one',
          'what names no target is no joined name',
        ],
        'mcp/aggregate.test.ts': ['names that name no target are refused before anybody is asked'],
      },
    },
  ],
  [
    32,
    {
      what: 'A page shows nothing but goes on, or a cursor is forged or belongs to another.',
      shownBy: {
        [UPSTREAM]: ['a page of which nothing may be seen keeps its cursor, and the cursor goes on as it was'],
        'mcp/aggregate.test.ts': [
          'a page on which everything is denied is empty, and has a next one',
          'a cursor is good for its caller, its session and its method alone',
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
          'bodies that are too large, too deep, too many or packed are refused, and others are served meanwhile',
          'who does not finish a request is cut off in time, and others are served meanwhile',
        ],
        [HTTP]: ['a body beyond the limit is refused, announced or not, while others are served'],
        'http/json.test.ts': ['depth and number of values are bounded, without a deep stack'],
      },
    },
  ],
  [
    34,
    {
      what: 'A target writes lines of the event stream into its texts, or cuts its stream where a reader stumbles.',
      shownBy: {
        [UPSTREAM]: ['events go out one message each, whatever the target puts between the lines'],
        'mcp/sse.test.ts': [
          'the same events, however the bytes are cut',
          'what is written is one event with the same JSON, whatever is in it',
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
          "-32603 in the gateway's words when the target answers with another id",
          "-32603 in the gateway's words when the target answers with a batch",
          'of two answers the first counts, and notifications of other requests are not for this stream',
          'answers, events and silence are bounded',
          "the target's own error is its answer",
        ],
        [MESSAGES]: ['a denied call is answered in band and goes nowhere'],
      },
    },
  ],
  [
    36,
    {
      what: 'A target redirects, asks for a login, or sets cookies.',
      shownBy: { [UPSTREAM]: ['challenges, cookies and redirects of the target stay between it and the gateway'] },
    },
  ],
  [
    37,
    {
      what: 'Headers are too long, too many, or have bytes that readers disagree on.',
      shownBy: {
        [HTTP]: [
          'headers with bytes outside ASCII, or too many of them, are refused',
          'smuggling through a NUL ends at the listener',
          'smuggling through a folded header ends at the listener',
        ],
        [GATEWAY]: ['what two readers of HTTP would read differently ends at the listener, and so does its connection'],
      },
    },
  ],
  [
    38,
    {
      what: 'Where a request ends depends on who reads it, so that another one hides in its body.',
      shownBy: {
        [GATEWAY]: ['what two readers of HTTP would read differently ends at the listener, and so does its connection'],
        [HTTP]: [
          'smuggling through length and chunks ends at the listener',
          'smuggling through two lengths ends at the listener',
        ],
      },
    },
  ],
  [
    39,
    {
      what: 'A path leads to another route, or the request target names another host.',
      shownBy: {
        [HTTP]: ['paths: one form, and everything else is no target'],
        [GATEWAY]: [
          'what two readers of HTTP would read differently ends at the listener, and so does its connection',
          'Host and Origin are judged before the token',
        ],
      },
    },
  ],
  [
    40,
    {
      what: 'A token comes in the query, in a cookie, beside another, or under another scheme.',
      shownBy: { [HTTP]: ['without a good token: 401 with a challenge, whatever else is wrong'] },
    },
  ],
  [
    41,
    {
      what: 'A token is unsigned, signed with what is public, brings its own key, or is out of its time, issuer or audience.',
      shownBy: {
        [GATEWAY]: ['forged, foreign, early and late tokens are each refused as such, and leave no trace but the refusal'],
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
          'a token is good until the moment in which it, its user or its password is not',
          'forged, foreign, early and late tokens are each refused as such, and leave no trace but the refusal',
        ],
        [HTTP]: ['a revoked token is 401 although its signature is good'],
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
          'a call under way is ended by a revoked token, in a session',
          'a call under way is ended by a revoked token, 2026-07-28',
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
          'a role that is given or taken counts from the next request on, and ends what it no longer allows (cases 44, 45)',
          'a role alone changes nothing at the target: it keeps its session, and the client learns that lists may differ',
        ],
        'gateway/replicas.test.ts': ['a role changed: the next call is refused on every replica'],
        'mcp/clients.test.ts': ['rights that change between two calls of one session apply to the next'],
      },
    },
  ],
  [
    45,
    {
      what: 'A role is given while a session is open.',
      shownBy: {
        'gateway/recycle.test.ts': [
          'a role that is given or taken counts from the next request on, and ends what it no longer allows (cases 44, 45)',
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
          'each page of a list and each batch is decided with the policy of its moment (case 46)',
          'each round of an exchange is decided anew (case 46)',
        ],
      },
    },
  ],
  [
    47,
    {
      what: 'A target that serves two users talks to one of them.',
      shownBy: {
        'sessions/streams.test.ts': ['what a target says to one user reaches nobody else (case 47)'],
        'mcp/aggregate-streams.test.ts': ["nobody hears of another's session, nor of another session of theirs"],
        [SESSIONS]: ['each principal has a session of its own with the target'],
      },
    },
  ],
  [
    48,
    {
      what: 'A target asks the client for what it may not ask for, by a request, a result or an error.',
      shownBy: {
        'mcp/asks.test.ts': [
          'a target that asks for a form all the same is refused, and the client hears nothing of it',
          'a target that asks for an address all the same is refused, and the client hears nothing of it',
          'addresses do not come as an error either, nor word that somebody was there',
          '2026-07-28: input that the target may not ask for is a fault of the target',
        ],
        [SESSIONS]: ['a question that no client may be asked is refused in its name'],
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
          'versions: header and body never disagree, and unknown ones are named',
        ],
        [SESSIONS]: ["the target's question can be answered on its session alone"],
      },
    },
  ],
  [
    50,
    {
      what: 'A client sends headers by which targets tell who asks, or the credential of the gateway.',
      shownBy: {
        [HTTP]: [
          'nothing of the client goes to the target but the message',
          '2026-07-28: Mcp-Param headers go on, a session id is ignored',
        ],
      },
    },
  ],
  [
    51,
    {
      what: 'A body is declared to be, or is, in another type or encoding than JSON in UTF-8.',
      shownBy: {
        [HTTP]: ['only JSON in UTF-8 without encodings is read'],
        [MESSAGES]: refused('a byte order mark'),
        'http/json.test.ts': ['refuses bytes that are not UTF-8'],
      },
    },
  ],
  [
    52,
    {
      what: 'A page of another origin calls, or a name that is not the gateway is made to point to it.',
      shownBy: {
        [GATEWAY]: ['Host and Origin are judged before the token'],
        [HTTP]: ['Host and Origin are judged before anything else'],
        'gateway/origin.test.ts': ['pages of an allowed origin may call /mcp, others may not, and a preflight needs no token'],
      },
    },
  ],
  [
    53,
    {
      what: 'A method that the gateway does not know is sent in the hope that the target does.',
      shownBy: {
        [RESOURCES]: ['an extension that the gateway does not carry is neither announced nor served'],
        [MESSAGES]: [
          'methods are compared byte for byte; unknown ones go nowhere',
          'methods of 2026-07-28 likewise, with HTTP 404',
        ],
        'mcp/extensions.test.ts': [
          'session: a method that is not listed is unknown, and leaves no trace',
          'modern: a method that is not listed is unknown, and leaves no trace',
          'whether a target lists a method is no way to find out that there is such a target',
        ],
      },
    },
  ],
  [
    54,
    {
      what: 'Answers, documents or the time that they take are asked for whether a target or a tool exists.',
      shownBy: {
        [GATEWAY]: ['whoever may not use a target cannot tell it from one that is not there'],
        [LOAD]: ['what is denied costs what the unknown costs, so that a clock tells neither from the other'],
        [UPSTREAM]: ['a target that is forbidden answers like one that does not exist'],
        'http/app.test.ts': ['well-known documents are the same for every target name'],
        'mcp/denials.test.ts': [
          'in a session a refused name is answered like one that nobody has, and nothing is asked of the target',
        ],
      },
    },
  ],
  [
    55,
    {
      what: 'State or audit log cannot be had at the moment of a request.',
      shownBy: {
        [UPSTREAM]: [
          'a failing audit log: 503, and nothing is forwarded',
          'what a list shows is recorded before it is answered, or it is not answered',
          'a state that cannot be had: 503; a broken engine: denied, recorded as an error, lists empty',
        ],
        'gateway/outage.test.ts': [
          'database cut: refused in bounded time, nothing forwarded, and all is well again without a restart',
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
          'of a thousand idle streams of one user as many stay open as it may have; other users have theirs',
          'a storm of clients that come back gets the places that are free, and holds none when it is over',
        ],
        [GATEWAY]: ['one user who asks too often waits, and others at the same address do not'],
        'attack/streams.test.ts': ['clients that leave while they are admitted hold no places'],
      },
    },
  ],
]);
