import test from 'ava';
test('rejects', async t => { Promise.reject(new Error('unhandled r')); await new Promise(r => setTimeout(r, 100)); t.pass(); });
