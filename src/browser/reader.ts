/** How a reader wants pages to look, in cookies that hold nothing secret: the time zone, and light or dark. */
import type { IncomingMessage } from 'node:http';
import { cookieOf } from './requests.ts';

export const THEME_COOKIE = 'portcullis-theme';
const ZONE_COOKIE = 'portcullis-zone';
export const THEMES = ['light', 'dark'] as const;
export type Theme = (typeof THEMES)[number];

/** null: as the system of the reader has it. */
export function themeOf(req: IncomingMessage): Theme | null {
  const value = cookieOf(req, THEME_COOKIE);
  return THEMES.find((theme) => theme === value) ?? null;
}

/** A time as `timeOf` writes it. Only `html` makes markup, so no text of others can look like it. */
const TIME = /<time datetime="([^"]+)">[^<]*?(:\d\d\.\d{3})? UTC<\/time>/g;
const ZONE = /^[A-Za-z0-9_+/-]{1,64}$/;
const ZONES_KEPT = 100;
const formats = new Map<string, Intl.DateTimeFormat | null>();

/** null: there is no such zone. `zone`: in lower case, because each spelling would cost a format. */
function formatOf(zone: string): Intl.DateTimeFormat | null {
  const known = formats.get(zone);
  if (known !== undefined) return known;
  let format: Intl.DateTimeFormat | null = null;
  try {
    format = new Intl.DateTimeFormat('en-GB', {
      ...{ timeZone: zone, timeZoneName: 'short', hourCycle: 'h23', fractionalSecondDigits: 3 },
      ...{ year: 'numeric', month: '2-digit', day: '2-digit', hour: '2-digit', minute: '2-digit', second: '2-digit' },
    });
  } catch {
    // A cookie can hold anything.
  }
  if (formats.size >= ZONES_KEPT) formats.clear();
  formats.set(zone, format);
  return format;
}

/** Returns the page with its times in the zone of the reader, which each time names. Without a zone they stay in UTC. */
export function inZoneOf(req: IncomingMessage, page: string): string {
  const zone = cookieOf(req, ZONE_COOKIE);
  // A format takes a millisecond to make. Strangers get pages without times, so they can have none made.
  if (zone === null || zone === 'UTC' || !ZONE.test(zone) || page.search(TIME) < 0) return page;
  const format = formatOf(zone.toLowerCase());
  if (format === null) return page;
  return page.replaceAll(TIME, (_, iso: string, seconds: string | undefined) => {
    const parts = format.formatToParts(new Date(iso));
    const { year, month, day, hour, minute, second, fractionalSecond, timeZoneName } = Object.fromEntries(
      parts.map(({ type, value }) => [type, value]),
    );
    const time = `${hour}:${minute}${seconds === undefined ? '' : `:${second}.${fractionalSecond}`}`;
    return `<time datetime="${iso}">${year}-${month}-${day} ${time} ${timeZoneName}</time>`;
  });
}
