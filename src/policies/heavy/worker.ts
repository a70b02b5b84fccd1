/** The thread that runs heavy work on policies. */
import { comeSecond, serve } from '../../base/work/thread.ts';

comeSecond();
// Loading the jobs takes longer than most jobs, so it comes second too.
const { jobs } = await import('./jobs.ts');
serve(jobs);
