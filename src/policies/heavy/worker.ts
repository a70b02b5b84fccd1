/** The thread that runs heavy work on policies. */
import { serve } from '../../work/thread.ts';
import { jobs } from './jobs.ts';

serve(jobs);
