/** The entry of the gateway's process in a container. `portcullis start` does the same on a terminal. */
import { runProcess, tellHowToBegin } from './process.ts';

await runProcess(tellHowToBegin);
