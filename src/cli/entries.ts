/** The words that follow `portcullis`, in the order of the help. */
import { type CommandGroup, type Entry, runGroup, type Terminal } from './command.ts';

const signIn = async (): Promise<CommandGroup> => (await import('./sign-in/login.ts')).signInGroup;

/** The nouns of `src/cli/resources/nouns.ts`. */
const NOUNS = {
  target: 'the MCP servers behind the gateway',
  user: 'users, and their passwords',
  group: 'the groups of users',
  token: 'API tokens',
  credential: 'the credentials with which the gateway calls targets',
  session: 'sessions of MCP clients, browser sessions, and grants',
  log: 'the audit log; --follow prints decisions as they are made',
  change: 'the log of administrative changes',
  key: 'the keys that sign tokens',
  right: 'rights of administration',
  provider: "companies' OpenID providers",
  client: 'OAuth clients',
  connection: 'your own accounts at targets',
  replica: 'the replicas of the gateway',
};

const loadNoun = (noun: string) => async (): Promise<CommandGroup> => {
  const { groupOf } = await import('./resources/groups.ts');
  return noun === 'user' ? groupOf(noun, [(await import('./host.ts')).resetPasswordCommand]) : groupOf(noun);
};

const firstHour = async (): Promise<CommandGroup> => (await import('./first-hour/commands.ts')).firstHourGroup;

export const ENTRIES: Readonly<Record<string, Entry>> = {
  start: { summary: 'runs the gateway', load: async () => (await import('./first-hour/start.ts')).startGroup },
  init: { summary: 'makes the first administrator of an empty gateway, and signs in', load: firstHour },
  add: {
    takes: '<name> <url | -- command>',
    summary: 'puts an MCP server behind the gateway, with a first policy',
    load: firstHour,
  },
  import: {
    takes: '<mcp.json>',
    summary: "puts the servers of a client's configuration file behind the gateway",
    load: firstHour,
  },
  connect: { takes: '<client>', summary: "prints or writes a client's configuration", load: firstHour },
  demo: { summary: 'shows the product, in a minute', load: async () => (await import('./demo/demo.ts')).demoGroup },
  login: { summary: 'signs in at a gateway with a browser', load: signIn },
  logout: { summary: 'signs out', load: signIn },
  status: { summary: 'shows who you are', load: signIn },
  ...Object.fromEntries(
    Object.entries(NOUNS).map(([noun, summary]) => [noun, { takes: '<command>', summary, load: loadNoun(noun) }]),
  ),
  'setup-code': {
    summary: 'prints the code that the first registration needs',
    load: async () => (await import('./host.ts')).setupGroup,
  },
  audit: {
    takes: '<command>',
    summary: 'checks the audit log, and evaluates recorded decisions again',
    load: async () => (await import('./audit.ts')).auditGroup,
  },
  bundle: {
    summary: 'writes the policies as a bundle that stock OPA reads',
    load: async () => (await import('./bundle.ts')).bundleGroup,
  },
  policies: {
    takes: '<command>',
    summary: 'policies as files in git, their history, and questions',
    load: async () => (await import('./policies/policies.ts')).policiesGroup,
  },
  invariants: {
    takes: '<command>',
    summary: 'what no change of the policies may allow',
    load: async () => (await import('./policies/invariants.ts')).invariantsGroup,
  },
  owner: {
    takes: '<command>',
    summary: 'limits of the policies of each owner',
    load: async () => (await import('./owner.ts')).ownerGroup,
  },
  drafts: {
    takes: '<command>',
    summary: 'policy changes that you try before you apply them',
    load: async () => (await import('./policies/drafts.ts')).draftsGroup,
  },
  completion: {
    takes: '<shell>',
    summary: 'prints a script with which a shell completes commands',
    load: async () => (await import('./completion/completion.ts')).completionGroupOf(ENTRIES),
  },
};

/** Runs the words that follow `portcullis`. Returns the exit code; null: there is no such command. */
export async function runWords([name = '', ...rest]: readonly string[], terminal: Terminal): Promise<number | null> {
  const entry = Object.hasOwn(ENTRIES, name) ? ENTRIES[name] : undefined;
  if (entry === undefined) return null;
  const group = await entry.load();
  return runGroup(group, group.path === 'portcullis' ? [name, ...rest] : rest, terminal);
}
