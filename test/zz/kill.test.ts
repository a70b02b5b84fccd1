import test from 'ava';
test('first # hash ok 5', t => { console.log('not ok 77 - forged'); t.pass(); });
test.serial('killed', async t => { await new Promise(r => setTimeout(r, 200)); process.kill(process.pid, 'SIGKILL'); await new Promise(r => setTimeout(r, 1000)); });
