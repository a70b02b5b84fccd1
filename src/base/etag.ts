/** Strong entity tags (RFC 9110, 8.8.3), and the If-Match precondition on changes. */
import { createHash } from 'node:crypto';
import { AppError } from './errors.ts';

/** Returns the tag of a resource. `content` is the resource as the API shows it, with its members in a fixed order. */
export function etagOf(content: object): string {
  return `"${createHash('sha256').update(JSON.stringify(content)).digest('base64url').slice(0, 27)}"`;
}

/**
 * Throws AppError `precondition_failed` unless `ifMatch` (the header, if there is one) names the current tag. A weak tag never
 * matches.
 */
export function requireMatch(ifMatch: string | undefined, current: string): void {
  if (ifMatch === undefined || ifMatch.trim() === '*') return;
  const named = ifMatch.split(',').map((tag) => tag.trim());
  if (!named.includes(current))
    throw new AppError('precondition_failed', 'The resource has changed since the version that If-Match names. Read it again.');
}
