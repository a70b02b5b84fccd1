/** The MCP client of the demo. It speaks the session revisions over Streamable HTTP. */
interface Message {
  readonly id?: number;
  readonly result?: unknown;
  readonly error?: { readonly message: string };
}

/** Opens a session. Throws the error of the gateway if it refuses. */
export async function connectClient(url: string, token: string) {
  let session: string | null = null;
  let ids = 0;

  async function send(method: string, params: object, id: number | undefined): Promise<Message | undefined> {
    const answer = await fetch(url, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${token}`,
        'content-type': 'application/json',
        accept: 'application/json, text/event-stream',
        ...(session === null ? {} : { 'mcp-session-id': session, 'mcp-protocol-version': '2025-06-18' }),
      },
      body: JSON.stringify({ jsonrpc: '2.0', method, params, id }),
    });
    session ??= answer.headers.get('mcp-session-id');
    const text = await answer.text();
    const isStream = answer.headers.get('content-type')?.startsWith('text/event-stream');
    const messages = isStream ? [...text.matchAll(/^data: ?(.+)$/gm)].map(([, data = '']) => data) : [text];
    if (!answer.ok) throw new Error(`the gateway answered ${answer.status}: ${text}`);
    return messages
      .filter((one) => one !== '')
      .map((one) => JSON.parse(one) as Message)
      .find((one) => one.id === id);
  }

  async function ask<T>(method: string, params: object = {}): Promise<T> {
    const message = await send(method, params, ++ids);
    if (message?.error !== undefined) throw new Error(message.error.message);
    return message?.result as T;
  }

  await ask('initialize', {
    protocolVersion: '2025-06-18',
    capabilities: {},
    clientInfo: { name: 'portcullis-demo', version: '1.0.0' },
  });
  await send('notifications/initialized', {}, undefined);
  return { ask };
}
