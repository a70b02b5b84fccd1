/** Results of policy tests as JUnit XML, which CI systems display. Pure. */
import { groupBy } from '../analysis/requests.ts';
import { failureText, type TestReport, type TestResult } from './test-run.ts';

/** `threshold`: the percentage of policies that must decide at least one case; null: none. */
export function junitOf({ results, coverage }: TestReport, threshold: number | null): string {
  const suites = [...groupBy(results, ({ file }) => file)].map(([file, cases]) =>
    suite(file, cases.map(testCase), failures(cases)),
  );
  const low = threshold !== null && coverage.percent < threshold;
  if (threshold !== null) {
    const message = `${coverage.percent}% of the policies decide a case, but ${threshold}% are required`;
    const undecided = coverage.undecided.map(({ name, file }) => file ?? name).join('\n');
    const failure = low ? `<failure message=${quote(message)}>${xmlText(undecided)}</failure>` : '';
    suites.push(suite('coverage', [`    <testcase classname="coverage" name="policies">${failure}</testcase>\n`], low ? 1 : 0));
  }
  const total = results.length + (threshold === null ? 0 : 1);
  const failed = failures(results) + (low ? 1 : 0);
  const head = `<testsuites name="portcullis policies" tests="${total}" failures="${failed}" errors="0">`;
  return `<?xml version="1.0" encoding="UTF-8"?>\n${head}\n${suites.join('')}</testsuites>\n`;
}

const failures = (results: readonly TestResult[]): number => results.filter(({ passed }) => !passed).length;

const suite = (name: string, cases: readonly string[], failed: number): string =>
  `  <testsuite name=${quote(name)} tests="${cases.length}" failures="${failed}" errors="0">\n${cases.join('')}  </testsuite>\n`;

function testCase(result: TestResult): string {
  const { file, line, test, principal, request, passed } = result;
  const failure = passed ? '' : `<failure message=${quote(failureText(result))}>${xmlText(`${file}:${line}`)}</failure>`;
  const attributes = `classname=${quote(test)} name=${quote(`${principal}: ${request}`)} file=${quote(file)} line="${line}"`;
  return `    <testcase ${attributes}>${failure}</testcase>\n`;
}

const ENTITIES: Readonly<Record<string, string>> = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&apos;' };

/** Replaces characters that XML 1.0 forbids even when escaped: control characters, surrogates, U+FFFE and U+FFFF. */
const xmlText = (text: string): string =>
  text
    .replace(/[^\P{Cc}\t\n\r]|\p{Cs}|[\ufffe\uffff]/gu, '\ufffd')
    .replace(/[&<>"']/g, (character) => ENTITIES[character] ?? character);
const quote = (text: string): string => `"${xmlText(text).replaceAll('\n', '&#10;')}"`;
