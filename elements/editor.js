// @ts-check
/**
 * The editor of a policy as YAML. `npm run build` makes one file of it and of CodeMirror (`dist/elements/editor.js`). Without the script,
 * the text area does the same.
 */
import { autocompletion, completionKeymap } from '@codemirror/autocomplete';
import { defaultKeymap, history, historyKeymap } from '@codemirror/commands';
import { yaml } from '@codemirror/lang-yaml';
import { HighlightStyle, syntaxHighlighting } from '@codemirror/language';
import { lintKeymap, setDiagnostics } from '@codemirror/lint';
import { EditorState } from '@codemirror/state';
import { EditorView, highlightActiveLine, keymap, lineNumbers } from '@codemirror/view';
import { tags } from '@lezer/highlight';

/** The colors of the page. Its content security policy allows no images of a style sheet, with which CodeMirror would underline. */
const LOOK = EditorView.theme({
  '&': {
    ...{ border: '1px solid var(--edge)', borderRadius: 'var(--r)', backgroundColor: 'var(--surface)', color: 'var(--ink)' },
    fontSize: 'var(--t)',
  },
  '&.cm-focused': { outline: '2px solid var(--accent)', outlineOffset: '2px' },
  '.cm-scroller': { fontFamily: 'var(--mono)', lineHeight: '1.45', minHeight: '14rem', maxHeight: '70vh', overflow: 'auto' },
  '.cm-content': { caretColor: 'var(--ink)' },
  '.cm-gutters': { backgroundColor: 'var(--surface)', color: 'var(--ink-3)', border: '0' },
  '.cm-activeLine': { backgroundColor: 'var(--sunken)' },
  '.cm-lintRange-error': { backgroundImage: 'none', textDecoration: 'underline wavy var(--deny)' },
  '.cm-tooltip': { backgroundColor: 'var(--surface)', color: 'var(--ink)', border: '1px solid var(--edge)' },
  '.cm-tooltip-autocomplete > ul > li[aria-selected]': { backgroundColor: 'var(--accent-bg)', color: 'var(--ink)' },
  '.cm-diagnostic-error': { borderLeft: '3px solid var(--deny)' },
});
const COLORS = HighlightStyle.define([
  { tag: tags.propertyName, color: 'var(--accent)' },
  { tag: [tags.string, tags.content], color: 'var(--ink)' },
  { tag: [tags.number, tags.bool, tags.keyword], color: 'var(--allow)' },
  { tag: tags.comment, color: 'var(--ink-3)', fontStyle: 'italic' },
]);

/** The words that fit at a place, by the member before it; the members themselves under ''. @typedef {Record<string, string[]>} Words */

/** @param {Words} words */
const completing = (words) =>
  autocompletion({
    icons: false,
    override: [
      ({ state, pos, explicit }) => {
        const line = state.doc.lineAt(pos);
        const before = line.text.slice(0, pos - line.from);
        const [, member = '', value] = /^(\w+): +(\S*)$/.exec(before) ?? /^ *- *()(\w*)$/.exec(before) ?? [];
        const typed = value ?? /^\w*$/.exec(before)?.[0];
        if (typed === undefined || (typed === '' && value === undefined && !explicit)) return null;
        const found = words[value === undefined ? '' : member || 'subjects'] ?? [];
        return { from: pos - typed.length, options: found.map((label) => ({ label })), validFor: /^\S*$/ };
      },
    ],
  });

/**
 * Replaces the selection with what is typed. Left to itself, Chromium keeps the look of the first replaced letter in a `style` attribute, which
 * the content security policy refuses.
 */
const TYPING = EditorView.domEventHandlers({
  beforeinput(event, view) {
    if (event.inputType !== 'insertText' || event.data === null || view.state.selection.main.empty) return false;
    view.dispatch(view.state.replaceSelection(event.data), { userEvent: 'input.type', scrollIntoView: true });
    return true;
  },
});

/**
 * Where in the text a problem is: `line 2, column 5: …`, or `effect must …` for the member with that name.
 * @param {EditorState} state @param {string} problem
 */
function diagnosticOf({ doc }, problem) {
  const [, number = '1', column = '1', told] = /^line (\d+), column (\d+): (.*)$/s.exec(problem) ?? [];
  const member = told === undefined ? /^\w+/.exec(problem)?.[0] : undefined;
  const named = member === undefined ? -1 : [...doc.iterLines()].findIndex((text) => text.startsWith(`${member}:`));
  const line = doc.line(Math.min(doc.lines, named < 0 ? Number(number) : named + 1));
  const from = Math.min(line.to, line.from + Number(column) - 1);
  return /** @type {const} */ ({ from, to: line.to, severity: 'error', message: told ?? problem });
}

/**
 * Puts an editor in the place of its text area, which keeps the text for the form. `data-words`: the words that it completes, as JSON.
 * `data-problems`: what the gateway refused, as JSON.
 */
class CodeEditor extends HTMLElement {
  connectedCallback() {
    const area = this.querySelector('textarea');
    if (area === null || this.shadowRoot !== null) return;
    const label = document.querySelector(`label[for="${area.id}"]`);
    // In a shadow tree, CodeMirror constructs its style sheets, which the content security policy of the page allows.
    const root = this.attachShadow({ mode: 'open' });
    const state = EditorState.create({
      doc: area.value,
      extensions: [
        ...[lineNumbers(), history(), highlightActiveLine(), EditorView.lineWrapping, LOOK, TYPING],
        ...[yaml(), syntaxHighlighting(COLORS), completing(JSON.parse(this.dataset['words'] ?? '{}'))],
        // Tab leads out of the editor, as out of every field.
        keymap.of([...completionKeymap, ...lintKeymap, ...historyKeymap, ...defaultKeymap]),
        EditorView.contentAttributes.of({
          'aria-label': label?.textContent ?? '',
          'aria-invalid': area.getAttribute('aria-invalid') ?? 'false',
          spellcheck: 'false',
        }),
        EditorView.updateListener.of(({ docChanged, state: now }) => {
          if (docChanged) area.value = now.doc.toString();
        }),
      ],
    });
    const view = new EditorView({ state, parent: root, root });
    const problems = /** @type {string[]} */ (JSON.parse(this.dataset['problems'] ?? '[]'));
    view.dispatch(
      setDiagnostics(
        view.state,
        problems.map((problem) => diagnosticOf(view.state, problem)),
      ),
    );
    // The label, and the links to what is wrong, lead to the editor.
    for (const way of document.querySelectorAll(`label[for="${area.id}"],a[href="#${area.id}"]`))
      way.addEventListener('click', (event) => {
        event.preventDefault();
        view.focus();
      });
  }
}
customElements.define('code-editor', CodeEditor);
