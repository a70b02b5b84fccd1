/** Which of a target's credentials a principal's calls are made with. Pure. */
import { createHash } from 'node:crypto';
import type { Principal } from '../auth/principal.ts';
import { type CredentialSubject, fitsTransport, isRedirectingVariable } from './credential-document.ts';
import type { Access, CredentialKey, Credentials, RoutedTarget, Target } from './target.ts';

/** A credential that counts for its target. */
export interface HeldCredential extends CredentialSubject, CredentialKey {
  readonly supplied_by: 'administrator' | 'user';
  /** Another one with every value that is set. */
  readonly version: string;
  /** null: unusable. The value is not looked at before it is asked for. */
  readonly open: () => string | null;
}

type Facts = Pick<Principal, 'sub' | 'role' | 'groups'>;

const digest = (value: unknown): string => createHash('sha256').update(JSON.stringify(value)).digest('base64url');
/** Of their UTF-8, which every database and language agrees on. */
const inByteOrder = (names: readonly string[]): string[] =>
  names.length < 2 ? [...names] : [...names].sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
const subjectKey = (type: CredentialSubject['subject_type'], value: string): string => `${type}:${value}`;

/**
 * For each name on its own the most specific credential wins: the user's, then those of groups in byte order, the role's, the
 * default. Where one that wins is unusable everything is: a less specific one in its place would act as somebody else.
 */
export function accessor(target: Target, held: readonly HeldCredential[]): RoutedTarget['accessOf'] {
  // The same for everybody, and made when it is first needed.
  if (target.transport !== 'stdio' && held.every(({ subject_type }) => subject_type === 'default')) {
    let everybodys: Access | undefined;
    return () => {
      everybodys ??= accessWith(target, held, null);
      return everybodys;
    };
  }
  const bySubject = new Map<string, HeldCredential[]>();
  for (const credential of held) {
    const key = subjectKey(credential.subject_type, credential.subject_value);
    const those = bySubject.get(key);
    if (those) those.push(credential);
    else bySubject.set(key, [credential]);
  }
  return (principal) => {
    const groups = inByteOrder(principal.groups);
    const subjects = [
      subjectKey('user', principal.sub),
      ...groups.map((group) => subjectKey('group', group)),
      subjectKey('role', principal.role),
      subjectKey('default', ''),
    ];
    const winners = new Map<string, HeldCredential>();
    for (const credential of subjects.flatMap((subject) => bySubject.get(subject) ?? [])) {
      if (!winners.has(credential.name)) winners.set(credential.name, credential);
    }
    const scope = scopeOf(target, principal.role, groups);
    const access = accessWith(target, [...winners.values()], scope);
    const isOwn = scope === null || [...winners.values()].some(({ subject_type }) => subject_type === 'user');
    return target.transport === 'stdio' && isOwn ? { ...access, owner: principal.sub } : access;
  };
}

function scopeOf(target: Target, role: Facts['role'], groups: readonly string[]): string | null {
  if (target.transport !== 'stdio') return null;
  switch (target.isolation) {
    case 'per_user':
      return null;
    case 'per_group':
      return groups[0] ?? null;
    case 'per_role':
      return role;
    case 'shared':
      return '';
  }
}

function accessWith(target: Target, unordered: readonly HeldCredential[], scope: string | null): Access {
  // One credential for each name, so that nothing is equal here.
  const winners = [...unordered].sort((a, b) => (a.name < b.name ? -1 : 1));
  const identity = digest(winners.map((one) => [one.subject_type, one.subject_value, one.type, one.name, one.version]));
  return { credentials: openAll(target, winners, identity), scope, binding: digest([identity, scope]) };
}

function openAll(target: Target, winners: readonly HeldCredential[], identity: string): Credentials | 'unusable' {
  const headers: [string, string][] = [];
  const env: [string, string][] = [];
  // What a user sets may send the user's own values elsewhere, and nobody else's.
  const isRedirected = winners.some(
    ({ supplied_by, type, name }) => supplied_by === 'user' && type === 'env' && isRedirectingVariable(name),
  );
  if (isRedirected && winners.some(({ supplied_by }) => supplied_by !== 'user')) return 'unusable';
  for (const { type, name, open } of winners) {
    const value = fitsTransport(target.transport, type) ? open() : null;
    if (value === null) return 'unusable';
    if (type === 'env') env.push([name, value]);
    else headers.push([name, type === 'bearer' ? `Bearer ${value}` : value]);
  }
  return { headers, env: Object.fromEntries(env), identity };
}
