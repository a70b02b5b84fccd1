/** How figures are printed. */
import type { Bar } from './bars.ts';

export const number = (value: number): string =>
  Math.abs(value) >= 100 ? value.toFixed(0) : Math.abs(value) >= 10 ? value.toFixed(1) : value.toFixed(2);

/** The first row has the titles. */
export function columns(rows: readonly (readonly string[])[]): string[] {
  const widths = (rows[0] ?? []).map((_, i) => Math.max(...rows.map((row) => row[i]?.length ?? 0)));
  return rows.map((row) =>
    row
      .map((cell, i) => (i === 0 ? cell.padEnd(widths[i] ?? 0) : cell.padStart(widths[i] ?? 0)))
      .join('  ')
      .trimEnd(),
  );
}

export const verdictLine = ({ what, bar, figure, reached }: Bar): string =>
  `${reached ? '✔ met    ' : '✘ NOT met'} ${what}: ${number(figure)} (${bar})`;
