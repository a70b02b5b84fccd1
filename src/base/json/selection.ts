/** Which parts of large messages are parsed: only what the gateway looks into. The rest is forwarded as text. */
import type { LargeRules } from './large.ts';

/** Rules for messages of clients. */
export const CLIENT_RULES: LargeRules = {
  spanDepth: 3,
  selection: { lists: new Set(), skipped: new Set(), members: 10_000, itemValues: 20_000, builtValues: 100_000 },
};

/** Lists in results that the gateway checks item by item. */
const LISTS = ['tools', 'prompts', 'resources', 'resourceTemplates', 'content', 'contents', 'messages', 'tasks'];
/** Members whose content only target and client understand. */
const OPAQUE = ['structuredContent', 'inputSchema', 'outputSchema'];

/**
 * Rules for messages of targets. Results may hold numbers and strings that are refused in requests: they are not decided, and
 * are forwarded as text.
 */
export const TARGET_RULES: LargeRules = {
  exact: false,
  maxDepth: 256,
  maxValues: 2_000_000,
  selection: { lists: new Set(LISTS), skipped: new Set(OPAQUE), members: 10_000, itemValues: 5_000, builtValues: 150_000 },
};

/**
 * Rules for messages of clients and targets that the bridge translates. The bridge reads the schemas of tools and the arguments of calls, in
 * which every name can be an argument, and the input requests of results. Spans reach the parameters of input requests: message, result, requests, request, parameters.
 */
export const BRIDGE_RULES: LargeRules = {
  ...TARGET_RULES,
  spanDepth: 4,
  selection: {
    ...TARGET_RULES.selection,
    skipped: new Set(['structuredContent', 'outputSchema']),
    kept: new Set(['inputSchema', 'arguments']),
    itemValues: 20_000,
  },
};
