/** Answers of the API as text for people. What comes from others is escaped, so that it cannot move the cursor or break a line. */
import { printable } from '../../base/printable.ts';
import { jsonText, type View } from '../command.ts';

type Row = Readonly<Record<string, unknown>>;

const GAP = '  ';
/** Columns are not cut below this width. */
const NARROWEST = 8;
const BOLD = 1;
const [GREEN, RED] = [32, 31];
const COLOURS: Readonly<Record<string, number>> = {
  allow: GREEN,
  ok: GREEN,
  deny: RED,
  denied: RED,
  failing: RED,
  suspended: RED,
};
/** Only in these columns, whose words come from the gateway itself. */
const COLOURED = new Set(['effect', 'outcome', 'status']);

/**
 * Returns rows under the titles of their columns, cut to the width of the terminal. A column is the path of a member (`client.name`), or
 * several of which the first that is set counts (`url|command`). Ids are never cut, so that people can copy them. `known`: the widths of
 * rows that follow others, without titles and not cut.
 */
export function tableText(rows: readonly unknown[], columns: readonly string[], view: View, known?: readonly number[]): string {
  if (rows.length === 0) return 'none\n';
  const titles = columns.map((column) => column.split('|')[0]?.toUpperCase().replaceAll(/[._]/g, ' ') ?? '');
  const lines = rows.map((row) => columns.map((column) => cellText(memberOf(row as Row, column))));
  const widths = known?.slice() ?? columns.map((_, at) => Math.max(...[titles, ...lines].map((line) => widthOf(line[at] ?? ''))));
  if (view.columns !== null && known === undefined) narrow(widths, columns, view.columns);
  const written = (cells: readonly string[], colourOf: (cell: string, column: string) => number | undefined): string =>
    cells
      .map((cell, at) => {
        const [width = 0, column = ''] = [widths[at], columns[at]];
        const short = known === undefined ? cut(cell, width) : cell;
        const colour = view.colours ? colourOf(cell, column) : undefined;
        const space = at === cells.length - 1 ? '' : ' '.repeat(Math.max(0, width - widthOf(short)));
        return (colour === undefined ? short : `\u001b[${colour}m${short}\u001b[0m`) + space;
      })
      .join(GAP)
      .trimEnd();
  const body = lines.map((cells) => written(cells, (cell, column) => (COLOURED.has(column) ? COLOURS[cell] : undefined)));
  return `${[...(known === undefined ? [written(titles, () => BOLD)] : []), ...body].join('\n')}\n`;
}

/** Takes the space that is missing from the widest columns. */
function narrow(widths: number[], columns: readonly string[], room: number): void {
  for (;;) {
    const over = widths.reduce((sum, width) => sum + width, GAP.length * (widths.length - 1)) - room;
    const widest = Math.max(...widths.filter((_, at) => !/(^|_)id$/.test(columns[at] ?? '')));
    if (over <= 0 || widest <= NARROWEST) return;
    widths[widths.indexOf(widest)] = widest - 1;
  }
}

function memberOf(row: Row, column: string): unknown {
  const values = column.split('|').map((path) => path.split('.').reduce<unknown>((at, name) => (at as Row | null)?.[name], row));
  return values.find((value) => value !== undefined && value !== null);
}

function cellText(value: unknown): string {
  if (value === undefined || value === null || value === '') return '-';
  if (typeof value === 'boolean') return value ? 'yes' : 'no';
  if (Array.isArray(value) && value.every((item) => typeof item !== 'object')) return value.map(cellText).join(', ') || '-';
  return oneLine(typeof value === 'object' ? jsonText(value) : String(value));
}

const oneLine = (text: string): string => printable(text).replaceAll('\n', '\\u{a}');

/** Returns the members of an object, one in a line; objects and longer texts in it are indented. */
export function cardText(card: unknown, indent = ''): string {
  const members = Object.entries(card as Row);
  const width = Math.max(0, ...members.map(([name]) => name.length));
  return members.map(([name, value]) => `${indent}${name.padEnd(width)}${memberText(value, indent)}`).join('');
}

function memberText(value: unknown, indent: string): string {
  const inner = `${indent}  `;
  if (typeof value === 'string' && value.trimEnd().includes('\n')) {
    return `\n${printable(value).trimEnd().replaceAll(/^/gm, inner)}\n`;
  }
  if (Array.isArray(value) && value.some((item) => typeof item === 'object')) {
    return `\n${value.map((item) => `${inner}- ${oneLine(jsonText(item))}\n`).join('')}`;
  }
  const isObject = typeof value === 'object' && value !== null && !Array.isArray(value) && Object.keys(value).length > 0;
  return isObject ? `\n${cardText(value, inner)}` : `${GAP}${cellText(value)}\n`;
}

const WIDE =
  /[\u1100-\u115f\u2e80-\u303e\u3041-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\u{20000}-\u{3fffd}]|\p{Emoji_Presentation}/u;
const NO_WIDTH = /\p{M}|\p{Cf}/u;
const characterWidth = (character: string): number => (NO_WIDTH.test(character) ? 0 : WIDE.test(character) ? 2 : 1);
const ASCII = /^[ -~]*$/;

/** The number of columns that the text takes on a terminal. */
const widthOf = (text: string): number =>
  ASCII.test(text) ? text.length : [...text].reduce((sum, character) => sum + characterWidth(character), 0);

function cut(text: string, width: number): string {
  if (widthOf(text) <= width) return text;
  let [kept, room] = ['', width - 1];
  for (const character of text) {
    room -= characterWidth(character);
    if (room < 0) break;
    kept += character;
  }
  return `${kept}…`;
}
