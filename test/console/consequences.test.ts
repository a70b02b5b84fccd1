import test from 'ava';
import { recentText } from '../../src/console/policy-changes/consequences.ts';

test('what lists would hide is said beside the decisions', (t) => {
  const replayed = { decisions: 4, replayed: 4, grants: 0, refuses: 0, flips: [] };
  t.regex(recentText({ ...replayed, lists: { hides: 0 } }), /made again: none would be different\. $/);
  t.regex(
    recentText({ ...replayed, lists: { hides: 3 } }),
    /none would be different\. Lists would hide 3 names that they have shown\.$/,
  );
  t.regex(recentText({ ...replayed, refuses: 1, lists: { hides: 1 } }), /1 would be denied now\. Lists would hide one name that/);
});
