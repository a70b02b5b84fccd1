/** The style sheet of every page. Its address has the hash of its text, so browsers keep it for good. */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';

/** A text or a file that browsers may keep for good, because its path has the hash of it. */
export interface Asset {
  readonly path: string;
  readonly type: string;
  readonly content: string | Buffer;
}

/** Returns the path of an asset with this content. */
export const assetPath = (name: string, content: string | Buffer): string =>
  `/console/assets/${createHash('sha256').update(content).digest('hex').slice(0, 16)}/${name}`;

const font = (name: string): Asset => {
  const content = readFileSync(new URL(`../../fonts/${name}.woff2`, import.meta.url));
  return { path: assetPath(`${name}.woff2`, content), type: 'font/woff2', content };
};
const [SANS, SANS_BOLD, MONO] = [
  font('ibm-plex-sans-latin-400-normal'),
  font('ibm-plex-sans-latin-600-normal'),
  font('ibm-plex-mono-latin-400-normal'),
];

const face = (family: string, weight: number, { path }: Asset): string =>
  `@font-face{font-family:"${family}";src:url(${path}) format("woff2");font-weight:${weight};font-display:swap}`;
const FONTS = [face('IBM Plex Sans', 400, SANS), face('IBM Plex Sans', 600, SANS_BOLD), face('IBM Plex Mono', 400, MONO)].join(
  '',
);

const TOKENS = `
:root{color-scheme:light dark;
--paper:light-dark(#f5f5f1,#121310);--surface:light-dark(#fff,#1a1b18);--sunken:light-dark(#f0f0ec,#22231f);
--line:light-dark(#e1e0d9,#2f312b);--edge:light-dark(#85877c,#7b7d72);
--ink:light-dark(#1b1c19,#ebebe4);--ink-2:light-dark(#51534b,#b4b6ab);--ink-3:light-dark(#696b61,#989a8f);
--accent:light-dark(#2743c0,#a3b7ff);--accent-bg:light-dark(#e9edfc,#232b47);
--allow:light-dark(#0f5f38,#7fd6a2);--allow-bg:light-dark(#e0f2e6,#16301f);--allow-edge:light-dark(#2f8a5b,#3f8a61);
--deny:light-dark(#9b1c1c,#ffa79c);--deny-bg:light-dark(#fbe5e2,#43201c);--deny-edge:light-dark(#c4514a,#a3574f);
--warn:light-dark(#6f4700,#e9c074);--warn-bg:light-dark(#fcf2da,#31260f);--warn-edge:light-dark(#a8741a,#97763a);
--cta:light-dark(#1b1c19,#ebebe4);--cta-ink:light-dark(#fff,#161713);
--s1:.25rem;--s2:.5rem;--s3:.75rem;--s4:1rem;--s5:1.5rem;--s6:2rem;
--t-xs:.75rem;--t-sm:.8125rem;--t:.875rem;--t-lg:1rem;--t-2xl:1.5rem;
--sans:"IBM Plex Sans",system-ui,sans-serif;--mono:"IBM Plex Mono",ui-monospace,monospace;--r:4px}
:root[data-theme=light]{color-scheme:light}:root[data-theme=dark]{color-scheme:dark}`;

const BASE = `
*,*::before,*::after{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:400 var(--t)/1.45 var(--sans);font-variant-numeric:tabular-nums;overflow-wrap:break-word}
h1,h2,p,dl,dd,ol,ul,table{margin:0;padding:0}ul{list-style:none}
h1{font-size:var(--t-2xl);line-height:1.2;font-weight:600;letter-spacing:-.012em}
h2{font-size:var(--t-lg);line-height:1.3;font-weight:600}
a{color:var(--accent);text-underline-offset:.2em}
code{font-family:var(--mono);font-size:.93em;overflow-wrap:anywhere}
:focus-visible{outline:2px solid var(--accent);outline-offset:2px;border-radius:2px}
svg{width:16px;height:16px;flex:none;stroke:currentColor;fill:none;stroke-width:2;stroke-linecap:round;stroke-linejoin:round}
.muted{color:var(--ink-2)}.sm{font-size:var(--t-sm)}.xs{font-size:var(--t-xs)}
.hidden{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}`;

const LAYOUT = `
.top{display:flex;align-items:center;gap:var(--s4);min-height:3rem;padding:var(--s2) var(--s5);background:var(--surface);border-bottom:1px solid var(--line);font-size:var(--t-sm);color:var(--ink-2)}
.brand{display:flex;align-items:center;gap:var(--s2);font-weight:600;font-size:var(--t-lg);color:var(--ink);text-decoration:none;margin-right:auto}.brand svg{width:22px;height:22px}
.who{min-width:0;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
main{display:flex;flex-direction:column;gap:var(--s5);max-width:60rem;margin:0 auto;padding:var(--s6) var(--s5)}
main.narrow{max-width:26rem;padding-top:min(12vh,6rem)}
.stack{display:flex;flex-direction:column;gap:var(--s4)}.tight{gap:var(--s2)}
.row{display:flex;align-items:center;gap:var(--s3);flex-wrap:wrap}.row>.grow{flex:1;min-width:12rem}
.head{display:flex;align-items:flex-end;gap:var(--s3) var(--s4);flex-wrap:wrap}.head>:first-child{flex:1;min-width:16rem}
@media(max-width:40rem){.top{padding:var(--s2) var(--s4)}main{padding:var(--s5) var(--s4)}.row>.btn{flex:1}}`;

