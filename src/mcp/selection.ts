/** What is built of large messages: what somebody looks into. The rest goes on as the text it was. */
import type { LargeRules } from '../http/json-large.ts';

/** For messages of clients. */
export const CLIENT_RULES: LargeRules = {
  spanDepth: 3,
  selection: { lists: new Set(), skipped: new Set(), members: 10_000, itemValues: 20_000, builtValues: 100_000 },
};

/** Lists of results that the gateway looks through, item by item. */
const LISTS = ['tools', 'prompts', 'resources', 'resourceTemplates', 'content', 'contents', 'messages', 'tasks'];
/** What these hold is between target and client. */
const OPAQUE = ['structuredContent', 'inputSchema', 'outputSchema'];

/**
 * For messages of targets. Results may hold numbers and strings that requests may not: they are not decided on, and go on as
 * the text they are.
 */
export const TARGET_RULES: LargeRules = {
  exact: false,
  maxDepth: 256,
  maxValues: 2_000_000,
  selection: { lists: new Set(LISTS), skipped: new Set(OPAQUE), members: 10_000, itemValues: 5_000, builtValues: 150_000 },
};

/**
 * For messages that the bridge translates, of clients and targets. It looks into the schemas of tools and into what results ask
 * for; spans reach the parameters of that: message, result, requests, request, parameters.
 */
export const BRIDGE_RULES: LargeRules = {
  ...TARGET_RULES,
  spanDepth: 4,
  selection: { ...TARGET_RULES.selection, skipped: new Set(['structuredContent', 'outputSchema']), itemValues: 20_000 },
};
