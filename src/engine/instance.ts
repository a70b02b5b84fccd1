/** One WASM instance with its data. It takes JSON and returns JSON, and its heap is kept between evaluations. */

/** The functions of OPA's ABI 1.3 that this file uses. Addresses are numbers. */
export interface OpaExports {
  builtins(): number;
  opa_malloc(size: number): number;
  opa_json_parse(address: number, size: number): number;
  opa_json_dump(value: number): number;
  opa_heap_ptr_get(): number;
  opa_heap_ptr_set(address: number): void;
  opa_value_add_path(data: number, path: number, value: number): number;
  opa_eval_ctx_new(): number;
  opa_eval_ctx_set_input(context: number, value: number): void;
  opa_eval_ctx_set_data(context: number, value: number): void;
  opa_eval_ctx_set_entrypoint(context: number, entrypoint: number): void;
  opa_eval_ctx_get_result(context: number): number;
  eval(context: number): number;
}

/** A new instance of the module, without data. */
export interface Bare {
  readonly exports: OpaExports;
  readonly memory: { readonly buffer: ArrayBuffer };
  readonly entrypoints: Readonly<Record<string, number>>;
}

export interface Instance {
  /** Returns JSON: a list whose one item has the rule's value as `result`. Throws on any fault; the instance stays usable. */
  ask(entrypoint: string, input: string): string;
}

/** A part of the data: the JSON `value` goes to `path`. The piece with the empty path comes first. */
export interface DataPiece {
  readonly path: readonly string[];
  readonly value: string;
}

/** Returns the names of the built-in functions that the module would call in its host. */
export function builtinsOf({ exports: opa, memory }: Bare): string[] {
  return Object.keys(JSON.parse(readText(Buffer.from(memory.buffer), opa.opa_json_dump(opa.builtins()))) as object);
}

/** Reads text that ends with a NUL byte. */
const readText = (bytes: Buffer, address: number): string => bytes.toString('utf8', address, bytes.indexOf(0, address));

/** Returns the value in an answer of `Instance.ask`. Throws if there is none. */
export function readResult(answer: string): unknown {
  const results: unknown = JSON.parse(answer);
  if (!Array.isArray(results) || results.length !== 1) throw new Error('The rule is undefined');
  return (results[0] as { result?: unknown }).result;
}

/** Inputs up to this size use a buffer that is allocated once. */
const INPUT_BYTES = 16_384;

/**
 * Loads the data piece by piece. Compiled patterns stay compiled until the heap has grown by `heapCeiling` bytes and is rewound.
 * Therefore, the data must not hold more regexes than OPA's cache can bear (`MAX_PATTERNS` in partition.ts).
 */
export function* loadInstance(bare: Bare, data: Iterable<DataPiece>, heapCeiling: number): Generator<undefined, Instance> {
  const { exports: opa, memory, entrypoints } = bare;
  let view = Buffer.from(memory.buffer);
  const bytes = (): Buffer => {
    // When the memory grows, the old buffer is detached and has length 0. This check is faster than reading `memory.buffer` each
    // time.
    if (view.length === 0) view = Buffer.from(memory.buffer);
    return view;
  };

  function writeText(text: string): [address: number, size: number] {
    const size = Buffer.byteLength(text);
    const address = opa.opa_malloc(size);
    bytes().write(text, address, 'utf8');
    return [address, size];
  }
  function parse(text: string): number {
    const value = opa.opa_json_parse(...writeText(text));
    if (value === 0) throw new Error('OPA cannot read the JSON');
    return value;
  }

  let root = 0;
  for (const { path, value } of data) {
    if (path.length === 0) root = parse(value);
    else if (opa.opa_value_add_path(root, parse(JSON.stringify(path)), parse(value)) !== 0)
      throw new Error('OPA cannot place the data');
    yield;
  }
  const inputBuffer = opa.opa_malloc(INPUT_BYTES);
  const base = opa.opa_heap_ptr_get();

  let context = 0;
  function rewind(): void {
    opa.opa_heap_ptr_set(base);
    context = opa.opa_eval_ctx_new();
    opa.opa_eval_ctx_set_data(context, root);
  }
  rewind();

  return {
    ask(entrypoint, input) {
      const id = entrypoints[entrypoint];
      if (id === undefined) throw new Error(`The module has no entrypoint ${entrypoint}`);
      try {
        if (opa.opa_heap_ptr_get() - base > heapCeiling) rewind();
        // A UTF-16 code unit takes at most three bytes in UTF-8.
        const value =
          input.length * 3 <= INPUT_BYTES
            ? opa.opa_json_parse(inputBuffer, bytes().write(input, inputBuffer, 'utf8'))
            : parse(input);
        if (value === 0) throw new Error('OPA cannot read the input');
        opa.opa_eval_ctx_set_input(context, value);
        opa.opa_eval_ctx_set_entrypoint(context, id);
        if (opa.eval(context) !== 0) throw new Error('The evaluation failed');
        const answer = opa.opa_json_dump(opa.opa_eval_ctx_get_result(context));
        return readText(bytes(), answer);
      } catch (error) {
        // Rewind, so that no evaluation uses what a failed one left on the heap.
        rewind();
        throw error instanceof Error ? error : new Error(typeof error === 'string' ? error : 'OPA aborted', { cause: error });
      }
    },
  };
}
