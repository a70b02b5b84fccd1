/** Providers. They are only written in administrative transactions, which run one at a time. */
import type { Provider, Providers } from '../auth/provider.ts';
import { AppError } from '../base/errors.ts';
import type { Connection } from '../db/database.ts';
import { isDuplicate } from '../db/statement.ts';
import { SETTINGS, type Settings } from './settings.ts';

interface Row extends Pick<Provider, 'id' | 'name' | 'issuer' | 'created_at' | 'updated_at'> {
  readonly enabled: boolean | number;
  /** JSON of `Settings`. */
  readonly settings: string;
  readonly sealed_secret: string | null;
}

const COLUMNS = ['id', 'name', 'issuer', 'enabled', 'settings', 'created_at', 'updated_at'] as const;

/** Members that an older version did not write have the value that behaves as that version did, except `app_only` and `id_jag`, which are off. */
function toProvider({ id, name, issuer, enabled, settings, created_at, updated_at }: Omit<Row, 'sealed_secret'>): Provider {
  const {
    tokens,
    role_required = false,
    groups_from = 'token',
    id_jag = false,
    ...stored
  } = JSON.parse(settings) as Omit<Settings, 'role_required' | 'groups_from' | 'id_jag'> & Partial<Settings>;
  return {
    ...{ id, name, issuer, enabled: enabled === true || enabled === 1, ...stored, role_required, groups_from, id_jag },
    tokens: tokens && { ...tokens, app_only: tokens.app_only ?? false },
    ...{ created_at, updated_at },
  };
}

function toRow(provider: Provider): Omit<Row, 'sealed_secret'> {
  const { id, name, issuer, enabled, created_at, updated_at } = provider;
  const settings = JSON.stringify(Object.fromEntries(SETTINGS.map((member) => [member, provider[member]])));
  return { id, name, issuer, enabled, settings, created_at, updated_at };
}

export function providerStore(db: Connection) {
  const one = async (where: Partial<Row>): Promise<Provider | null> => {
    const row = await db('providers')
      .where(where)
      .first<Row | undefined>(...COLUMNS);
    return row ? toProvider(row) : null;
  };
  return {
    /** In the order of their names. */
    async list(): Promise<Provider[]> {
      const rows: Row[] = await db('providers')
        .select(...COLUMNS)
        .orderBy('name');
      return rows.map(toProvider);
    },

    find: (id: string): Promise<Provider | null> => one({ id }),

    findByName: (name: string): Promise<Provider | null> => one({ name }),

    findByIssuer: (issuer: string): Promise<Provider | null> => one({ issuer }),

    /** Returns the client secret as it is sealed; null: there is none. */
    async sealedSecret(id: string): Promise<string | null> {
      const row = await db('providers').where({ id }).first<Pick<Row, 'sealed_secret'> | undefined>('sealed_secret');
      return row?.sealed_secret ?? null;
    },

    async sealedSecrets(): Promise<Pick<Row, 'id' | 'sealed_secret'>[]> {
      return await db('providers').whereNotNull('sealed_secret').select('id', 'sealed_secret');
    },

    async setSealedSecret(id: string, sealed_secret: string | null): Promise<void> {
      await db('providers').where({ id }).update({ sealed_secret });
    },

    /** Does nothing if an administrator has set a different secret meanwhile. */
    async replaceSealedSecret(id: string, before: string, sealed_secret: string): Promise<void> {
      await db('providers').where({ id, sealed_secret: before }).update({ sealed_secret });
    },

    /** Writes the record, so that a change of the provider at a different member of a cluster comes before the caller's transaction, or after. */
    async countSignIn(id: string): Promise<void> {
      await db('providers').where({ id }).increment('sign_ins', 1);
    },

    /** Throws AppError `provider_taken`. */
    async insert(provider: Provider): Promise<void> {
      try {
        await db('providers').insert(toRow(provider));
      } catch (error) {
        if (isDuplicate(error)) throw taken();
        throw error;
      }
    },

    /** Throws AppError `provider_taken`. */
    async update(provider: Provider): Promise<void> {
      try {
        await db('providers').where({ id: provider.id }).update(toRow(provider));
      } catch (error) {
        if (isDuplicate(error)) throw taken();
        throw error;
      }
    },

    async delete(id: string): Promise<void> {
      await db('providers').where({ id }).delete();
    },
  };
}

const taken = (): AppError => new AppError('provider_taken', 'A different provider already has this name or this issuer.');

/** Returns the enabled providers by issuer. */
export async function enabledProviders(db: Connection): Promise<Providers> {
  const all = await providerStore(db).list();
  return new Map(all.filter(({ enabled }) => enabled).map((provider) => [provider.issuer, provider]));
}
