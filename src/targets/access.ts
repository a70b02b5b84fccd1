/** Chooses the credentials of a target with which the calls of a principal are made. Pure. */
import { createHash } from 'node:crypto';
import type { Principal } from '../auth/principal.ts';
import { type CredentialSubject, fitsTransport, isRedirectingVariable } from './credential-document.ts';
import type { Access, CredentialKey, Credentials, RoutedTarget, Target } from './target.ts';

/** A credential that the target may use. */
export interface HeldCredential extends CredentialSubject, CredentialKey {
  readonly supplied_by: 'administrator' | 'user';
  /** Changes whenever a value is set. */
  readonly version: string;
  /** Decrypts the value on first use; null: the credential is unusable. */
  readonly open: () => string | null;
}

type Facts = Pick<Principal, 'sub' | 'role' | 'groups'>;

const digest = (value: unknown): string => createHash('sha256').update(JSON.stringify(value)).digest('base64url');
/** Sorts by UTF-8 bytes, an order on which all databases and languages agree. */
const inByteOrder = (names: readonly string[]): string[] =>
  names.length < 2 ? [...names] : [...names].sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
const subjectKey = (type: CredentialSubject['subject_type'], value: string): string => `${type}:${value}`;

/**
 * For each name, the most specific credential wins: the user's, then those of groups in byte order, the role's, the default. If
 * a winner is unusable, all credentials are unusable, because a less specific one would act as a different account.
 */
export function accessor(target: Target, held: readonly HeldCredential[]): RoutedTarget['accessOf'] {
  // If there is only a default credential, everything except the user is the same for every principal.
  if (target.transport !== 'stdio' && held.every(({ subject_type }) => subject_type === 'default')) {
    let everybodys: Omit<Access, 'user'> | undefined;
    return ({ sub: user }) => {
      everybodys ??= accessWith(target, held, null);
      const { credentials, scope, binding } = everybodys;
      return { credentials, scope, binding, user };
    };
  }
  const bySubject = new Map<string, HeldCredential[]>();
  for (const credential of held) {
    const key = subjectKey(credential.subject_type, credential.subject_value);
    bySubject.set(key, [...(bySubject.get(key) ?? []), credential]);
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
    const access: Access = { ...accessWith(target, [...winners.values()], scope), user: principal.sub };
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

function accessWith(target: Target, unordered: readonly HeldCredential[], scope: string | null): Omit<Access, 'user'> {
  // There is one credential for each name, so the order is unambiguous.
  const winners = [...unordered].sort((a, b) => (a.name < b.name ? -1 : 1));
  const identity = digest(winners.map((one) => [one.subject_type, one.subject_value, one.type, one.name, one.version]));
  return { credentials: openAll(target, winners, identity), scope, binding: digest([identity, scope]) };
}

function openAll(target: Target, winners: readonly HeldCredential[], identity: string): Credentials | 'unusable' {
  const headers: [string, string][] = [];
  const env: [string, string][] = [];
  // A variable that a user sets may redirect the user's own values, but not the values of others.
  const isRedirected = winners.some(
    ({ supplied_by, type, name }) => supplied_by === 'user' && type === 'env' && isRedirectingVariable(name),
  );
  if (isRedirected && winners.some(({ supplied_by }) => supplied_by !== 'user')) return 'unusable';
  for (const { type, name, open } of winners) {
    const value = fitsTransport(target.transport, type) ? open() : null;
    if (value === null) return 'unusable';
    const header = headerValue(type, value);
    if (header === null) env.push([name, value]);
    else headers.push([name, header]);
  }
  return { headers, env: Object.fromEntries(env), identity };
}

/** null: the value is not sent in a header. */
function headerValue(type: CredentialKey['type'], value: string): string | null {
  switch (type) {
    case 'bearer':
      return `Bearer ${value}`;
    case 'header':
      return value;
    case 'env':
      return null;
  }
}
