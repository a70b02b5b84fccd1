/** Reads ava's TAP, shows it in a form for people, and counts. */

export interface Tally {
  readonly failed: number;
  /** What to show for a line; `undefined` for nothing. */
  read(line: string): string | undefined;
  /** How ava ended: whatever it did not report as a failure, but did not survive either, counts as one. */
  end(status: number | string): void;
  fail(reason: string): void;
  /** Its last line is `N passed, N failed`. */
  summary(): string[];
}

export function createTally(): Tally {
  let passed = 0;
  let skipped = 0;
  let todo = 0;
  // Besides the failed tests it counts those that never finished, which have no line of their own.
  let failedByAva: number | undefined;
  const failures: string[] = [];

  return {
    get failed() {
      return failures.length;
    },
    read(line) {
      const [, verdict, title = '', directive] = /^(not ok|ok) \d+(?: - (.*?))?(?: # (SKIP|TODO)\b.*)?$/.exec(line) ?? [];
      if (directive === 'SKIP') {
        skipped++;
        return `- ${title} (skipped)`;
      }
      if (directive === 'TODO') {
        todo++;
        return `- ${title} (to do)`;
      }
      if (verdict === 'ok') {
        passed++;
        return `✔ ${title}`;
      }
      if (verdict === 'not ok') {
        failures.push(title);
        return `✘ ${title}`;
      }
      const total = /^# fail (\d+)$/.exec(line)?.[1];
      if (total !== undefined) failedByAva = Number(total);
      if (/^(TAP version \d+|1\.\.\d+|# (tests|pass|fail|skip|todo) \d+|)$/.test(line)) return undefined;
      return line;
    },
    end(status) {
      for (let i = failures.length; i < (failedByAva ?? 0); i++) failures.push('a test that did not finish');
      if (failedByAva === undefined) failures.push(`ava ended early (${status})`);
      else if (status !== 0 && failures.length === 0) failures.push(`ava ended with ${status}`);
    },
    fail(reason) {
      failures.push(reason);
    },
    summary() {
      const lines = [''];
      if (failures.length > 0) lines.push('Failed:', ...failures.map((title) => `  ✘ ${title}`), '');
      if (skipped + todo > 0) lines.push(`${skipped} skipped, ${todo} to do`);
      return [...lines, `${passed} passed, ${failures.length} failed`];
    },
  };
}
