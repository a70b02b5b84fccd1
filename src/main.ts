/** The gateway's process: configuration, start, and a graceful end. */
import { ConfigError, configFromProcess } from './config.ts';
import { AppError } from './errors.ts';
import { createGateway } from './gateway.ts';

function fail(lines: readonly string[]): never {
  process.stderr.write(`${lines.map((line) => `portcullis: ${line}`).join('\n')}\n`);
  process.exit(1);
}

function readConfiguration() {
  try {
    return configFromProcess();
  } catch (error) {
    if (error instanceof ConfigError) fail(error.mistakes);
    throw error;
  }
}

const gateway = await createGateway(readConfiguration()).catch((error: unknown) => {
  if (error instanceof AppError) fail([error.message]);
  throw error;
});
await gateway
  .listen()
  .catch((error: unknown) => fail([`cannot listen: ${error instanceof Error ? error.message : String(error)}`]));

let ending = false;
for (const signal of ['SIGTERM', 'SIGINT'] as const) {
  process.on(signal, () => {
    // A second signal means now.
    if (ending) process.exit(1);
    ending = true;
    void gateway.close().then(() => process.exit(0));
  });
}
