/** The gateway's process: reads the configuration, starts the gateway and shuts it down gracefully. */
import { setFlagsFromString } from 'node:v8';
import { ConfigError, configFromProcess } from './config/config.ts';
import { createGateway, type Gateway } from './gateway.ts';

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

const reason = (error: unknown): string => (error instanceof Error ? error.message : String(error));

/** Called when the gateway accepts requests and has no administrator yet. `setupCode`: null if the first registration needs none. */
export type WhenEmpty = (url: string, setupCode: string | null) => void | Promise<void>;

/** Tells the operator how to make the first administrator. The lines bypass the log, because operators need them at any log level. */
export const tellHowToBegin: WhenEmpty = (url, code) => {
  const setup = code === null ? '' : ` -H 'Portcullis-Setup-Code: ${code}'`;
  if (code !== null)
    process.stderr.write(`portcullis: the first registration needs the setup code ${code} (header Portcullis-Setup-Code)\n`);
  process.stderr.write(
    `portcullis: there is no administrator yet; register the first one in a browser: ${url}/signin
portcullis: or in another terminal: portcullis init --server ${url}${code === null ? '' : ` --setup-code ${code}`}
portcullis: or do it with your e-mail and a password of at least 8 characters:
curl -s ${url}/api/auth/register -H 'content-type: application/json'${setup} -d '{"email":"you@example.com","password":"..."}'
`,
  );
};

/** Runs the gateway until a signal ends the process. Resolves when the gateway accepts requests. */
export async function runProcess(whenEmpty: WhenEmpty): Promise<void> {
  // Requests leave little garbage. Parallel collector threads would spend more time on coordination than the collection takes.
  setFlagsFromString('--no-parallel-scavenge');
  // While requests wait for the database, their objects survive a collection. V8 then assumes that all objects of their kind live
  // long and allocates them where they are collected late, and they keep others alive.
  setFlagsFromString('--no-allocation-site-pretenuring');
  // Long texts are collected only with the whole heap. By itself, V8 lets the heap grow to several times what is in use before that, so a few
  // users who list targets with thousands of tools would take hundreds of MiB.
  setFlagsFromString('--heap-growing-percent=100');

  const config = readConfiguration();
  const gateway: Gateway = await createGateway(config).catch((error: unknown) => fail([reason(error)]));

  let ending = false;
  for (const signal of ['SIGTERM', 'SIGINT'] as const) {
    process.on(signal, () => {
      // A second signal ends the process at once.
      if (ending) process.exit(1);
      ending = true;
      // SIGINT comes from a terminal, so the gateway need not wait for load balancers.
      void gateway.close(signal === 'SIGTERM' ? config.drainDelayMs : 0).then(
        () => process.exit(0),
        (error: unknown) => fail([`shutdown failed: ${reason(error)}`]),
      );
    });
  }

  await gateway.listen().catch((error: unknown) => fail([reason(error)]));
  try {
    await gateway.loadLibraries();
    if (await gateway.awaitsAdministrator()) await whenEmpty(config.publicUrl, await gateway.setupCode());
  } catch (error) {
    // A signal may close the database in the meantime.
    if (!ending) throw error;
  }
}
