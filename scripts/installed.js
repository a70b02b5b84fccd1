/** Says what to do first: with a version of Node.js that is too old, or in a clone without its dependencies. */
import { existsSync, readFileSync } from 'node:fs';

function refuse(why) {
  process.stderr.write(`${why}\n`);
  process.exit(1);
}

const { engines } = JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8'));
const [major, minor] = /\d+\.\d+/.exec(engines.node)[0].split('.').map(Number);
const [ownMajor, ownMinor] = process.versions.node.split('.').map(Number);
if (ownMajor < major || (ownMajor === major && ownMinor < minor))
  refuse(`Portcullis needs Node.js ${major}.${minor} or newer, and this is ${process.versions.node}.`);
if (!existsSync(new URL('../node_modules/typescript', import.meta.url)))
  refuse('The dependencies are not installed. Run this first: npm ci');
