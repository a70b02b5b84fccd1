/** The thread that runs heavy work on policies. */
import { serve } from '../../base/work/thread.ts';
import { jobs } from './jobs.ts';

serve(jobs);
