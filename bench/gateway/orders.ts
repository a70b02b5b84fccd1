/** How the process with the callers is told what to do. */
import type { Orders } from './load.ts';

export type Order = <Name extends keyof Orders>(name: Name, order: Orders[Name]['takes']) => Promise<Orders[Name]['gives']>;

export const orders =
  (origin: string): Order =>
  async (name, order) => {
    const answer = await fetch(origin, { method: 'POST', body: JSON.stringify({ name, order }) });
    const { gives, failed } = (await answer.json()) as { gives: never; failed?: string };
    if (failed !== undefined) throw new Error(failed);
    return gives;
  };
