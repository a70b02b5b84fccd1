/** Which addresses the gateway does not connect to. */
import test from 'ava';
import { createAddressRule, createPublicAddressRule, isNetwork } from '../../../src/base/network/network-address.ts';

const denies = (address: string, ...allowed: string[]): boolean => createAddressRule(allowed)(address) !== null;

test('link-local addresses are denied in every notation', (t) => {
  for (const address of [
    ...['169.254.169.254', '169.254.0.1', 'fe80::1', '[fe80::1]', 'fe80::1%eth0', 'febf::1', 'FE80::A'],
    ...['::ffff:169.254.169.254', '::ffff:a9fe:a9fe', '::169.254.169.254', '[::a9fe:a9fe]', '0:0:0:0:0:ffff:169.254.1.1'],
  ]) {
    t.true(denies(address), address);
  }
});

test('link-local addresses are denied in the forms of translators and tunnels', (t) => {
  for (const [form, address] of [
    ['SIIT, RFC 2765', '::ffff:0:169.254.169.254'],
    ['NAT64, RFC 6052', '64:ff9b::169.254.169.254'],
    ['RFC 8215, a prefix of 48 bits', '64:ff9b:1:a9fe:a9:fe00::'],
    ['RFC 8215, a prefix of 56 bits', '64:ff9b:1:7a9:fe:a9fe::'],
    ['RFC 8215, a prefix of 64 bits', '64:ff9b:1:7:a9:fea9:fe00:0'],
    ['RFC 8215, a prefix of 96 bits', '64:ff9b:1:7:8:9:a9fe:a9fe'],
    ['6to4', '2002:a9fe:a9fe::1'],
    ['Teredo, the server', '2001:0:a9fe:a9fe::1'],
    ['Teredo, the client', '2001:0:102:304:0:0:5601:5601'],
    ['ISATAP', '2001:db8::5efe:169.254.169.254'],
    ['ISATAP of a unique address', '2001:db8::200:5efe:a9fe:a9fe'],
  ] as const) {
    t.true(denies(address), form);
  }
});

test('the metadata addresses of clouds are denied, in every form', (t) => {
  for (const address of [
    ...['100.100.100.200', '192.0.0.192', '168.63.129.16', '100.96.0.96', '100.80.80.80'],
    ...['fd00:ec2::254', 'fd00:ec2::23', 'fd20:ce::254'],
    ...['fd00:c1::a9fe:a9fe', 'fd00:42::42', 'fd00:a9fe:a9fe::1', 'fd00:100::100:200', 'FD00:C1:0:0:0:0:A9FE:A9FE'],
  ]) {
    t.true(denies(address), address);
  }
  for (const address of ['::ffff:100.100.100.200', '64:ff9b::192.0.0.192', '2002:a83f:8110::1', '64:ff9b:1::100.100.100.200']) {
    t.true(denies(address), address);
  }
});

test('other addresses, loopback and private ones too, are not denied', (t) => {
  for (const address of [
    ...['127.0.0.1', '10.0.0.1', '192.168.1.1', '169.253.1.1', '100.100.100.201', '192.0.0.191', '168.63.129.17', '0.0.0.0'],
    ...['::', '::1', 'fec0::1', 'fd00::1', 'fd00:ec2::1', '2001:db8::1', '2001:0:1:2:3:4:5:6', '2002:7f00:1::1', '::a9ff:1'],
    ...['64:ff9b::7f00:1', '64:ff9b:1::7f00:1', 'example.com', ''],
  ]) {
    t.false(denies(address), address);
  }
});

test('an operator can allow single addresses and networks', (t) => {
  t.false(denies('100.100.100.200', '100.100.100.200'));
  t.false(denies('::ffff:100.100.100.200', '100.100.100.200'));
  t.true(denies('169.254.169.254', '100.100.100.200'));
  t.false(denies('169.254.7.9', '100.100.100.200', '169.254.7.0/24'));
  t.true(denies('169.254.8.9', '169.254.7.0/24'));
  t.false(denies('fe80::1', 'fe80::/10'));
  t.regex(createAddressRule([])('169.254.1.1') ?? '', /^169\.254\.1\.1 is .*UPSTREAM_ALLOWED_ADDRESSES/);
  for (const text of ['10.0.0.1', '10.0.0.0/8', '::1', 'fe80::/10', '0.0.0.0/0', '::/128']) t.true(isNetwork(text), text);
  for (const text of [
    '',
    'host',
    '10.0.0.0/33',
    '10.0.0.0/',
    '10.0.0.0/8/8',
    '::/129',
    'fe80::1%eth0',
    '10.0.0.0/-1',
    '10.0.0.0/08',
  ])
    t.false(isNetwork(text), text);
});

