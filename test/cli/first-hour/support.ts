/** A gateway, and the commands of the first hour as an administrator runs them without a terminal. */
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { runGroup } from '../../../src/cli/command.ts';
import { firstHourGroup } from '../../../src/cli/first-hour/commands.ts';
import { apiToken, type Person, person, startGateway, type TestGateway } from '../../support/gateway.ts';
import { folder, inProcess, type Ran } from '../cli.ts';

export interface Hour {
  readonly gateway: TestGateway;
  readonly admin: Person;
  readonly home: string;
  readonly run: (...args: string[]) => Promise<Ran>;
  readonly read: <T>(path: string) => Promise<T>;
}

export async function firstHourAt(t: ExecutionContext, environment: Record<string, string> = {}): Promise<Hour> {
  const gateway = await startGateway(t, null, environment);
  const admin = await person(gateway, 'admin@example.com');
  const { token } = await apiToken(gateway, admin);
  const home = folder(t);
  const variables = {
    ...{ PORTCULLIS_URL: gateway.url, PORTCULLIS_TOKEN: token, HOME: home },
    XDG_CONFIG_HOME: join(home, '.config'),
  };
  return {
    ...{ gateway, admin, home },
    run: (...args) => inProcess(variables, (terminal) => runGroup(firstHourGroup, args, terminal)),
    read: async <T>(path: string) => (await gateway.rest<T>(200, 'GET', path, { token: admin.token })).body,
  };
}

/** A program on stdio that answers `initialize` and lists these tools, or those of an expression. */
export const program = (tools: readonly object[] | string): string =>
  `require('node:readline').createInterface({ input: process.stdin }).on('line', (line) => {
    const { id, method } = JSON.parse(line);
    const say = (result) => process.stdout.write(JSON.stringify({ jsonrpc: '2.0', id, result }) + '\\n');
    if (method === 'initialize') say({ protocolVersion: '2025-11-25', capabilities: { tools: {} }, serverInfo: { name: 's', version: '1' } });
    else if (method === 'tools/list') say({ tools: ${typeof tools === 'string' ? tools : JSON.stringify(tools)} });
  });`.replaceAll(/\n\s*/g, ' ');
