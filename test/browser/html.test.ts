import test from 'ava';
import { type Content, html, refreshTo } from '../../src/browser/html.ts';
import { pageHeaders } from '../../src/browser/page.ts';

const NASTY = `"><script>alert(1)</script><img src=x onerror='alert(1)'>&amp;`;

test('every value is escaped, between tags and in attributes', (t) => {
  const text = html`<p title="${NASTY}" class="a ${NASTY}">${NASTY}</p>`.toString();
  t.deepEqual(text.match(/<[^>]*>/g)?.length, 2, text);
  t.false(text.includes('<script') || text.includes("'") || text.includes('<img'));
  t.is(html`<p>${'&#60;'}</p>`.toString(), '<p>&#38;#60;</p>');
});

test('markup of templates is kept, also in lists, and values that say nothing add nothing', (t) => {
  const items = ['a', '<'].map((item) => html`<li>${item}</li>`);
  t.is(html`<ul>${items}${null}${undefined}${false}${true}</ul>${0}`.toString(), '<ul><li>a</li><li>&#60;</li></ul>0');
  t.is(html`<input ?disabled="${true}" ?checked="${false}">`.toString(), '<input disabled >');
});

test('text from others cannot reverse what stands beside it, but a field gives back what it got', (t) => {
  const text = '^\u202e?mus-teg\u202c?$\n\u2066x\ud800';
  const shown = '^\\u{202e}?mus-teg\\u{202c}?$\n\\u{2066}x\\u{d800}';
  t.is(String(html`<p>${text}</p>${[[text]]}`), `<p>${shown}</p>${shown}`);
  t.is(String(html`<pre>${'a\r\n\tb\rc'}</pre>`), '<pre>a\n\tb\\u{d}c</pre>', 'files may have such line ends');
  t.is(String(html`<textarea name="a">${text}</textarea>`), `<textarea name="a">${text}</textarea>`);
  t.is(String(html`<input value="${text}">`), `<input value="${text}">`);
});

test('an object that pretends to be markup is not taken for it', (t) => {
  const forged = { toString: () => '<script>' } as unknown as Content;
  t.throws(() => html`<p>${forged}</p>`);
  t.throws(() => html`<p title="${forged}"></p>`);
  t.throws(() => html`<p title="${html`<b>`}"></p>`);
});

test('a value at a place where escaping does not help is refused', (t) => {
  const value = 'x';
  const templates: readonly (() => unknown)[] = [
    () => html`<p class=${value}></p>`,
    () => html`<p class='${value}'></p>`,
    () => html`<p ${value}="a"></p>`,
    () => html`<${value}></p>`,
    () => html`<p onclick="${value}"></p>`,
    () => html`<p ONCLICK="a${value}"></p>`,
    () => html`<p style="${value}"></p>`,
    () => html`<iframe srcdoc="${value}"></iframe>`,
    () => html`<img srcset="${value}">`,
    () => html`<meta content="${value}">`,
    () => html`<script>${value}</script>`,
    () => html`<script src="/a.js">${value}</script>`,
    () => html`<style>${value}</style>`,
    () => html`<!-- ${value} -->`,
    () => html`<a href="javascript:${value}">`,
    () => html`<a href="/${value}">`,
    () => html`<a href="//${value}">`,
    () => html`<a href="${value}`,
    () => html`<input ?checked="a${value}">`,
    () => html`<input ?onclick="${value}">`,
  ];
  for (const template of templates) t.throws(template, undefined, String(template));
});

test('an address has no scheme but http and https, and no host in disguise', (t) => {
  for (const good of ['/', '/account', '/a?b=c&d', '#top', '?page=2', 'https://example.com/x', 'http://127.0.0.1:8080']) {
    t.notThrows(() => html`<a href="${good}">x</a>`, good);
  }
  const bad = [
    ...[
      'javascript:alert(1)',
      'JaVaScRiPt:alert(1)',
      ' javascript:alert(1)',
      'java\tscript:alert(1)',
      '\u0001javascript:alert(1)',
    ],
    ...[
      'data:text/html,x',
      'vbscript:x',
      'blob:x',
      '//evil.example',
      '/\\evil.example',
      '\\\\evil.example',
      '/\t/evil.example',
      '',
      'account',
    ],
  ];
  for (const address of bad) {
    t.throws(() => html`<a href="${address}">x</a>`, undefined, address);
    t.throws(() => html`<form action="${address}"></form>`, undefined, address);
    t.throws(() => html`<button formaction="${address}"></button>`, undefined, address);
  }
  t.is(html`<a href="/sessions/${'"/../x'}">x</a>`.toString(), '<a href="/sessions/&#34;/../x">x</a>');
  for (const path of ['https://evil.example', '//evil.example', '/\\evil', '#']) t.throws(() => refreshTo(path), undefined, path);
  t.is(refreshTo('/oauth/a?b="c"').toString(), '<meta http-equiv="refresh" content="0;url=/oauth/a?b=&#34;c&#34;">');
});

test('a form may lead to the origins and schemes that a page names, and these add no directive', (t) => {
  const policy =
    pageHeaders({ formAction: ['https://client.example:8443', 'cursor:', 'http://127.0.0.1:7777'] })['Content-Security-Policy'] ??
    '';
  t.regex(policy, /; form-action 'self' https:\/\/client\.example:8443 cursor: http:\/\/127\.0\.0\.1:7777$/);
  const bad = [
    ...[
      'javascript:',
      'data:',
      "https://x; script-src 'unsafe-inline'",
      'https://x y',
      "'none'",
      '*',
      'https://*.example.com',
      'https://a/b',
    ],
    ...['JAVASCRIPT:', 'https://x,y', 'https://x\n', ''],
  ];
  for (const source of bad) t.throws(() => pageHeaders({ formAction: [source] }), undefined, source);
});
