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

/** The fields of a policy that say which names it is about. */
const ABOUT = ['target_id', 'resource_type', 'resource_pattern'];

/** Shows what the pattern of the form matches, while the user types. `data-tried`: the address of that. */
class PatternTry extends HTMLElement {
  /** @type {AbortController | null} */
  #asked = null;

  connectedCallback() {
    for (const field of this.#fields()) field.addEventListener('input', () => void this.#try());
  }

  /** @returns {(HTMLInputElement | HTMLSelectElement)[]} */
  #fields() {
    return ABOUT.flatMap((name) => {
      const field = document.getElementById(`f-${name}`);
      return field instanceof HTMLInputElement || field instanceof HTMLSelectElement ? [field] : [];
    });
  }

  async #try() {
    this.#asked?.abort();
    this.#asked = new AbortController();
    const { signal } = this.#asked;
    try {
      await sleep(2 * TYPING_MS);
      if (signal.aborted) return;
      const query = new URLSearchParams(this.#fields().map(({ name, value }) => [name, value]));
      const answer = await ask(`${this.dataset['tried']}?${query}`, signal);
      // The button still works, and says what is wrong.
      this.#show(answer?.ok ? parsed(await answer.text()) : parsed(''));
    } catch (error) {
      if (!signal.aborted) throw error;
    }
  }

  /** @param {DocumentFragment} content */
  #show(content) {
    const titles = [...content.querySelectorAll('h3')].map(({ textContent }) => textContent);
    const [status, place] = [this.querySelector('[role=status]'), this.querySelector('div')];
    if (status !== null) status.textContent = titles.length > 0 ? titles.join('. ') : (content.textContent ?? '');
    // What the button showed before is older.
    for (const old of document.querySelectorAll('section[aria-labelledby=matches]')) old.remove();
    place?.replaceChildren(content);
  }
}
customElements.define('pattern-try', PatternTry);

/**
 * Lets rows of the list of policies be dragged by their number, to the place of another row. That leads to the page that shows what the move
 * would change, so nothing is changed by a slip. `data-path`: the address of the list.
 */
class PolicyOrder extends HTMLElement {
  connectedCallback() {
    /** @type {HTMLElement | null} */
    let dragged = null;
    /** @param {EventTarget | null} at @returns {HTMLElement | null} */
    const rowAt = (at) => (at instanceof Element ? at.closest('tr[data-position]') : null);
    /** @param {HTMLElement | null} row */
    const placeOf = (row) => Number(row?.dataset['position']);
    /** @param {HTMLElement | null} row */
    const mark = (row) => {
      for (const old of this.querySelectorAll('.drop-above,.drop-below')) old.classList.remove('drop-above', 'drop-below');
      if (row !== null && row !== dragged) row.classList.add(placeOf(row) < placeOf(dragged) ? 'drop-above' : 'drop-below');
    };
    // The links in a handle would be dragged in its place.
    for (const part of this.querySelectorAll('td.pos,td.pos a'))
      if (part instanceof HTMLElement) part.draggable = part.matches('td');
    this.addEventListener('dragstart', (event) => {
      dragged = event.target instanceof HTMLElement && event.target.matches('td.pos') ? rowAt(event.target) : null;
      if (dragged === null || event.dataTransfer === null) return;
      event.dataTransfer.effectAllowed = 'move';
      event.dataTransfer.setDragImage(dragged, 0, 0);
    });
    this.addEventListener('dragover', (event) => {
      const row = rowAt(event.target);
      if (dragged === null || row === null) return;
      event.preventDefault();
      mark(row);
    });
    this.addEventListener('drop', (event) => {
      const row = rowAt(event.target);
      if (dragged === null || row === null || row === dragged) return;
      event.preventDefault();
      location.href = `${this.dataset['path']}/${dragged.dataset['id']}/move?position=${placeOf(row)}`;
    });
    this.addEventListener('dragend', () => {
      mark(null);
      dragged = null;
    });
  }
}
customElements.define('policy-order', PolicyOrder);

/** Counts down to the time from which the gateway answers again. `data-seconds`: how long that is from now. */
class AgainIn extends HTMLElement {
  connectedCallback() {
    const until = performance.now() + Number(this.dataset['seconds']) * 1_000;
    const timer = setInterval(() => {
      const left = Math.ceil((until - performance.now()) / 1_000);
      const [text, shown] = [this.querySelector('p')?.firstChild, this.querySelector('b')];
      if (left > 0 && shown !== null) shown.textContent = String(left);
      if (left > 0) return;
      clearInterval(timer);
      shown?.nextSibling?.remove();
      shown?.remove();
      if (text) text.textContent = 'You can try again now. ';
    }, 1_000);
  }
}
customElements.define('again-in', AgainIn);

// The gateway shows times in this zone from the next page on.
const { timeZone } = new Intl.DateTimeFormat().resolvedOptions();
if (!document.cookie.split('; ').includes(`portcullis-zone=${timeZone}`))
  // biome-ignore lint/suspicious/noDocumentCookie: Firefox and Safari have no other way in older versions.
  document.cookie = `portcullis-zone=${timeZone};path=/;max-age=31536000;samesite=lax${location.protocol === 'https:' ? ';secure' : ''}`;
