import { readFile } from 'node:fs/promises';
import test from 'ava';
import type { Decision } from '../../src/engine/decision.ts';
import { createEngine, createPolicyModule, loadPolicyModule, type PolicyModule } from '../../src/engine/engine.ts';
import type { OpaExports } from '../../src/engine/instance.ts';
import { policyWith } from './support.ts';

const REGO = new URL('../../rego/', import.meta.url);
const wasm = await readFile(new URL('gateway.wasm', REGO));
const { sha256 } = JSON.parse(await readFile(new URL('gateway.wasm.json', REGO), 'utf8')) as { sha256: string };
const module = await loadPolicyModule();

const ANN = { sub: 'ann', role: 'dev', groups: [] };
const GET = { resource_type: 'tool', resource_name: 'get_issue' } as const;
const FAULT: Decision = { effect: 'deny', reason: 'error', policy: null };
const ALLOW = policyWith({ id: 'a' });

test('the module is identified by its hash', (t) => {
  t.is(module.hash, sha256);
});

test('a module other than the recorded one is not loaded', async (t) => {
  await t.throwsAsync(createPolicyModule(wasm.subarray(0, wasm.length - 1), sha256), {
    message: /not the file recorded/,
  });
  await t.throwsAsync(
    createPolicyModule(
      wasm,
      sha256.replace(/^./, (digit) => (digit === '0' ? '1' : '0')),
    ),
    { message: /not the file/ },
  );
});

test('a truncated module is not loaded, recorded or not', async (t) => {
  const { createHash } = await import('node:crypto');
  const half = wasm.subarray(0, wasm.length / 2);
  await t.throwsAsync(createPolicyModule(half, createHash('sha256').update(half).digest('hex')));
});

test('a missing module is not loaded', async (t) => {
  await t.throwsAsync(loadPolicyModule(new URL('nowhere/', REGO)), { code: 'ENOENT' });
});

/** The module, with some of its exports replaced in each instance. */
function tampered(change: (exports: OpaExports, nth: number) => Partial<OpaExports>): PolicyModule {
  let instances = 0;
  return {
    ...module,
    instantiate() {
      const bare = module.instantiate();
      return { ...bare, exports: { ...bare.exports, ...change(bare.exports, instances++) } };
    },
  };
}

/** Works until `broken.now` is set. */
function breakable(breakIt: Partial<OpaExports>): { module: PolicyModule; broken: { now: boolean } } {
  const broken = { now: false };
  return {
    broken,
    module: tampered((exports) =>
      Object.fromEntries(
        Object.entries(breakIt).map(([name, instead]) => [
          name,
          (...args: never[]) =>
            (broken.now ? instead : exports[name as keyof OpaExports])(...(args as unknown as [never, never, never])),
        ]),
      ),
    ),
  };
}

const FAULTS: Readonly<Record<string, Partial<OpaExports>>> = {
  'an abort': {
    eval: () => {
      throw 'gateway.rego:1:1: var assignment conflict';
    },
  },
  'a missing built-in': {
    eval: () => {
      throw { message: 'not implemented: built-in function 1: sprintf' };
    },
  },
  'a stack overflow': {
    eval: () => {
      throw new RangeError('Maximum call stack size exceeded');
    },
  },
  'an evaluation that says it failed': { eval: () => 1 },
  'an input that cannot be read': { opa_json_parse: () => 0 },
};

for (const [name, fault] of Object.entries(FAULTS)) {
  test(`${name} is a deny with reason error, and the next question is answered`, async (t) => {
    const { module: frail, broken } = breakable(fault);
    const faults: unknown[] = [];
    const engine = await createEngine({ module: frail, policies: [ALLOW], revision: 1, onFault: (error) => faults.push(error) });
    t.is(engine.decide(ANN, 't', GET).effect, 'allow');
    broken.now = true;
    t.deepEqual(engine.decide(ANN, 't', GET), FAULT);
    t.deepEqual(engine.decideMany(ANN, 't', [GET, GET]), [FAULT, FAULT]);
    t.deepEqual(engine.decideTarget(ANN, 't'), FAULT);
    t.is(faults.length, 3);
    t.true(
      faults.every((error) => error instanceof Error),
      'whatever was thrown is logged as an error',
    );
    broken.now = false;
    t.is(engine.decide(ANN, 't', GET).effect, 'allow');
  });
}

test('the instance is built again after a trap', async (t) => {
  const { RuntimeError } = (globalThis as unknown as { WebAssembly: { RuntimeError: typeof Error } }).WebAssembly;
  let trap = false;
  let instances = 0;
  const frail = tampered((exports) => {
    instances++;
    return {
      eval: (context) => {
        if (trap) throw new RuntimeError('memory access out of bounds');
        return exports.eval(context);
      },
    };
  });
  const engine = await createEngine({ module: frail, policies: [ALLOW], revision: 1 });
  t.is(instances, 1);
  trap = true;
  t.deepEqual(engine.decide(ANN, 't', GET), FAULT);
  trap = false;
  t.is(engine.decide(ANN, 't', GET).effect, 'allow');
  t.is(instances, 2);
});

