import type { Knex } from 'knex';
import { hasIndex, tableMaker } from '../tables.ts';

/**
 * A user is known by issuer and subject. E-mails are unique among local accounts only. A replica of the older version may still
 * insert local accounts, so their issuer is the default, and a missing subject means the id.
 */
export async function up(db: Knex, collation: string | null): Promise<void> {
  const isMysql = collation !== null;
  const columns: readonly (readonly [name: string, type: string])[] = [
    ['issuer', "varchar(255) not null default 'portcullis'"],
    ['subject', 'varchar(255)'],
    // Seconds, as in the token.
    ['claims_iat', 'bigint'],
    ['valid_after', 'bigint'],
    ['facts', isMysql ? 'mediumtext' : 'text'],
    // MySQL has no partial indexes. Nulls are not compared by a unique index.
    ...(isMysql
      ? ([
          [
            'local_email',
            "varchar(320) generated always as (case when issuer = 'portcullis' then email_key else null end) virtual",
          ],
        ] as const)
      : []),
  ];
  for (const [name, type] of columns) {
    if (!(await db.schema.hasColumn('users', name))) await db.raw(`alter table users add column ${name} ${type}`);
  }
  await db('users')
    .whereNull('subject')
    .update({ subject: db.ref('id') });
  const has = (name: string) => hasIndex(db, 'users', name, collation);
  if (!(await has('users_identity'))) await db.raw('create unique index users_identity on users (issuer, subject)');
  if (!(await has('users_local_email')))
    await db.raw(
      isMysql
        ? 'create unique index users_local_email on users (local_email)'
        : "create unique index users_local_email on users (email_key) where issuer = 'portcullis'",
    );
  if (!(await has('users_email'))) await db.raw('create index users_email on users (email_key)');
  if (await has('users_email_key_unique'))
    await db.raw(isMysql ? 'drop index users_email_key_unique on users' : 'drop index users_email_key_unique');

  await tableMaker(db, collation)('providers', (t) => {
    t.string('id', 36).primary();
    t.string('name', 63).notNullable().unique();
    t.string('issuer', 255).notNullable().unique();
    t.boolean('enabled').notNullable();
    t.text('settings', 'mediumtext').notNullable();
    t.text('sealed_secret', 'mediumtext');
    t.bigInteger('created_at').notNullable();
    t.bigInteger('updated_at').notNullable();
  });
}
