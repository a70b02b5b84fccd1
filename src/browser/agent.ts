/** Names the browser in words that people know, from its User-Agent header. Only for display: a program can send any header. */

const BROWSERS: readonly (readonly [RegExp, string])[] = [
  [/\bEdgA?\/|\bEdgiOS\//, 'Edge'],
  [/\bOPR\//, 'Opera'],
  [/\bFirefox\/|\bFxiOS\//, 'Firefox'],
  [/(\bChromium|Chrome|\bCriOS)\//, 'Chrome'],
  [/\bVersion\/.*\bSafari\//, 'Safari'],
];
const SYSTEMS: readonly (readonly [RegExp, string])[] = [
  [/\biPhone\b/, 'iPhone'],
  [/\biPad\b/, 'iPad'],
  [/\bAndroid\b/, 'Android'],
  [/\bWindows\b/, 'Windows'],
  [/\bMac OS X\b/, 'macOS'],
  [/\bCrOS\b/, 'ChromeOS'],
  [/\bLinux\b/, 'Linux'],
];

const firstOf = (names: readonly (readonly [RegExp, string])[], agent: string): string | null =>
  names.find(([pattern]) => pattern.test(agent))?.[1] ?? null;

/** Returns for example `Firefox on Linux`; the name that the program gives itself, if that tells nothing. */
export function agentName(agent: string): string {
  const browser = firstOf(BROWSERS, agent);
  const system = firstOf(SYSTEMS, agent);
  if (browser === null) return agent === '' ? 'Unknown browser' : agent.slice(0, 80);
  return system === null ? browser : `${browser} on ${system}`;
}
