// Puts the mock server of a client scenario behind the gateway that conformance.ts started (see client-probe.mjs, VIA).
import { randomBytes } from 'node:crypto';

const { GATEWAY_URL, ADMIN_TOKEN, TOKEN } = process.env;

export default async function register(url) {
  const name = `mock-${randomBytes(6).toString('hex')}`;
  const answer = await fetch(`${GATEWAY_URL}/api/targets`, {
    method: 'POST',
    headers: { authorization: `Bearer ${ADMIN_TOKEN}`, 'content-type': 'application/json' },
    body: JSON.stringify({ name, transport: 'streamable-http', url }),
  });
  if (answer.status !== 201) throw new Error(`the target was not made: ${answer.status} ${await answer.text()}`);
  return { url: `${GATEWAY_URL}/mcp/${name}`, headers: { Authorization: `Bearer ${TOKEN}` } };
}
