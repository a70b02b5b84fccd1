/**
 * Requests to servers that a document or an administrator names, apart from targets. An address is checked when the connection is
 * made. Redirects are not followed, because they would leave the checked server. Time and size are limited.
 */
import { Agent, buildConnector, fetch as undiciFetch } from 'undici';
import { DeniedAddress, guardedLookup } from './guarded-lookup.ts';
import { type AddressRule, createAddressRule, createPublicAddressRule } from './network-address.ts';

const TIMEOUT_MS = 5_000;

/** The message says what failed, for the administrator. */
export class OutboundFault extends Error {}

export type Outbound = ReturnType<typeof createOutbound>;
type Fetch = typeof globalThis.fetch;

/** `allowed` has addresses and networks that take precedence over the refused ones. */
export function createOutbound(allowed: readonly string[]) {
  const own = agentOf(createAddressRule(allowed));
  const foreign = agentOf(createPublicAddressRule(allowed));

  return {
    /**
     * Returns a `fetch` for the documents of one server. An administrator has named `home`, which may be on a private network. All
     * other servers were named by a third party and must not be on a private network. Throws OutboundFault.
     */
    fetchFor:
      (home: string, maxBytes: number): Fetch =>
      async (input, init) => {
        const url = new URL(input instanceof Request ? input.url : input);
        const dispatcher = url.origin === new URL(home).origin ? own : foreign;
        const signal = AbortSignal.timeout(TIMEOUT_MS);
        try {
          const answer = await undiciFetch(url, { ...(init as object), redirect: 'manual', dispatcher, signal });
          if (answer.status >= 300 && answer.status < 400) {
            await answer.body?.cancel();
            throw new OutboundFault(`${url.href} answers with a redirect, which is not followed`);
          }
          const body = await readLimited(answer.body, maxBytes, url);
          const bare = answer.status === 204 || answer.status === 304;
          return new Response(bare ? null : body, { status: answer.status, headers: [...answer.headers] });
        } catch (error) {
          throw error instanceof OutboundFault ? error : new OutboundFault(`${url.href} ${reasonOf(error)}`, { cause: error });
        }
      },
    async close(): Promise<void> {
      await Promise.all([own.destroy(), foreign.destroy()]);
    },
  };
}

function agentOf(problemOf: AddressRule): Agent {
  const connect = buildConnector({ timeout: TIMEOUT_MS, lookup: guardedLookup(problemOf) } as buildConnector.BuildOptions);
  return new Agent({
    keepAliveTimeout: 1_000,
    connect: (options, callback) => {
      // No lookup is made for an address.
      const problem = problemOf(options.hostname);
      if (problem !== null) callback(new DeniedAddress(problem), null);
      else connect(options, callback);
    },
  });
}

async function readLimited(body: AsyncIterable<Uint8Array> | null, maxBytes: number, url: URL): Promise<Uint8Array<ArrayBuffer>> {
  const parts: Uint8Array[] = [];
  let bytes = 0;
  for await (const part of body ?? []) {
    bytes += part.length;
    if (bytes > maxBytes) throw new OutboundFault(`${url.href} answers with more than ${maxBytes} bytes`);
    parts.push(part);
  }
  return new Uint8Array(Buffer.concat(parts));
}

function reasonOf(error: unknown): string {
  const { name, message, cause } = error as Error;
  if (name === 'TimeoutError') return `has not answered within ${TIMEOUT_MS / 1_000} s`;
  if (cause instanceof Error) return reasonOf(cause);
  return error instanceof DeniedAddress ? `is refused: ${message}` : `cannot be reached: ${message}`;
}
