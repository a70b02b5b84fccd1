/** Server-sent events as the HTML standard defines them (section 9.2): read from a target, written to a client. */

import { partsOf } from '../base/turns/slices.ts';
import { type MessageText, wholeText } from './message.ts';

/**
 * `data` is empty for an event that only carries an id or a reconnection time. The reader of an event sets `data` to an empty text after
 * use. Otherwise the data would stay in memory until the next event comes, because generators keep their variables while they wait.
 */
export interface SseEvent {
  data: string;
  readonly id: string | undefined;
  readonly retry: number | undefined;
  /** The name of the event, unless it is `message`, the name of events that have none. */
  readonly event?: string;
}

export class SseFault extends Error {}

/** An event exceeds the limit. */
export class TooLarge extends SseFault {}

/** Memory that a line of data takes in addition to its text. */
const LINE_COST = 16;
/** A longer id could not be sealed and opened again. The event counts as one without an id. */
const MAX_ID = 2_048;
/** A longer name is none that the gateway knows. */
const MAX_NAME = 64;
const PARTS = 1024;
const LINES = 1024;

/** A slice keeps the whole text in memory, so a short one is copied: an event can wait for hours. A slice of a longer text copies it. */
function cut(text: string, from: number, to: number): string {
  const slice = text.slice(from, to);
  return slice.length < text.length / 2 ? ` ${slice}`.slice(1) : slice;
}

export type SseReader = ReturnType<typeof createSseReader>;

/** Lines end in CR, LF or CRLF. Chunks may end anywhere, also within a character or between CR and LF. */
export function createSseReader(maxEventLength: number) {
  const decoder = new TextDecoder('utf-8', { fatal: true });
  let line = '';
  /** The rest of the line. Many short texts appended one by one would take far more memory than their length. */
  let parts: string[] = [];
  let partsLength = 0;
  let afterCr = false;
  let data: string[] = [];
  /** How many of the first texts in `data` are lines that are already joined. */
  let joined = 0;
  let dataLength = 0;
  let id: string | undefined;
  let retry: number | undefined;
  let name = '';

  function field(text: string): void {
    const colon = text.indexOf(':');
    if (colon === 0) return;
    const member = colon === -1 ? text : text.slice(0, colon);
    const rest = colon === -1 ? '' : text.slice(colon + 1);
    const value = rest.startsWith(' ') ? rest.slice(1) : rest;
    if (member === 'data') {
      // An event can have a million lines. To join them all at its end would take too long.
      if (data.push(value) - joined === LINES) data.push(data.splice(joined++).join('\n'));
      dataLength += value.length + 1;
      if (dataLength > maxEventLength) throw new TooLarge('an event exceeds the limit');
    } else if (member === 'id' && !value.includes('\0')) id = value.length > MAX_ID ? undefined : value;
    else if (member === 'retry' && /^[0-9]{1,9}$/.test(value)) retry = Number(value);
    else if (member === 'event') name = value.length > MAX_NAME ? 'unknown' : value;
  }

  function keep(part: string): void {
    if (part === '') return;
    partsLength += part.length;
    if (parts.push(part) < PARTS) return;
    line += parts.join('');
    parts = [];
    partsLength = 0;
  }

  function dispatch(events: SseEvent[]): void {
    if (data.length > 0 || id !== undefined || retry !== undefined) {
      const named = name === '' || name === 'message' ? {} : { event: name };
      events.push({ data: data.join('\n'), id, retry, ...named });
    }
    data = [];
    joined = 0;
    dataLength = 0;
    id = undefined;
    retry = undefined;
    name = '';
  }

  return {
    /** The memory of the unfinished event, in characters. */
    get pending(): number {
      return (
        line.length +
        partsLength +
        LINE_COST * parts.length +
        dataLength +
        LINE_COST * data.length +
        (id?.length ?? 0) +
        name.length
      );
    },
    /** Returns the events that these bytes complete. Throws SseFault if the text is not an event stream or exceeds the limit. */
    push(bytes: Uint8Array): SseEvent[] {
      const events: SseEvent[] = [];
      let text: string;
      try {
        text = decoder.decode(bytes, { stream: true });
      } catch {
        throw new SseFault('the stream is not valid UTF-8');
      }
      let from = 0;
      if (afterCr && text !== '') {
        if (text.startsWith('\n')) from = 1;
        afterCr = false;
      }
      let lf = text.indexOf('\n', from);
      let cr = text.indexOf('\r', from);
      while (lf !== -1 || cr !== -1) {
        const endsInCr = lf === -1 || (cr !== -1 && cr < lf);
        const at = endsInCr ? cr : lf;
        const complete = line + parts.join('') + cut(text, from, at);
        line = '';
        parts = [];
        partsLength = 0;
        from = at + 1;
        if (endsInCr && from === lf) from++;
        else if (endsInCr && from === text.length) afterCr = true;
        if (lf !== -1 && lf < from) lf = text.indexOf('\n', from);
        if (endsInCr) cr = text.indexOf('\r', from);
        if (complete === '') dispatch(events);
        else field(complete);
      }
      keep(cut(text, from, text.length));
      if (line.length + partsLength > maxEventLength) throw new TooLarge('a line exceeds the limit');
      return events;
    },
  };
}

/** A comment that keeps proxies and clients from closing an idle stream. */
export const KEEP_ALIVE = ':\n\n';

export interface WrittenEvent {
  readonly data: MessageText;
  readonly id?: string | undefined;
  readonly retry?: number | undefined;
}

const headOf = ({ data, id, retry }: WrittenEvent): string =>
  `${id === undefined ? '' : `id: ${id}\n`}${retry === undefined ? '' : `retry: ${retry}\n`}${data === '' ? '' : 'event: message\n'}data: `;

/** Writes one event with one `data` line, which cannot start a new field. */
export const formatEvent = (event: WrittenEvent): string => `${headOf(event)}${onOneLine(wholeText(event.data))}\n\n`;

/** The same for a long event, in parts. Each part is made of at most `length` characters. */
export function* eventParts(event: WrittenEvent, length: number): Generator<string, undefined> {
  const { data } = event;
  yield headOf(event);
  for (const part of partsOf(typeof data === 'string' ? [data] : data, length)) yield onOneLine(part);
  yield '\n\n';
}

/** Characters that end a line, for all readers or some (Node's `readline`, Python's `splitlines`), and what stands for them in JSON. */
const LINE_ENDS = [
  ['\n', ' '],
  ['\r', ' '],
  ['\u0085', '\\u0085'],
  ['\u2028', '\\u2028'],
  ['\u2029', '\\u2029'],
] as const;

/**
 * Makes JSON text a single line. JSON has line feeds and carriage returns only between tokens (RFC 8259 section 7), so a space can replace
 * them. The other line ends occur only in strings and are escaped. A long text of line ends takes milliseconds, so cut it first.
 */
export function onOneLine(text: string): string {
  let line = text;
  for (const [end, instead] of LINE_ENDS) line = line.replaceAll(end, instead);
  return line;
}
