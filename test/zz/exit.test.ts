import test from 'ava';
test('exits', async t => { process.exit(0); });