const ANSWERS: Readonly<Record<string, string>> = {
  undefined: '[]',
  'two results': '[{"result":1},{"result":2}]',
  'not JSON': '[{',
  'a bare true': '[{"result":true}]',
  null: '[{"result":null}]',
  'an allow by default': '[{"result":{"effect":"allow","policy":null,"rank":null,"reason":"default"}}]',
  'an allow without a policy': '[{"result":{"effect":"allow","policy":null,"rank":0,"reason":"matched"}}]',
  "another policy's id": '[{"result":{"effect":"allow","policy":"b","rank":0,"reason":"matched"}}]',
  'another effect than the policy has': '[{"result":{"effect":"deny","policy":"a","rank":0,"reason":"matched"}}]',
  'a rank that there is not': '[{"result":{"effect":"allow","policy":"a","rank":7,"reason":"matched"}}]',
  'a rank that is a text': '[{"result":{"effect":"allow","policy":"a","rank":"0","reason":"matched"}}]',
  'an unknown reason': '[{"result":{"effect":"allow","policy":"a","rank":0,"reason":"maybe"}}]',
};

for (const [name, answer] of Object.entries(ANSWERS)) {
  test(`a malformed result is a deny with reason error: ${name}`, async (t) => {
    let lying = false;
    const liar: PolicyModule = {
      ...module,
      instantiate() {
        const bare = module.instantiate();
        const text = bare.exports.opa_malloc(500);
        return {
          ...bare,
          exports: {
            ...bare.exports,
            opa_json_dump: (value) => {
              if (!lying) return bare.exports.opa_json_dump(value);
              Buffer.from(bare.memory.buffer).write(`${answer}\0`, text);
              return text;
            },
          },
        };
      },
    };
    const engine = await createEngine({ module: liar, policies: [ALLOW], revision: 1 });
    lying = true;
    t.deepEqual(engine.decide(ANN, 't', GET), FAULT);
    t.deepEqual(engine.decideMany(ANN, 't', [GET]), [FAULT]);
    t.deepEqual(engine.decideTarget(ANN, 't'), FAULT);
  });
}

test('an engine that ignores its policies is not used', async (t) => {
  const blind = tampered(() => ({ opa_value_add_path: () => 0 }));
  await t.throwsAsync(createEngine({ module: blind, policies: [ALLOW], revision: 1 }), {
    message: /misses policy a|invalid answer/,
  });
});

test('half a character is never decided like another name', async (t) => {
  const engine = await createEngine({ module, policies: [ALLOW], revision: 1 });
  t.deepEqual(engine.decide(ANN, 't', { ...GET, resource_name: 'x\ud800' }), FAULT);
  t.deepEqual(engine.decide(ANN, 't\udc00', GET), FAULT);
  t.deepEqual(engine.decide({ ...ANN, groups: ['\udfff\ud800'] }, 't', GET), FAULT);
  t.is(engine.decide(ANN, 't', { ...GET, resource_name: 'x\\ud800 😀' }).effect, 'allow');
  const [one, two, three] = engine.decideMany(ANN, 't', [GET, { ...GET, resource_name: '\ud83d' }, GET]);
  t.deepEqual([one?.effect, two, three?.effect], ['allow', FAULT, 'allow'], 'one bad name does not spoil the list');
});

test('the size of a question is limited', async (t) => {
  const engine = await createEngine({ module, policies: [ALLOW], revision: 1 });
  t.deepEqual(engine.decide(ANN, 't', { ...GET, resource_name: 'x'.repeat(100_000) }), FAULT);
  t.deepEqual(engine.decide({ ...ANN, groups: new Array(50_000).fill('g') }, 't', GET), FAULT);
  t.is(engine.decide(ANN, 't', { ...GET, resource_name: 'x'.repeat(4_096) }).effect, 'allow');
  const long = [GET, { ...GET, resource_name: 'x'.repeat(100_000) }, GET];
  t.deepEqual(
    engine.decideMany(ANN, 't', long).map(({ effect }) => effect),
    ['allow', 'deny', 'allow'],
  );
  const many = Array.from({ length: 5_000 }, (_, i) => ({ ...GET, resource_name: `tool_${i}_${'é'.repeat(50)}` }));
  t.true(engine.decideMany(ANN, 't', many).every(({ effect }) => effect === 'allow'));
  t.deepEqual(engine.decideMany(ANN, 't', []), []);
});