const COMPONENTS = `
.panel{display:flex;flex-direction:column;gap:var(--s4);border:1px solid var(--line);border-radius:6px;background:var(--surface);padding:var(--s5)}
.btn{display:inline-flex;align-items:center;justify-content:center;gap:.4rem;border:1px solid var(--edge);background:var(--surface);color:var(--ink);font:600 var(--t-sm)/1.2 var(--sans);padding:.42rem .75rem;border-radius:var(--r);min-height:2rem;cursor:pointer;text-decoration:none}
.btn:hover{background:var(--sunken)}
.btn.cta{background:var(--cta);border-color:var(--cta);color:var(--cta-ink)}.btn.cta:hover{opacity:.9}
.btn.danger{color:var(--deny);border-color:var(--deny-edge)}
.btn.plain{border-color:transparent;background:none;color:var(--ink-2);font-weight:400}.btn.plain:hover{background:var(--sunken)}
.btn.wide{width:100%}.btn{white-space:nowrap}time{white-space:nowrap}
.field{display:flex;flex-direction:column;gap:.3rem}.field label{font-size:var(--t-sm);font-weight:600}.hint{font-size:var(--t-xs);color:var(--ink-2)}
.in{font:400 var(--t)/1.3 var(--sans);color:var(--ink);background:var(--surface);border:1px solid var(--edge);border-radius:var(--r);padding:.4rem .55rem;min-height:2rem;width:100%}
select.in{padding-block:.33rem}.in[aria-invalid=true]{border-color:var(--deny);box-shadow:inset 0 0 0 1px var(--deny)}
.error{display:flex;gap:.35rem;font-size:var(--t-xs);color:var(--deny)}.error svg{width:14px;height:14px;margin-top:1px}
.note{display:flex;gap:var(--s2);align-items:flex-start;border:1px solid;border-radius:6px;padding:var(--s3) var(--s4);font-size:var(--t-sm)}.note svg{margin-top:2px}.note>div{min-width:0}
.note.done{color:var(--allow);background:var(--allow-bg);border-color:var(--allow-edge)}
.note.bad{color:var(--deny);background:var(--deny-bg);border-color:var(--deny-edge);border-radius:2px}
.note.warn{color:var(--warn);background:var(--warn-bg);border-color:var(--warn-edge);border-radius:2px}
.secret{display:block;font-family:var(--mono);font-size:var(--t-xs);color:var(--ink);background:var(--surface);border:1px solid var(--line);border-radius:var(--r);padding:var(--s2);margin-top:var(--s2);overflow-wrap:anywhere;user-select:all}
.or{display:flex;align-items:center;gap:var(--s3);color:var(--ink-3);font-size:var(--t-xs)}.or::before,.or::after{content:"";flex:1;border-top:1px solid var(--line)}
.tag{display:inline-block;font-size:var(--t-xs);line-height:1.2;padding:.12rem .4rem;border-radius:3px;background:var(--sunken);color:var(--ink-2);white-space:nowrap}
.form{max-width:24rem}.below{margin-top:var(--s2);align-items:flex-start}.below>.btn{margin-top:1.5rem}.dl{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:.3rem var(--s4);font-size:var(--t-sm)}.dl dt{color:var(--ink-2)}
.table{border:1px solid var(--line);border-radius:6px;overflow-x:auto;position:relative;background:var(--surface)}
table{width:100%;border-collapse:collapse;font-size:var(--t-sm)}caption{text-align:left}
thead th{font-size:var(--t-xs);font-weight:400;color:var(--ink-3);text-align:left;padding:.45rem .75rem;background:var(--paper);border-bottom:1px solid var(--line);white-space:nowrap}
td,tbody th{padding:.55rem .75rem;border-bottom:1px solid var(--line);vertical-align:middle;text-align:left;font-weight:400}tbody th{font-weight:600;min-width:10rem}
tbody tr:last-child>*{border-bottom:0}td.end{text-align:right;white-space:nowrap}.sub{display:block;color:var(--ink-2);font-size:var(--t-xs);font-weight:400;overflow-wrap:anywhere}
@media(max-width:40rem){thead{display:none}tbody tr{display:flex;flex-wrap:wrap;align-items:center;gap:.3rem var(--s4);padding:.6rem .75rem;border-bottom:1px solid var(--line)}tbody tr:last-child{border-bottom:0}tbody th{flex:1 1 100%}td,tbody th{border:0;padding:0}td.end{margin-left:auto}td[data-label]::before{content:attr(data-label);display:block;font-family:var(--sans);font-size:var(--t-xs);color:var(--ink-3)}}
@media(forced-colors:active){.btn,.note,.tag{border:1px solid}}`;

export const STYLE = [FONTS, TOKENS, BASE, LAYOUT, COMPONENTS].join('').trim();

export const ICON =
  '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" fill="none" stroke="#2743c0" stroke-width="2" stroke-linecap="round" stroke-linejoin="round"><path d="M4 21V9l8-6 8 6v12M8 21V11M12 21V8M16 21V11M4 15h16"/></svg>';

export const STYLE_PATH = assetPath('portcullis.css', STYLE);
export const ICON_PATH = assetPath('portcullis.svg', ICON);
export const ASSETS: readonly Asset[] = [
  { path: STYLE_PATH, type: 'text/css; charset=utf-8', content: STYLE },
  ...[SANS, SANS_BOLD, MONO],
  { path: ICON_PATH, type: 'image/svg+xml', content: ICON },
];
