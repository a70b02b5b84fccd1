/** Starts the Chromium of this machine. */
import { accessSync, constants } from 'node:fs';
import { type Browser, chromium } from 'playwright-core';

const PLACES = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'];

/** The path of a browser; null: there is none that may run. */
export function findChromium(): string | null {
  const isThere = (path: string): boolean => {
    try {
      accessSync(path, constants.X_OK);
      return true;
    } catch {
      return false;
    }
  };
  return PLACES.find(isThere) ?? null;
}

/** Rejects if there is no Chromium. */
export async function launchChromium(): Promise<Browser> {
  const executablePath = findChromium();
  if (executablePath === null)
    throw new Error(`Chromium is needed (apt-get install chromium): none of ${PLACES.join(', ')} is there`);
  // The sandbox of Chromium refuses to start for root.
  const args = process.getuid?.() === 0 ? ['--no-sandbox'] : [];
  return chromium.launch({ executablePath, args });
}
