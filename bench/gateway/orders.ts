/** Orders to the processes of a benchmark. An order is a POST with JSON, and its answer is JSON. */
import { createServer } from 'node:http';
import { announce } from './announce.ts';
import type { Orders } from './load-orders.ts';

/** What each order takes and gives, by its name. */
type OrderBook<Book> = { readonly [Name in keyof Book]: { readonly takes: unknown; readonly gives: unknown } };

export type OrderFrom<Book extends OrderBook<Book>> = <Name extends keyof Book & string>(
  name: Name,
  order: Book[Name]['takes'],
) => Promise<Book[Name]['gives']>;

export type Order = OrderFrom<Orders>;

export const ordersFrom =
  <Book extends OrderBook<Book>>(origin: string): OrderFrom<Book> =>
  async (name, order) => {
    const answer = await fetch(origin, { method: 'POST', body: JSON.stringify({ name, order }) });
    const { gives, failed } = (await answer.json()) as { gives: never; failed?: string };
    if (failed !== undefined) throw new Error(failed);
    return gives;
  };

export const orders = (origin: string): Order => ordersFrom<Orders>(origin);

/** Takes orders until the process ends. */
export async function takeOrders<Book extends OrderBook<Book>>(
  book: {
    readonly [Name in keyof Book]: (order: Book[Name]['takes']) => Promise<Book[Name]['gives']>;
  },
): Promise<void> {
  await announce(
    createServer(async (req, res) => {
      const chunks: Buffer[] = [];
      for await (const chunk of req) chunks.push(chunk as Buffer);
      const { name, order } = JSON.parse(Buffer.concat(chunks).toString()) as { name: keyof Book; order: never };
      try {
        res.end(JSON.stringify({ gives: await book[name](order) }));
      } catch (error) {
        res.end(JSON.stringify({ failed: error instanceof Error ? error.message.slice(0, 2_000) : String(error) }));
      }
    }),
  );
}
