import type { IncomingMessage } from 'node:http';
import test from 'ava';
import { inZoneOf } from '../../src/browser/reader.ts';

test.serial('a stranger makes the gateway build no formats of times, and spellings of a zone share one', (t) => {
  let made = 0;
  const { DateTimeFormat } = Intl;
  Intl.DateTimeFormat = class extends DateTimeFormat {
    constructor(...of: ConstructorParameters<typeof DateTimeFormat>) {
      super(...of);
      made++;
    }
  } as unknown as typeof DateTimeFormat;
  t.teardown(() => {
    Intl.DateTimeFormat = DateTimeFormat;
  });
  const read = (zone: string, page: string): string =>
    inZoneOf({ headers: { cookie: `portcullis-zone=${zone}` } } as unknown as IncomingMessage, page);
  for (const zone of ['Asia/Tokyo', 'Asia/Seoul', 'Europe/Rome']) t.is(read(zone, '<h1>Sign in</h1>'), '<h1>Sign in</h1>');
  t.is(made, 0);
  const time = '<time datetime="2026-01-31T12:00:00.000Z">2026-01-31 12:00 UTC</time>';
  for (const zone of ['Asia/Tokyo', 'asia/tokyo', 'ASIA/Tokyo']) t.regex(read(zone, time), />2026-01-31 21:00 GMT\+9</);
  t.is(made, 1);
});
