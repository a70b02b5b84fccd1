import test from 'ava';
import { AppError } from '../../src/errors.ts';
import { isLinkLocal } from '../../src/targets/address.ts';
import { readCredential, readTarget, readTargetUpdate } from '../../src/targets/document.ts';

const paths = (work: () => unknown): string[] => {
  try {
    work();
  } catch (error) {
    if (error instanceof AppError) return (error.errors ?? []).map(({ path }) => path).sort();
    throw error;
  }
  return [];
};
const target = (over: object = {}) => ({ name: 'everything', url: 'https://mcp.example.com/mcp', ...over });

test('a target has defaults', (t) => {
  t.deepEqual(readTarget(target()), {
    name: 'everything',
    description: null,
    transport: 'streamable-http',
    url: 'https://mcp.example.com/mcp',
    enabled: true,
  });
  t.deepEqual(readTargetUpdate({ enabled: false }), { enabled: false });
});

for (const url of [
  'http://localhost:3001/mcp',
  'http://127.0.0.1/',
  'http://[::1]:8080/mcp?x=@a',
  'https://example.com',
  'HTTPS://EXAMPLE.com/a/b@c',
  `https://example.com/${'x'.repeat(2028)}`,
]) {
  test(`accepted: ${url.slice(0, 60)}`, (t) => t.is(readTarget(target({ url })).url, url));
}

for (const url of [
  '',
  'mcp.example.com',
  '/mcp',
  'ftp://example.com/',
  'file:///etc/passwd',
  'javascript:alert(1)',
  'http:example.com',
  'http:///example.com',
  'http://user@example.com/',
  'http://user:secret@example.com/',
  'http://@example.com/',
  'http://example.com\\@evil.example/',
  'http://example.com/#',
  'http://example.com/#a',
  ' http://example.com/',
  'http://example.com/a b',
  'http://exa\tmple.com/',
  'http://ex\u00e4mple.com/',
  'http://example.com:99999/',
  'http://169.254.169.254/latest/meta-data',
  'http://169.254.0.1/',
  'http://0xa9fea9fe/',
  'http://2852039166/',
  'http://0251.0376.0251.0376/',
  'http://[fe80::1]/',
  'http://[febf::1]/',
  'http://[::ffff:169.254.169.254]/',
  'http://[64:ff9b::169.254.169.254]/',
  `https://example.com/${'x'.repeat(2029)}`,
]) {
  test(`refused: ${JSON.stringify(url).slice(0, 60)}`, (t) =>
    t.deepEqual(
      paths(() => readTarget(target({ url }))),
      ['url'],
    ));
}

test('link-local addresses, however they are written', (t) => {
  for (const address of ['169.254.1.1', 'fe80::1', '::ffff:169.254.1.1', '::ffff:a9fe:101'])
    t.true(isLinkLocal(address), address);
  for (const address of ['169.253.1.1', '127.0.0.1', '::1', 'fec0::1', 'example.com', '']) t.false(isLinkLocal(address), address);
});

test('what is wrong with a target is named', (t) => {
  for (const name of ['', 'A', 'a_b', '-a', '1a', 'a.b', 'a/b', 'x'.repeat(64), 'é', 5, null]) {
    t.deepEqual(
      paths(() => readTarget(target({ name }))),
      ['name'],
      String(name),
    );
  }
  for (const transport of ['sse', 'stdio']) {
    const error = t.throws<AppError>(() => readTarget(target({ transport })));
    t.regex(error?.message ?? '', /not supported yet/);
  }
  t.deepEqual(
    paths(() => readTarget(target({ transport: 'http', enabled: 1, description: 'a\u0000', more: 1 }))),
    ['description', 'enabled', 'more', 'transport'],
  );
  t.deepEqual(
    paths(() => readTarget({})),
    ['name', 'url'],
  );
  t.deepEqual(
    paths(() => readTarget(target({ command: 'node' }))),
    ['command'],
  );
});

test('credentials become a header', (t) => {
  t.deepEqual(readCredential({ type: 'bearer', value: 'abc' }), { header: 'Authorization', value: 'Bearer abc' });
  t.deepEqual(readCredential({ type: 'header', name: 'X-API-Key', value: 'a b~' }), { header: 'x-api-key', value: 'a b~' });
  t.deepEqual(readCredential({ type: 'header', name: 'AUTHORIZATION', value: 'Basic eA==' }), {
    header: 'authorization',
    value: 'Basic eA==',
  });
});

for (const name of [
  ...['Host', 'connection', 'Keep-Alive', 'Transfer-Encoding', 'TE', 'Upgrade', 'trailer', 'Proxy-Authorization', 'expect'],
  ...['Content-Type', 'content-length', 'Mcp-Session-Id', 'mcp-anything', 'Cookie', 'set-cookie', 'Origin', 'accept'],
  ...['X-Forwarded-For', 'Last-Event-ID', 'a b', 'a:b', 'é', '', 'a\r\nb', 'x'.repeat(257)],
]) {
  test(`no credential in ${JSON.stringify(name).slice(0, 40)}`, (t) =>
    t.deepEqual(
      paths(() => readCredential({ type: 'header', name, value: 'v' })),
      ['name'],
    ));
}

test('what is wrong with a credential is named, its value never', (t) => {
  for (const value of ['', ' a', 'a ', 'a\r\nb: c', 'a\u0000', 'é', 'x'.repeat(8193), 5, null]) {
    t.deepEqual(
      paths(() => readCredential({ type: 'bearer', value })),
      ['value'],
      String(value).slice(0, 20),
    );
  }
  const error = t.throws<AppError>(() => readCredential({ type: 'bearer', value: 'secret\u00e9' }));
  t.false(JSON.stringify([error?.message, error?.errors]).includes('secret'));
  t.deepEqual(
    paths(() => readCredential({ type: 'bearer', name: 'x', value: 'v' })),
    ['name'],
  );
  t.deepEqual(
    paths(() => readCredential({ type: 'header', value: 'v' })),
    ['name'],
  );
  t.deepEqual(
    paths(() => readCredential({ type: 'basic', value: 'v' })),
    ['type'],
  );
  t.deepEqual(
    paths(() => readCredential({ type: 'bearer', value: 'v', more: 1 })),
    ['more'],
  );
  t.deepEqual(
    paths(() => readCredential(undefined)),
    [''],
  );
});
