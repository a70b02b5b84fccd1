/** The one answer to the question whether a caller may use a target. */
import test from 'ava';
import { type Admission, mayUseTarget } from '../../src/state/admission.ts';

const admission = (decideTarget: () => { effect: 'allow' | 'deny' }): Admission =>
  ({ principal: {}, snapshot: { engine: { decideTarget } } }) as unknown as Admission;

test('a caller may use a target only if the engine says allow, and a fault of the engine is a deny', (t) => {
  t.true(
    mayUseTarget(
      admission(() => ({ effect: 'allow' })),
      { id: 't' },
    ),
  );
  t.false(
    mayUseTarget(
      admission(() => ({ effect: 'deny' })),
      { id: 't' },
    ),
  );
  const failing = admission(() => {
    throw new Error('the evaluation failed');
  });
  t.false(mayUseTarget(failing, { id: 't' }));
});
