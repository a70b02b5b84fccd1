/** The thread in which policies are worked out. */
import { serve } from '../../work/thread.ts';
import { jobs } from './jobs.ts';

serve(jobs);
