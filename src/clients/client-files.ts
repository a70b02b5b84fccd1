/** What each MCP client needs to know of the gateway, and in which file it looks for that. The command line and the console show it. Pure. */

import { join } from 'node:path';
import { Document } from 'yaml';
import type { JsonObject } from '../base/json/json.ts';
import type { readMachine } from '../config/config.ts';

export type Scope = 'project' | 'user';
type Machine = ReturnType<typeof readMachine>;

/** The server that the client is to use. `variable`: the environment variable with its token; null: the client signs in. */
export interface Server {
  readonly name: string;
  readonly url: string;
  readonly variable: string | null;
}

/** A member of a JSON document, by its path, and its value. */
export interface JsonEntry {
  readonly path: readonly string[];
  readonly value: JsonObject;
}

export type Content =
  | { readonly format: 'json'; readonly entry: JsonEntry }
  | { readonly format: 'toml'; readonly table: string; readonly text: string }
  | { readonly format: 'yaml'; readonly entry: JsonEntry };

export interface McpClient {
  readonly id: string;
  readonly title: string;
  /** The file of each scope that the client has. A relative path is in the current folder. */
  readonly files: Readonly<Partial<Record<Scope, (machine: Machine, platform: NodeJS.Platform) => string>>>;
  /** Why the client cannot send a token that is not in its file; absent: it can. */
  readonly noToken?: string;
  readonly content: (server: Server) => Content;
  /** What the user does next, after the file is written. */
  readonly next: string;
}

const bearer = (reference: string): JsonObject => ({
  headers: { Authorization: `Bearer ${reference}` },
});
const withToken = (value: JsonObject, variable: string | null, more: (variable: string) => JsonObject): JsonObject =>
  variable === null ? value : { ...value, ...more(variable) };
const json = (path: readonly string[], value: JsonObject): Content => ({ format: 'json', entry: { path, value } });

/** The folder in which an application of the desktop keeps its settings. */
const application = ({ home, settings, appData }: Machine, platform: NodeJS.Platform): string =>
  platform === 'darwin' ? join(home, 'Library', 'Application Support') : platform === 'win32' ? appData : settings;

