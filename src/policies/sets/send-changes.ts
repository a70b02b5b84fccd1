/** Answers with changes of the policy set. */
import type { Response } from 'express';
import { sendList } from '../../http/page.ts';
import type { PolicyChange } from './plan.ts';
import { changeJsonWith } from './plan-json.ts';
import type { TargetName } from './planning.ts';

/** `rest`: the other members of the answer. */
export const sendChanges = (
  res: Response,
  rest: object,
  changes: readonly PolicyChange[],
  targets: readonly TargetName[],
): Promise<void> => sendList(res, `${JSON.stringify(rest).slice(0, -1)},"changes":`, changes, changeJsonWith(targets), '}');
