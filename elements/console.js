// @ts-check
/**
 * What the pages of the console do besides if JavaScript runs. Without it, every page works. The gateway makes all markup: these elements
 * only put it in its place.
 */

/** @param {number} ms @returns {Promise<void>} */
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/**
 * Asks for a piece of a page. Returns null if the user is no longer signed in.
 * @param {string} path @param {AbortSignal} [signal] @returns {Promise<Response | null>}
 */
async function ask(path, signal) {
  const answer = await fetch(path, { redirect: 'manual', ...(signal && { signal }) });
  return answer.type === 'opaqueredirect' ? null : answer;
}

/** @param {string} markup */
function parsed(markup) {
  const template = document.createElement('template');
  template.innerHTML = markup;
  return template.content;
}

const EVERY_MS = 2_000;
/** A decision that a different replica recorded may appear some seconds after a newer one, and its outcome comes later. */
const OVERLAP_MS = 10_000;

/** Shows new decisions at the top of the table. `data-rows`: the address of its rows. */
class LiveTail extends HTMLElement {
  #isLive = false;

  connectedCallback() {
    this.hidden = false;
    this.querySelector('button')?.addEventListener('click', () => this.#toggle());
  }

  disconnectedCallback() {
    this.#isLive = false;
  }

  #toggle() {
    this.#isLive = !this.#isLive;
    this.querySelector('button')?.setAttribute('aria-pressed', String(this.#isLive));
    this.#say(this.#isLive ? 'New decisions appear at the top.' : '');
    if (this.#isLive) void this.#follow();
  }

  /** @param {string} text */
  #say(text) {
    const status = this.querySelector('[role=status]');
    if (status !== null && status.textContent !== text) status.textContent = text;
  }

  /** @param {string} why */
  #stop(why) {
    if (this.#isLive) this.#toggle();
    this.#say(why);
  }

  async #follow() {
    for (; this.#isLive; await sleep(EVERY_MS)) {
      if (document.hidden) continue;
      const answer = await this.#asked();
      if (!this.#isLive) return;
      if (answer === null) return this.#stop('You are signed out. Load the page again to sign in.');
      if (answer.status === 429 || answer.status === 503) await sleep(Number(answer.headers.get('Retry-After') ?? 5) * 1_000);
      else if (answer.status !== 0 && !answer.ok) return this.#stop('The gateway refused the decisions. Load the page again.');
      else if (answer.ok) this.#show(parsed(await answer.text()));
    }
  }

  async #asked() {
    const newest = document.querySelector('#decisions tbody time')?.getAttribute('datetime') ?? this.dataset['since'] ?? '';
    const from = new Date(Date.parse(newest) - OVERLAP_MS).toISOString();
    try {
      return await ask(`${this.dataset['rows']}&from=${encodeURIComponent(from)}`);
    } catch {
      this.#say('The gateway does not answer. Trying again.');
      return Response.error();
    }
  }

  /** @param {DocumentFragment} content */
  #show(content) {
    const body = document.querySelector('#decisions tbody');
    const rows = [...content.querySelectorAll('tr')];
    if (body === null) {
      if (rows.length > 0) location.reload();
      return;
    }
    const most = Number(this.dataset['most']);
    let fresh = 0;
    // The newest comes first, so the last of them is put in first.
    for (const row of rows.reverse()) {
      const known = document.getElementById(row.id);
      if (known === null) {
        const next = [...body.children].find(({ id }) => id < row.id) ?? null;
        body.insertBefore(row, next);
        fresh++;
      } else if (!known.contains(document.activeElement)) known.replaceWith(row);
    }
    while (body.children.length > most) body.lastElementChild?.remove();
    if (fresh > 0) this.#say(`${fresh} new ${fresh === 1 ? 'decision' : 'decisions'}.`);
  }
}
customElements.define('live-tail', LiveTail);

const TYPING_MS = 150;

/** Shows what the search finds under its field, while the user types. `data-found`: the address of the results. */
class SearchBox extends HTMLElement {
  /** @type {AbortController | null} */
  #asked = null;

  connectedCallback() {
    const field = this.#field();
    field.addEventListener('input', () => void this.#search());
    this.addEventListener('keydown', (event) => this.#move(event));
    this.addEventListener('focusout', ({ relatedTarget }) => {
      if (!(relatedTarget instanceof Node && this.contains(relatedTarget))) this.#close();
    });
    document.addEventListener('keydown', (event) => {
      const isSlash = event.key === '/' && !event.ctrlKey && !event.metaKey && !event.altKey;
      const isPalette = event.key === 'k' && (event.ctrlKey || event.metaKey);
      const isTyped = event.target instanceof Element && event.target.closest('input,textarea,select') !== null;
      if (!isPalette && (!isSlash || isTyped)) return;
      event.preventDefault();
      field.focus();
      field.select();
    });
  }

  /** @returns {HTMLInputElement} */
  #field() {
    const field = this.querySelector('input');
    if (field === null) throw new Error('a search box has a field');
    return field;
  }

  /** @returns {HTMLElement} */
  #list() {
    const list = this.querySelector('.found');
    if (!(list instanceof HTMLElement)) throw new Error('a search box has a list');
    return list;
  }

  #close() {
    this.#asked?.abort();
    this.#list().hidden = true;
    this.#say('');
  }

  /** @param {string} text */
  #say(text) {
    const status = this.querySelector('[role=status]');
    if (status !== null) status.textContent = text;
  }

  async #search() {
    this.#asked?.abort();
    const asked = new AbortController();
    this.#asked = asked;
    const text = this.#field().value.trim();
    if (text === '') return this.#close();
    try {
      await sleep(TYPING_MS);
      if (asked.signal.aborted) return;
      const answer = await ask(`${this.dataset['found']}?q=${encodeURIComponent(text)}`, asked.signal);
      // The form itself still works, and says what is wrong.
      if (answer === null || !answer.ok) return this.#close();
      const content = parsed(await answer.text());
      const links = content.querySelectorAll('a').length;
      this.#list().replaceChildren(content);
      this.#list().hidden = false;
      this.#say(`${links} ${links === 1 ? 'result' : 'results'}. The arrow keys lead to them.`);
    } catch (error) {
      if (!asked.signal.aborted) throw error;
    }
  }

  /** @param {KeyboardEvent} event */
  #move(event) {
    if (event.key === 'Escape') {
      this.#field().focus();
      return this.#close();
    }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step === undefined || this.#list().hidden) return;
    event.preventDefault();
    const stops = [this.#field(), ...this.#list().querySelectorAll('a')];
    const at = stops.findIndex((stop) => stop.matches(':focus'));
    stops[(at + step + stops.length) % stops.length]?.focus();
  }
}
customElements.define('search-box', SearchBox);

// The gateway shows times in this zone from the next page on.
const { timeZone } = new Intl.DateTimeFormat().resolvedOptions();
if (!document.cookie.split('; ').includes(`portcullis-zone=${timeZone}`))
  // biome-ignore lint/suspicious/noDocumentCookie: Firefox and Safari have no other way in older versions.
  document.cookie = `portcullis-zone=${timeZone};path=/;max-age=31536000;samesite=lax${location.protocol === 'https:' ? ';secure' : ''}`;
