/** A gateway with policies, users and decisions, and browsers at its console. */
import type { ExecutionContext } from 'ava';
import { type Browser, browse, signIn } from '../browser/browser.ts';
import { file, policySets } from '../policies/sets.ts';
import type { Person } from '../support/gateway.ts';
import { modernClient } from '../support/mcp.ts';
import { world } from '../support/world.ts';

/** Texts of strangers that must not become markup. */
export const HOSTILE = `<img src=x onerror="alert(1)">'"</title><script>alert(2)</script>`;

/** A test file: somebody with the role `user`, and one tool. */
export const testFile = (tool: string, effect: string): string =>
  `target: everything\nprincipals:\n  somebody: { role: user }\nrequests:\n  it: { tool: ${tool} }\ntests:\n  - name: T\n    expect:\n      - effect: ${effect}\n`;

export async function scene(t: ExecutionContext, databaseUrl: string | null = null) {
  const w = await world(t, databaseUrl);
  const { gateway, admin } = w;
  const { apply, call } = policySets(gateway, admin.token);
  await apply({
    'echo.yaml': file({ name: 'Everyone may echo' }),
    'env.yaml': file({ name: 'No environment', resource_pattern: '^get-env$', effect: 'deny', priority: 900 }),
    'sums.yaml': file({
      name: `Sums ${HOSTILE}`,
      description: HOSTILE,
      resource_pattern: '^get-sum$',
      subjects: [{ subject_type: 'group', subject_value: HOSTILE }],
    }),
    'old.yaml': file({ name: 'Old', resource_pattern: 'old', enabled: false, priority: 20 }),
  });
  const client = await modernClient(t, w.mcp, w.token);
  await client.callTool({ name: 'echo', arguments: { message: 'x' } });
  for (const name of ['get-env', HOSTILE]) await t.throwsAsync(client.callTool({ name, arguments: {} }));
  const browser = async (who: Person): Promise<Browser> => {
    const opened = browse(gateway);
    await signIn(opened, who);
    return opened;
  };
  return { ...w, call, browser };
}
