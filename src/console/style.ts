/** The style sheet and the scripts of the console, besides the style sheet of every page. */
import { existsSync, readFileSync } from 'node:fs';
import { type Asset, assetPath } from '../browser/style.ts';

const LAYOUT = `
.app{display:grid;grid-template-columns:13.5rem minmax(0,1fr);min-height:100vh}
.skip{position:absolute;left:-100vw}.skip:focus{left:var(--s2);top:var(--s2);z-index:2;background:var(--surface);padding:var(--s2)}
.side{position:sticky;top:0;height:100vh;overflow:auto;padding:var(--s4) var(--s3);border-right:1px solid var(--line)}
.side,.menu{display:flex;flex-direction:column;gap:var(--s4)}
.menu{position:static;flex:1;width:auto;height:auto;margin:0;padding:0;border:0;overflow:visible;background:none;color:inherit}.side>.btn{display:none}
.side .brand{margin:0;padding:0 var(--s2)}
.side h2{font-size:var(--t-xs);font-weight:400;color:var(--ink-3);padding:0 var(--s2) var(--s1)}
.side li a{display:block;padding:.3rem var(--s2);border-radius:var(--r);color:var(--ink-2);font-size:var(--t-sm);text-decoration:none}
.side li a:hover{background:var(--sunken)}
.side li a[aria-current]{background:var(--surface);color:var(--ink);font-weight:600;box-shadow:inset 0 0 0 1px var(--line)}
.side .foot{margin-top:auto;padding:var(--s3) var(--s2) 0;border-top:1px solid var(--line);font-size:var(--t-xs);color:var(--ink-2);overflow-wrap:anywhere}
.app>main{background:var(--surface);max-width:none;margin:0;padding:var(--s5);gap:var(--s4);min-width:0}
.head p{color:var(--ink-2);margin-top:var(--s1);max-width:46rem}
.filter{display:flex;flex-wrap:wrap;gap:var(--s3);align-items:flex-end}.filter .field{min-width:9rem}.filter .grow{flex:1;min-width:14rem}.filter .wide{flex:1 1 100%}
.side search-box form{position:relative}.side kbd{position:absolute;right:.5rem;top:.45rem;font:400 var(--t-xs)/1 var(--mono);color:var(--ink-3);border:1px solid var(--line);border-radius:3px;padding:.15rem .3rem;pointer-events:none}.side input:focus+kbd{display:none}
@media(max-width:48rem){.app{grid-template-columns:minmax(0,1fr);grid-template-rows:auto 1fr}.side{position:static;height:auto;overflow:visible;border:0;border-bottom:1px solid var(--line);padding:var(--s3) var(--s4);gap:var(--s2);flex-flow:row wrap;align-items:center;justify-content:space-between}.side search-box{flex:1 1 100%}.side ul{display:flex;flex-wrap:wrap}.menu{gap:var(--s2);flex:1 1 100%}.side .foot{margin-top:var(--s2)}.app>main{padding:var(--s4)}}
@supports selector(:popover-open){@media(max-width:48rem){.side>.btn{display:inline-flex}.menu{display:none}.menu:popover-open{display:flex;position:fixed;inset:3.75rem var(--s3) auto;width:auto;max-height:calc(100vh - 4.5rem);overflow:auto;padding:var(--s3);background:var(--surface);border:1px solid var(--edge);border-radius:6px;box-shadow:0 8px 24px rgb(0 0 0/.2)}}}`;

