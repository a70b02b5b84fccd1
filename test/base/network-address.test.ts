/** Which addresses the gateway does not connect to. */
import test from 'ava';
import { createAddressRule, createPublicAddressRule, isInside, isNetwork } from '../../src/base/network-address.ts';

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
  for (const address of ['100.100.100.200', '192.0.0.192', '168.63.129.16', 'fd00:ec2::254', 'fd00:ec2::23', 'fd20:ce::254']) {
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

test('addresses that a stranger names must be public', (t) => {
  const rule = createPublicAddressRule(['10.1.0.0/16']);
  const inside = [
    '127.0.0.1',
    '10.2.0.1',
    '172.16.0.1',
    '192.168.1.1',
    '100.64.0.1',
    '0.0.0.0',
    '[::1]',
    'fd00::1',
    '::ffff:10.2.0.1',
  ];
  for (const address of [...inside, '64:ff9b::a02:1', '2002:a02:1::', '169.254.169.254']) {
    t.not(rule(address), null, address);
    t.true(isInside(address), address);
  }
  for (const address of ['1.1.1.1', '2606:4700::1111', '172.32.0.1', 'example.com']) t.is(rule(address), null, address);
  t.is(rule('10.1.2.3'), null, 'an operator has allowed it');
});
