import test from 'ava';
test('hang', async t => { await new Promise(r => setTimeout(r, 60000)); t.pass(); });
