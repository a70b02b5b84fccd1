/** A draft: files in the form of `apply`, stored under a name before they are applied, so that they can be tested, replayed and shadowed. */
import { hash } from 'node:crypto';

export const DRAFT_NAME = /^[a-z0-9][a-z0-9._-]{0,62}$/;

export interface DraftSummary {
  readonly name: string;
  readonly owner: string;
  readonly prune: boolean;
  readonly adopt: boolean;
  /** The hash of the content. The order of the files does not change it. */
  readonly hash: string;
  /** The administrator who saved the draft last. */
  readonly author: { readonly id: string; readonly email: string };
  readonly created_at: number;
  readonly updated_at: number;
}

export interface Draft extends DraftSummary {
  /** Texts by file name. */
  readonly files: Readonly<Record<string, string>>;
  /** Test files, in the same form. These tests must pass before the draft can be activated. */
  readonly tests: Readonly<Record<string, string>>;
}

export type DraftContent = Pick<Draft, 'owner' | 'prune' | 'adopt' | 'files' | 'tests'>;

export function draftHash({ owner, prune, adopt, files, tests }: DraftContent): string {
  const sorted = (texts: Draft['files']) => Object.entries(texts).sort(([a], [b]) => (a < b ? -1 : 1));
  return hash('sha256', JSON.stringify([owner, prune, adopt, sorted(files), sorted(tests)]), 'hex');
}
