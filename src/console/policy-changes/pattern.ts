/** A pattern, tried against the names that targets have now. */
import { AppError, invalidRequest } from '../../base/errors.ts';
import { type Content, html, type Markup } from '../../browser/html.ts';
import { note, timeOf } from '../../browser/page.ts';
import type { TargetJson } from '../../targets/document.ts';
import { inSlices, SHOWN } from '../lists.ts';
import { requireMay, type View, withQuery } from '../view.ts';
import { aboutIn } from './wanted.ts';

/** The members of a policy that say which names it is about. */
interface About {
  readonly target_id: string | null;
  readonly resource_type: string;
  readonly resource_pattern: string | null;
}

interface Catalogue {
  readonly replica: string;
  readonly names: readonly {
    readonly resource_type: string;
    readonly resource_name: string;
    readonly seen_at: string;
    readonly matches: boolean | null;
  }[];
  readonly names_count: number;
}

type Target = Pick<TargetJson, 'id' | 'name'>;

/** A policy can be for every target. So many are looked at. */
const TARGETS_SHOWN = 5;
const OLD_MS = 24 * 60 * 60_000;

/** Which names of the targets the pattern matches now. Rejects with AppError `invalid_request`, with the paths of the form. */
export async function patternSection(view: View, about: About, targets: readonly Target[]): Promise<Markup> {
  requireMay(view, 'getTargetCatalogue');
  const { target_id, resource_type, resource_pattern } = about;
  const its = target_id === null ? targets : targets.filter(({ id }) => id === target_id);
  if (target_id !== null && its.length === 0) throw invalidRequest([{ path: 'target_id', message: 'is not one of the list' }]);
  const query = {
    ...(resource_type === 'all' ? {} : { resource_type }),
    ...(resource_pattern === null ? {} : { resource_pattern }),
  };
  const seen = its.slice(0, TARGETS_SHOWN).map(async (target) => {
    const { body } = await view.get<Catalogue>(withQuery(`/targets/${target.id}/catalogue`, query));
    return targetPart(view, target, body);
  });
  return html`<section class="stack tight" aria-labelledby="matches"><h2 id="matches">What the pattern matches now</h2>
<p class="muted">The engine has tested it with the names that the targets last listed. Names that come later are matched, too, if they fit.</p>
${await Promise.all(seen)}
${its.length === 0 && html`<p>There is no target yet.</p>`}
${its.length > TARGETS_SHOWN && html`<p class="muted">These are ${TARGETS_SHOWN} of ${its.length} targets. Choose a target to see its names.</p>`}</section>`;
}

/** What the pattern of a form matches, for the script of the page. */
export async function patternBeside(view: View): Promise<Content> {
  const { body: targets } = await view.get<Target[]>('/targets');
  try {
    return await patternSection(view, aboutIn(view.query), targets);
  } catch (error) {
    const wrong = error instanceof AppError ? error.errors?.find(({ path }) => path === 'resource_pattern') : undefined;
    if (wrong === undefined) throw error;
    return html`<p>The pattern ${wrong.message}.</p>`;
  }
}

async function targetPart(view: View, { id, name }: Target, { replica, names, names_count }: Catalogue): Promise<Markup> {
  const link = html`<a href="/console/targets/${id}">${name}</a>`;
  const newest = Math.max(...names.map(({ seen_at }) => Date.parse(seen_at)));
  if (names.length === 0)
    return note(
      'warn',
      html`${link} has listed no such name since the replica <code>${replica}</code> started. Check the target first.`,
    );
  const isOld = Date.now() - newest > OLD_MS;
  // Without a pattern, a policy matches every name.
  const [fits, others] = [names.filter(({ matches }) => matches !== false), names.filter(({ matches }) => matches === false)];
  return html`<h3>${name}: ${fits.length} of ${names.length} match</h3>
<p class="sm muted">Last listed ${timeOf(newest)}, as the replica <code>${replica}</code> saw it.${names_count > names.length && ` The other ${names_count - names.length} names were not tested.`}</p>
${isOld && note('warn', html`The list is older than a day, so ${link} may have changed. Check the target first.`)}
${fits.length === 0 ? html`<p>It matches no name.</p>` : await nameList(view, fits)}
${others.length > 0 && html`<details ?open="${fits.length === 0}"><summary>${others.length} that it does not match</summary>${await nameList(view, others)}</details>`}`;
}

const nameList = async (view: View, names: Catalogue['names']): Promise<Content> =>
  html`<ul class="names">${await inSlices(view, names.slice(0, SHOWN), ({ resource_type, resource_name }) => html`<li><code>${resource_name}</code>${resource_type !== 'tool' && html` <span class="muted">${resource_type}</span>`}</li>`)}</ul>
${names.length > SHOWN && html`<p class="muted">${SHOWN} of ${names.length} are shown.</p>`}`;
