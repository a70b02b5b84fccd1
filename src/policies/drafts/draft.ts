/** A change of the policy set that is not made yet: files as `apply` takes them, kept under a name to be tested, replayed and shadowed. */
import { createHash } from 'node:crypto';
import type { ChainPositions } from '../../audit/recorded/store.ts';
import type { TallyState } from '../replay/tally.ts';

export const DRAFT_NAME = /^[a-z0-9][a-z0-9._-]{0,62}$/;

export interface DraftSummary {
  readonly name: string;
  readonly owner: string;
  readonly prune: boolean;
  readonly adopt: boolean;
  /** Of the content: the same however its files are ordered. */
  readonly hash: string;
  /** Who saved it last. */
  readonly author: { readonly id: string; readonly email: string };
  readonly created_at: number;
  readonly updated_at: number;
}

export interface Draft extends DraftSummary {
  /** Texts by file name. */
  readonly files: Readonly<Record<string, string>>;
  /** As `files`; tests that must pass before it is activated. */
  readonly tests: Readonly<Record<string, string>>;
}

export type DraftContent = Pick<Draft, 'owner' | 'prune' | 'adopt' | 'files' | 'tests'>;

/** A draft that is evaluated beside the live set. */
export interface Shadow {
  readonly draft: string;
  /** Decisions are counted that were made from then on. */
  readonly since: number;
  readonly version: number;
  readonly progress: ShadowProgress;
  readonly flips: TallyState['flips'];
}

export interface ShadowProgress extends Omit<TallyState, 'flips'> {
  /** How far the log has been read. */
  readonly positions: ChainPositions;
  readonly updated_at: number;
  /** Why the draft cannot be applied to the set as it is now; null: it can. Until it can, decisions wait to be counted. */
  readonly problem: string | null;
}

export function draftHash({ owner, prune, adopt, files, tests }: DraftContent): string {
  const sorted = (texts: Draft['files']) => Object.entries(texts).sort(([a], [b]) => (a < b ? -1 : 1));
  return createHash('sha256')
    .update(JSON.stringify([owner, prune, adopt, sorted(files), sorted(tests)]))
    .digest('hex');
}