/** What a stranger names, by the row of the rule. Each refused network has its first and its last address here. */
const FOREIGN: readonly (readonly [row: string, refused: readonly string[], allowed: readonly string[]])[] = [
  ['this network, 0/8', ['0.0.0.0', '0.255.255.255'], ['1.0.0.0']],
  ['private, 10/8', ['10.0.0.0', '10.255.255.255'], ['9.255.255.255', '11.0.0.0']],
  ['CGNAT, 100.64/10', ['100.64.0.0', '100.127.255.255'], ['100.63.255.255', '100.128.0.0']],
  ['loopback, 127/8', ['127.0.0.0', '127.0.0.1', '127.255.255.255'], ['126.255.255.255', '128.0.0.0']],
  ['link-local, 169.254/16', ['169.254.0.0', '169.254.169.254', '169.254.255.255'], ['169.253.255.255', '169.255.0.0']],
  ['private, 172.16/12', ['172.16.0.0', '172.31.255.255'], ['172.15.255.255', '172.32.0.0']],
  ['protocol assignments, 192.0.0/24', ['192.0.0.0', '192.0.0.192', '192.0.0.255'], ['191.255.255.255', '192.0.1.0']],
  ['documentation', ['192.0.2.0', '192.0.2.255', '198.51.100.1', '203.0.113.255'], ['192.0.3.0', '203.0.114.0']],
  ['AS112 and AMT', ['192.31.196.1', '192.52.193.1', '192.175.48.1'], ['192.31.197.0']],
  ['6to4 relays, 192.88.99/24', ['192.88.99.1'], ['192.88.98.255', '192.88.100.0']],
  ['private, 192.168/16', ['192.168.0.0', '192.168.255.255'], ['192.167.255.255', '192.169.0.0']],
  ['benchmarks, 198.18/15', ['198.18.0.0', '198.19.255.255'], ['198.17.255.255', '198.20.0.0']],
  ['multicast, 224/4', ['224.0.0.0', '239.255.255.255'], ['223.255.255.255']],
  ['reserved, 240/4, and broadcast', ['240.0.0.0', '255.255.255.254', '255.255.255.255'], []],
  ['metadata of clouds', ['168.63.129.16', '100.100.100.200', 'fd00:ec2::254', 'fd20:ce::254'], ['168.63.129.17']],
  ['IPv6 itself', ['::', '::1', '[::1]', '0:0:0:0:0:0:0:1'], ['2606:4700::1111', '[2a00:1450:4001::1]', '3ffe::1']],
  ['IPv6 outside of 2000::/3', ['100::1', '1fff::1', '4000::1', '5f00::1'], ['2000::1']],
  ['IPv6 link-local and site-local', ['fe80::1', 'fe80::1%eth0', 'febf::1', 'fec0::1'], []],
  ['IPv6 unique local', ['fc00::', 'fd00::1', 'fdff:ffff::1'], []],
  ['IPv6 multicast', ['ff00::', 'ff02::1', 'ff0e::1'], []],
  ['IPv6 documentation and protocols', ['2001:db8::1', '3fff::1', '2001:2::1', '2001:20::1', '2620:4f:8000::1'], ['2001:200::1']],
  ['IPv4-mapped and compatible', ['::ffff:127.0.0.1', '::ffff:7f00:1', '::ffff:8.8.8.8', '::127.0.0.1', '::8.8.8.8'], []],
  ['NAT64', ['64:ff9b::127.0.0.1', '64:ff9b::a9fe:a9fe', '64:ff9b::a00:1', '64:ff9b:0:1::808:808'], ['64:ff9b::8.8.8.8']],
  ['NAT64 of an operator', ['64:ff9b:1::1', '64:ff9b:1::8.8.8.8'], []],
  ['6to4', ['2002:7f00:1::', '2002:808:808::1'], []],
  ['Teredo', ['2001:0:0:0::1', '2001:0:808:808::1'], []],
  ['ISATAP', ['2a00::5efe:7f00:1', '2a00::200:5efe:10.0.0.1'], ['2a00::5efe:8.8.8.8']],
];

for (const [row, refused, allowed] of FOREIGN) {
  test(`an address that a stranger names: ${row}`, (t) => {
    const rule = createPublicAddressRule([]);
    for (const address of refused) t.regex(rule(address) ?? '', /public internet|metadata address/, address);
    for (const address of allowed) t.is(rule(address), null, address);
  });
}

test('an operator can allow private addresses that a stranger names, and the message has the setting', (t) => {
  const rule = createPublicAddressRule(['10.1.0.0/16', 'fd12::/16'], 'THE_SETTING');
  t.deepEqual(
    ['10.1.2.3', '10.2.0.1', 'fd12::1', 'fd13::1'].map((address) => rule(address) === null),
    [true, false, true, false],
  );
  t.regex(rule('10.2.0.1') ?? '', /^10\.2\.0\.1 is not .*THE_SETTING/);
  t.regex(rule('169.254.1.1') ?? '', /metadata address.*THE_SETTING/);
  t.is(rule('a-name.example'), null, 'a name is judged when it is connected to');
});
