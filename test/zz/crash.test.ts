import test from 'ava';
test('ok', t => t.pass());
test('fails', t => t.deepEqual({a:1},{a:2}));
test('later throws', async t => { setTimeout(() => { throw new Error('boom uncaught'); }, 50); await new Promise(r => setTimeout(r, 300)); t.pass(); });
test.skip('skipped', t => t.pass());
test.todo('todo it');
