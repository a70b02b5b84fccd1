/** Strong entity tags (RFC 9110, 8.8.3) and the precondition on changes. */
import { createHash } from 'node:crypto';
import { AppError } from '../errors.ts';

/** `content` is the resource as the API shows it, its members in their fixed order. */
export function etagOf(content: object): string {
  return `"${createHash('sha256').update(JSON.stringify(content)).digest('base64url').slice(0, 27)}"`;
}

/** Throws AppError `precondition_failed` unless `ifMatch`, the header if there is one, names the current tag. Weak tags never do. */
export function requireMatch(ifMatch: string | undefined, current: string): void {
  if (ifMatch === undefined || ifMatch.trim() === '*') return;
  const named = ifMatch.split(',').map((tag) => tag.trim());
  if (!named.includes(current))
    throw new AppError('precondition_failed', 'The resource is not the one that If-Match names. Read it again.');
}
