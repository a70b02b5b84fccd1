/**
 * The gateway's own credentials for its targets, at rest. What is sealed names header and origin beside the value, so that a
 * row changed in the database does not send a secret elsewhere or in another place.
 */
import type { Vault } from '../auth/vault.ts';
import type { Connection } from '../db/database.ts';
import { BEARER_HEADER, type CredentialType, originOf } from './document.ts';
import { type CredentialRow, type CredentialSubject, targetStore } from './store.ts';
import type { RoutedTarget, Target, UpstreamCredential } from './target.ts';

const identityOf = (targetId: string, { subject_type, subject_value }: CredentialSubject): string =>
  `credential:${targetId}:${subject_type}:${subject_value}`;

export function sealCredential(
  vault: Vault,
  target: Target,
  subject: CredentialSubject,
  credential: UpstreamCredential,
  times: { readonly created_at: number; readonly updated_at: number },
): CredentialRow {
  const origin = originOf(target.url);
  const secret = JSON.stringify({ origin, header: credential.header, value: credential.value });
  return {
    target_id: target.id,
    subject_type: subject.subject_type,
    subject_value: subject.subject_value,
    header: credential.header,
    sealed: vault.seal(identityOf(target.id, subject), Buffer.from(secret)),
    origin,
    ...times,
  };
}

/** `unusable`: set for another origin, sealed under another key, or not as it was sealed. */
export function openCredential(vault: Vault, target: Target, row: CredentialRow): UpstreamCredential | 'unusable' {
  const origin = originOf(target.url);
  if (row.origin !== origin || row.target_id !== target.id) return 'unusable';
  try {
    const sealed = JSON.parse(vault.open(identityOf(target.id, row), row.sealed).toString()) as Record<string, unknown>;
    const { header, value } = sealed;
    const whole = sealed['origin'] === origin && header === row.header && typeof value === 'string';
    return whole ? { header: row.header, value } : 'unusable';
  } catch {
    return 'unusable';
  }
}

/** What may be told of a credential: everything but its value. */
export interface CredentialJson {
  readonly subject_type: 'default';
  readonly subject_value: string | null;
  readonly type: CredentialType;
  /** Header that carries it. */
  readonly name: string;
  readonly usable: boolean;
  readonly created_at: string;
  readonly updated_at: string;
}

export function credentialJson(vault: Vault, target: Target, row: CredentialRow): CredentialJson {
  return {
    subject_type: row.subject_type,
    subject_value: row.subject_value === '' ? null : row.subject_value,
    type: row.header === BEARER_HEADER ? 'bearer' : 'header',
    name: row.header.toLowerCase(),
    usable: openCredential(vault, target, row) !== 'unusable',
    created_at: new Date(row.created_at).toISOString(),
    updated_at: new Date(row.updated_at).toISOString(),
  };
}

/** Enabled targets by name, with what the request path needs to reach them. `db` must be of one moment. */
export async function routedTargets(db: Connection, vault: Vault): Promise<Map<string, RoutedTarget>> {
  const store = targetStore(db);
  const rows = new Map<string, CredentialRow>();
  for (const row of await store.credentials(null)) {
    if (row.subject_type === 'default') rows.set(row.target_id, row);
  }
  const targets = await store.enabled();
  return new Map(
    targets.map((target) => {
      const row = rows.get(target.id);
      return [target.name, { ...target, credential: row ? openCredential(vault, target, row) : 'none' }];
    }),
  );
}
