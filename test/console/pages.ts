/** Every page of the console that is read, for a gateway with the data of `scene`. A test compares it with the routes. */
import { file } from '../policies/sets.ts';
import { apiToken, type Person, person, type TestGateway } from '../support/gateway.ts';
import { HOSTILE } from './scene.ts';

export interface Parts {
  readonly gateway: TestGateway;
  readonly admin: Person;
  readonly user: Person;
  readonly target: { readonly id: string };
}

/** Returns the paths below `/console/`. Makes what some pages need to have something to show. */
export async function pagesOf({ gateway, admin, user, target }: Parts): Promise<string[]> {
  const { token } = admin;
  const first = async (path: string): Promise<string> =>
    (await gateway.rest<{ id: string }[]>(200, 'GET', `/api/${path}`, { token })).body[0]?.id ?? '';
  const [policy, decision, denied] = [await first('policies'), await first('logs'), await first('logs?effect=deny')];
  await person(gateway, 'somebody.with.a.very.long.address.that.has.no.spaces.at.all@example.com');
  await apiToken(gateway, user, HOSTILE);
  const files = { 'sums.yaml': file({ name: 'All sums', resource_pattern: '^get-sum$' }) };
  await gateway.rest(201, 'PUT', '/api/policies/drafts/sums', { token, body: { files } });
  await gateway.rest(201, 'PUT', '/api/policies/drafts/sums/shadow', { token });
  for (const subject_value of ['a-group-with-a-very-long-name'.repeat(4), HOSTILE])
    await gateway.rest(201, 'POST', '/api/rights', { token, body: { right: 'read', subject_type: 'group', subject_value } });
  // Pages show the analysis once it is made.
  await gateway.rest(200, 'GET', '/api/policies/lint?kept=yes', { token });
  return [
    ...['overview', 'overview?range=month', 'findings', 'search?q=e', 'search?q=nothing-has-this-name', 'proved'],
    ...['policies', 'policies?text=nothing-has-this-name', 'policies/no-id', 'policies/new', 'policies/new?as=yaml'],
    ...['', '/edit', '/edit?as=yaml', '/delete', '/move?position=2'].map((rest) => `policies/${policy}${rest}`),
    ...['drafts', 'drafts/sums', 'history', 'history/1', 'history/1/rollback', 'history/compare?from=0&to=1'],
    ...['targets', 'targets/new', 'sessions', 'replicas', 'keys'],
    ...['', '/edit', '/settings', '/delete', '/credentials', '/allow'].map((rest) => `targets/${target.id}${rest}`),
    ...['users', 'users?group=nobody', 'users/new', 'rights', 'clients'],
    ...['', '/edit', '/tokens'].map((rest) => `users/${user.id}${rest}`),
    ...['access', 'access?compare=0', 'access?who=everyone', 'access/why?who=everyone&target=everything'],
    ...['log', 'log?user=nobody%40example.com', `log/${decision}`, `log/${denied}?again=yes`, 'demand', 'changes'],
    ...['mine', 'mine/everything', 'connect', 'tokens', 'denied'],
  ];
}