const COMPONENTS = `
.fx{display:inline-flex;align-items:center;gap:.25rem;font-size:var(--t-xs);font-weight:600;line-height:1;padding:.25rem .45rem .25rem .35rem;white-space:nowrap;border:1px solid}.fx svg{width:12px;height:12px;stroke-width:2.75}
.fx.allow{color:var(--allow);background:var(--allow-bg);border-color:var(--allow-edge);border-radius:99px}
.fx.deny{color:var(--deny);background:var(--deny-bg);border-color:var(--deny-edge);border-radius:2px}
.fx.none{color:var(--warn);border:1px dashed var(--warn-edge);border-radius:2px}
.tag b{font-weight:600;color:var(--ink)}.tag.find>b{white-space:nowrap}.tag.find{background:var(--warn-bg);color:var(--warn)}.tag{white-space:normal;overflow-wrap:anywhere;min-width:0}.tags{display:inline-flex;vertical-align:middle;flex-wrap:wrap;gap:var(--s1)}
td,tbody th{vertical-align:top}tbody th a{color:var(--ink);text-decoration:none}tbody th a:hover{text-decoration:underline}tbody th time{font-weight:400}
td.num,thead th.num{text-align:right;font-family:var(--mono);white-space:nowrap}thead th.num{font-family:var(--sans)}
policy-order,pattern-try{display:block}td.pos[draggable=true]{cursor:grab}td.pos[draggable=true]::before{content:"⠿" / "";float:left;color:var(--ink-3);line-height:1.45}tr.drop-above>*{box-shadow:inset 0 2px 0 var(--accent)}tr.drop-below>*{box-shadow:inset 0 -2px 0 var(--accent)}.moves{display:flex;justify-content:flex-end}.moves .btn{padding:0 .3rem;min-height:1.5rem;min-width:1.5rem}tr.same td.prio,td.pos{color:var(--ink-3)}tr.off th a{color:var(--ink-3);font-weight:400;text-decoration:line-through}
tr.end td{background:var(--warn-bg);border-top:1px dashed var(--warn-edge)}
.walk{list-style:none;position:relative;padding-left:1.6rem;display:flex;flex-direction:column;gap:var(--s3)}.walk::before{content:"";position:absolute;left:.5rem;top:.4rem;bottom:.9rem;border-left:2px solid var(--line)}
.walk li{position:relative;font-size:var(--t-sm)}.walk li::before{content:"";position:absolute;left:-1.42rem;top:.3rem;width:.7rem;height:.7rem;border-radius:50%;border:2px solid var(--edge);background:var(--surface)}
.walk li.stop::before{border-radius:2px;border-color:var(--ink);background:var(--ink)}
.empty{border:1px dashed var(--edge);border-radius:6px;padding:var(--s5);color:var(--ink-2)}
.mx{text-align:center;white-space:nowrap;font-size:var(--t-xs);font-weight:600}.mx.al{color:var(--allow);background:var(--allow-bg)}.mx.de{color:var(--deny);background:var(--deny-bg)}.mx.no{color:var(--ink-3);font-weight:400}.mx a{display:block;color:inherit;text-decoration:none}.mx a:hover{text-decoration:underline}.mx.changed{box-shadow:inset 0 0 0 2px var(--accent)}
.matrix thead th+th{text-align:center;vertical-align:bottom}.matrix td{vertical-align:middle}span.mx{padding:.1rem .4rem;margin-left:var(--s3);border-radius:2px}.turned{writing-mode:vertical-rl;transform:rotate(180deg);font-family:var(--mono);max-height:14rem;overflow-wrap:anywhere;white-space:normal}
.form{max-width:36rem}.form .third{max-width:none}@media(min-width:40rem){.form:has(>.third){display:grid;grid-template-columns:repeat(3,minmax(0,1fr));align-items:start}.form:has(>.third)>*{grid-column:1/-1}.form>.field.third{grid-column:span 1}}.finding{contain:inline-size}.in.code{font-family:var(--mono);font-size:var(--t-sm)}.line{display:block}main p>.btn.plain:first-child,td>form>.btn.plain{margin-left:calc(-.75rem - 1px)}
@media(min-width:76rem){.beside{display:grid;grid-template-columns:minmax(0,34rem) minmax(24rem,1fr);gap:var(--s6);align-items:start}}#preview{scroll-margin-top:var(--s4);min-width:0}#preview:has(>:not(pattern-try)){border-top:1px solid var(--line);padding-top:var(--s4)}@media(min-width:76rem){#preview:has(>:not(pattern-try)){border-top:0;border-left:1px solid var(--line);padding:0 0 0 var(--s5)}}.check{display:flex;gap:var(--s2);align-items:baseline}fieldset{border:1px solid var(--line);border-radius:var(--r);margin:0;min-width:0}legend{font-size:var(--t-sm);font-weight:600}.bullets{list-style:disc;padding-left:var(--s5)}.names{columns:16rem;gap:var(--s5)}details>summary{cursor:pointer;font-weight:600;padding:var(--s1) 0}pre.secret{overflow:auto;white-space:pre;margin:var(--s2) 0}
h3{font-size:var(--t);margin:var(--s2) 0 0}.chart{display:grid;grid-template-columns:repeat(auto-fit,minmax(14rem,1fr));gap:var(--s4)}.lane{border:1px solid var(--line);border-radius:6px;padding:var(--s3)}.figure{font-size:1.25rem;font-weight:600;margin-left:var(--s2);vertical-align:middle}
.bars{display:block;width:100%;height:3.5rem;margin-top:var(--s2);stroke:none}.bars path{stroke:var(--edge);stroke-width:1;vector-effect:non-scaling-stroke}.bars.al rect{fill:var(--allow-edge)}.bars.de rect{fill:var(--deny-edge)}.bars.no rect{fill:var(--warn-edge)}
.steps{padding-left:var(--s5);display:flex;flex-direction:column;gap:var(--s2)}.attention{display:flex;flex-direction:column;gap:var(--s2)}
.side search-box{position:relative;display:block}.found{position:absolute;z-index:3;left:0;width:22rem;max-width:calc(100vw - 2 * var(--s4));max-height:70vh;overflow:auto;margin-top:var(--s1);padding:var(--s2);background:var(--surface);border:1px solid var(--edge);border-radius:6px;box-shadow:0 8px 24px rgb(0 0 0/.2);font-size:var(--t-sm)}
.side .found ul{display:block}.side .found li a{display:inline;padding:.2rem 0;color:var(--accent)}.found li{padding:.25rem var(--s1);overflow-wrap:anywhere}.looks{display:flex;margin-top:var(--s1)}.foot .btn.plain{padding-inline:.5rem;margin-left:calc(-.5rem - 1px)}.looks .btn.plain+.btn.plain{margin-left:0}.looks [aria-pressed=true]{text-decoration:underline}live-tail{display:flex;align-items:center;gap:var(--s3)}.found[hidden],live-tail[hidden]{display:none}.btn[aria-pressed=true]:not(.plain){background:var(--accent-bg);border-color:var(--accent);color:var(--accent)}
@media(max-width:40rem){td.num{text-align:left}.moves{justify-content:flex-start}.matrix thead{display:table-header-group}.matrix tbody tr{display:table-row}.matrix td,.matrix tbody th{padding:.3rem .5rem;border-bottom:1px solid var(--line)}}
@media(forced-colors:active){.found,.btn[aria-pressed=true]{border:2px solid}.bars rect{fill:CanvasText!important}.fx{border:1px solid}.side li a[aria-current]{outline:1px solid}}`;

const STYLE = [LAYOUT, COMPONENTS].join('').trim();

export const CONSOLE_STYLE_PATH = assetPath('console.css', STYLE);

const script = (name: string, content: string | Buffer): Asset => ({
  ...{ path: assetPath(name, content), content },
  type: 'text/javascript; charset=utf-8',
});
const CONSOLE_SCRIPT = script('console.js', readFileSync(new URL('../../elements/console.js', import.meta.url)));
export const CONSOLE_SCRIPT_PATH = CONSOLE_SCRIPT.path;

/** What `npm run build` makes of `elements/editor.js`. Without a build there is none, and the text area of the page remains. */
const EDITOR_FILE = new URL('../../dist/elements/editor.js', import.meta.url);
const EDITORS = existsSync(EDITOR_FILE) ? [script('editor.js', readFileSync(EDITOR_FILE))] : [];
export const EDITOR_SCRIPTS: readonly string[] = EDITORS.map(({ path }) => path);
export const CONSOLE_ASSETS: readonly Asset[] = [
  { path: CONSOLE_STYLE_PATH, type: 'text/css; charset=utf-8', content: STYLE },
  CONSOLE_SCRIPT,
  ...EDITORS,
];