export const CLIENTS: readonly McpClient[] = [
  {
    id: 'claude-code',
    title: 'Claude Code',
    files: { project: () => '.mcp.json', user: ({ home }) => join(home, '.claude.json') },
    content: ({ name, url, variable }) =>
      json(
        ['mcpServers', name],
        withToken({ type: 'http', url }, variable, (v) => bearer(`\${${v}}`)),
      ),
    next: 'In Claude Code, enter /mcp, choose the server, and sign in.',
  },
  {
    id: 'claude-desktop',
    title: 'Claude Desktop',
    files: { user: (machine, platform) => join(application(machine, platform), 'Claude', 'claude_desktop_config.json') },
    noToken: 'it reaches the gateway through mcp-remote, and would need the token itself in the file',
    content: ({ name, url }) => json(['mcpServers', name], { command: 'npx', args: ['-y', 'mcp-remote', url] }),
    next: 'Start Claude Desktop again. It opens a browser, where you sign in.',
  },
  {
    id: 'vscode',
    title: 'VS Code',
    files: {
      project: () => join('.vscode', 'mcp.json'),
      user: (machine, platform) => join(application(machine, platform), 'Code', 'User', 'mcp.json'),
    },
    content: ({ name, url, variable }) =>
      json(
        ['servers', name],
        withToken({ type: 'http', url }, variable, (v) => bearer(`\${env:${v}}`)),
      ),
    next: 'In VS Code, start the server in the file, and sign in.',
  },
  {
    id: 'cursor',
    title: 'Cursor',
    files: { project: () => join('.cursor', 'mcp.json'), user: ({ home }) => join(home, '.cursor', 'mcp.json') },
    noToken: 'it may ignore a token if the server offers a sign-in',
    content: ({ name, url }) => json(['mcpServers', name], { url }),
    next: "In Cursor's settings, choose Needs login next to the server.",
  },
  {
    id: 'codex',
    title: 'Codex',
    files: { user: ({ home }) => join(home, '.codex', 'config.toml') },
    content: ({ name, url, variable }) => ({
      format: 'toml',
      table: `mcp_servers.${name}`,
      text: `[mcp_servers.${name}]\nurl = ${JSON.stringify(url)}\n${variable === null ? '' : `bearer_token_env_var = ${JSON.stringify(variable)}\n`}`,
    }),
    next: 'Run codex mcp login with the name of the server.',
  },
  {
    id: 'gemini',
    title: 'Gemini CLI',
    files: {
      project: () => join('.gemini', 'settings.json'),
      user: ({ home }) => join(home, '.gemini', 'settings.json'),
    },
    content: ({ name, url, variable }) =>
      json(
        ['mcpServers', name],
        withToken({ httpUrl: url }, variable, (v) => bearer(`$${v}`)),
      ),
    next: 'In Gemini CLI, enter /mcp auth with the name of the server.',
  },
  {
    id: 'opencode',
    title: 'opencode (version 2)',
    files: { project: () => 'opencode.json', user: ({ settings }) => join(settings, 'opencode', 'opencode.json') },
    content: ({ name, url, variable }) =>
      json(
        ['mcp', 'servers', name],
        withToken({ type: 'remote', url }, variable, (v) => bearer(`{env:${v}}`)),
      ),
    next: 'opencode signs in when it first connects.',
  },
  {
    id: 'goose',
    title: 'goose',
    files: {
      user: ({ settings, appData }, platform) =>
        platform === 'win32' ? join(appData, 'Block', 'goose', 'config', 'config.yaml') : join(settings, 'goose', 'config.yaml'),
    },
    noToken: 'set the header with goose configure',
    content: ({ name, url }) => ({
      format: 'yaml',
      entry: {
        path: ['extensions', name],
        value: { enabled: true, type: 'streamable_http', name, description: 'Portcullis', uri: url, timeout: 300 },
      },
    }),
    next: 'goose signs in when it first connects.',
  },
];

/** Returns the text of a new file with this content, and what a person pastes into an existing one. */
export function newText(content: Content): string {
  if (content.format === 'toml') return content.text;
  const { path, value } = content.entry;
  const root = path.reduceRight<JsonObject>((inner, name) => ({ [name]: inner }), value);
  return content.format === 'json' ? `${JSON.stringify(root, null, 2)}\n` : String(new Document(root));
}

/** Where a client looks on each platform, in the form in which people write paths. `~`: the home folder. */
export function filePaths({ files }: McpClient): readonly string[] {
  const machine = { home: '~', settings: '~/.config', appData: '%APPDATA%' } as Machine;
  const paths = (['project', 'user'] as const).flatMap((scope) => {
    const path = files[scope];
    return path === undefined ? [] : (['linux', 'darwin', 'win32'] as const).map((platform) => path(machine, platform));
  });
  return [...new Set(paths)];
}

/** In the text of a program only: the dependency rules take it for a read of the gateway's own environment. */
const ENV = ['process', 'env'].join('.');

/** A program with an SDK of MCP. It reads the token from its environment. */
export const SDK_TEXTS: readonly { readonly title: string; readonly text: (server: Pick<Server, 'url'>) => string }[] = [
  {
    title: 'TypeScript SDK',
    text: ({ url }) => `import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

const transport = new StreamableHTTPClientTransport(new URL(${JSON.stringify(url)}), {
  requestInit: { headers: { Authorization: \`Bearer \${${ENV}.PORTCULLIS_TOKEN}\` } },
});
const client = new Client({ name: 'my-program', version: '1.0.0' });
await client.connect(transport);
console.log(await client.listTools());
`,
  },
  {
    title: 'Python SDK',
    text: ({ url }) => `import asyncio, os
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

async def main():
    headers = {"Authorization": f"Bearer {os.environ['PORTCULLIS_TOKEN']}"}
    async with httpx2.AsyncClient(headers=headers) as http:
        async with Client(streamable_http_client(${JSON.stringify(url)}, http_client=http)) as client:
            print(await client.list_tools())

asyncio.run(main())
`,
  },
];
