import { existsSync } from 'node:fs';
import { join } from 'node:path';

const MODULES = join(import.meta.dirname, '../node_modules');

/** Null, or how to have the package. */
export const isInstalled = (name: string): string | null =>
  existsSync(join(MODULES, name, 'package.json')) ? null : 'npm ci --prefix bench';

/** A file of an installed package. */
export const installedFile = (...path: string[]): string => join(MODULES, ...path);
