/** The gateway's process: configuration, start, and a graceful end. */
import { setFlagsFromString } from 'node:v8';
import { ConfigError, configFromProcess } from './config.ts';
import { createGateway } from './gateway.ts';

// Requests leave little behind, and the threads that would share the collection of it spend more on sharing than it takes.
setFlagsFromString('--no-parallel-scavenge');
// V8 takes what outlives a collection while requests wait for the database for something that will live long, puts all of its kind
// where it is collected late, and that keeps alive what it refers to.
setFlagsFromString('--no-allocation-site-pretenuring');

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

const config = readConfiguration();
const gateway = await createGateway(config).catch((error: unknown) => fail([reason(error)]));
await gateway.listen().catch((error: unknown) => fail([`cannot listen: ${reason(error)}`]));
// Not through the log: whatever its level, without this nobody can begin.
if (await gateway.awaitsAdministrator()) {
  const code = await gateway.setupCode();
  const setup = code === null ? '' : ` -H 'Portcullis-Setup-Code: ${code}'`;
  if (code !== null)
    process.stderr.write(`portcullis: the first registration needs the setup code ${code} (header Portcullis-Setup-Code)\n`);
  process.stderr.write(
    `portcullis: there is no administrator yet; register the first one in another terminal, with your e-mail and a password of at least 8 characters:
curl -s ${config.publicUrl}/api/auth/register -H 'content-type: application/json'${setup} -d '{"email":"you@example.com","password":"..."}'
`,
  );
}

let ending = false;
for (const signal of ['SIGTERM', 'SIGINT'] as const) {
  process.on(signal, () => {
    // A second signal means now.
    if (ending) process.exit(1);
    ending = true;
    // SIGINT comes from a terminal: no load balancer has to notice first.
    void gateway.close(signal === 'SIGTERM' ? config.drainDelayMs : 0).then(
      () => process.exit(0),
      (error: unknown) => fail([`did not end well: ${reason(error)}`]),
    );
  });
}
