/** Long lists: a page shows a part of them, and makes their markup in slices, between which other requests run. */
import { pause } from '../base/turns/slices.ts';
import { type Content, html } from '../browser/html.ts';
import { number } from './marks.ts';
import { type View, withQuery } from './view.ts';

/** How many items a page shows of a list that its operation returns whole. */
export const SHOWN = 200;

/** So few items are made without a turn, for which a page may wait. */
const FEW = 20;

/**
 * Returns the markup of each item. Names can have thousands of characters that need escapes, so even a part of a list takes several slices, and
 * many pages at once would take most of the thread.
 */
export function inSlices<T, M extends Content>(
  { inTurn }: Pick<View, 'inTurn'>,
  items: readonly T[],
  show: (item: T, at: number) => M,
): Promise<M[]> {
  const make = async (): Promise<M[]> => {
    const shown: M[] = [];
    for (const [at, item] of items.entries()) {
      await pause();
      shown.push(show(item, at));
    }
    return shown;
  };
  return items.length > FEW ? inTurn(make) : make();
}

interface Part<T> {
  readonly items: readonly T[];
  /** Says which items of how many these are, with links to the others. Empty if they are all. */
  readonly others: Content;
}

/**
 * Returns the part of the list that the query of the page asks for. `what`: what the items are. `skip`: the member of the query that says how many
 * items come before the part, for pages with several lists.
 */
export function partOf<T>(all: readonly T[], { query }: Pick<View, 'query'>, path: string, what: string, skip = 'skip'): Part<T> {
  const asked = query[skip] ?? '';
  const from = /^[0-9]{1,6}$/.test(asked) && Number(asked) < all.length ? Number(asked) : 0;
  const items = all.slice(from, from + SHOWN);
  const link = (at: number, label: string): Content =>
    html` <a href="${withQuery(path, { ...query, [skip]: `${at}` })}">${label}</a>`;
  const others =
    items.length < all.length &&
    html`<p class="muted">${number(from + 1)} to ${number(from + items.length)} of ${number(all.length)} ${what} are shown.${from > 0 && link(Math.max(0, from - SHOWN), `Previous ${SHOWN}`)}${from + SHOWN < all.length && link(from + SHOWN, `Next ${Math.min(SHOWN, all.length - from - SHOWN)}`)}</p>`;
  return { items, others };
}
