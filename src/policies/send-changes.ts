/** Answers with changes of the policy set, of which there can be thousands: written in slices, between which other work runs. */
import type { Response } from 'express';
import { createPause } from '../slices.ts';
import type { PolicyChange } from './plan.ts';
import type { TargetName } from './planning.ts';
import { changesJson } from './set-json.ts';

const CHANGES_AT_ONCE = 50;

/** `rest`: the other members. */
export async function sendChanges(
  res: Response,
  rest: object,
  changes: readonly PolicyChange[],
  targets: readonly TargetName[],
): Promise<void> {
  const pause = createPause();
  const texts: string[] = [];
  for (let at = 0; at < changes.length; at += CHANGES_AT_ONCE) {
    await pause();
    for (const change of changesJson(changes.slice(at, at + CHANGES_AT_ONCE), targets)) texts.push(JSON.stringify(change));
  }
  res
    .setHeader('Content-Type', 'application/json; charset=utf-8')
    .end(`${JSON.stringify(rest).slice(0, -1)},"changes":[${texts.join()}]}`);
}
