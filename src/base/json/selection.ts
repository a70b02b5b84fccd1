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

/** Rules for messages of targets. Their numbers and strings are not decided, so those that requests may not have can pass. */
export const TARGET_RULES: LargeRules = {
  exact: false,
  maxDepth: 256,
  maxValues: 2_000_000,
  selection: { lists: new Set(LISTS), skipped: new Set(OPAQUE), members: 10_000, itemValues: 5_000, builtValues: 150_000 },
};

/** Rules for messages that the bridge translates. Spans reach the parameters of input requests; schemas of tools are read. */
export const BRIDGE_RULES: LargeRules = {
  ...TARGET_RULES,
  spanDepth: 4,
  selection: { ...TARGET_RULES.selection, skipped: new Set(['structuredContent', 'outputSchema']), itemValues: 20_000 },
};
