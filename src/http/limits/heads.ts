/** Limits the heads of requests. */
import type { RequestListener } from 'node:http';

/** The most bytes of a head. Node answers a longer one with 431. */
const MAX_BYTES = 16 * 1024;
/** From this number of headers on, a request is refused. In memory, each header takes a hundred bytes, however short it is. */
const MAX_HEADERS = 256;

/** Node reads no more headers than this. It would leave out the others and say nothing, so `refuseLargeHeads` must refuse these requests. */
export const HEAD_LIMITS = { maxHeaderSize: MAX_BYTES, maxHeadersCount: MAX_HEADERS };

/** Put it inside of `limitPipelining`, which must know of every answer. */
export const refuseLargeHeads =
  (handle: RequestListener): RequestListener =>
  (req, res) => {
    if (req.rawHeaders.length < 2 * MAX_HEADERS) handle(req, res);
    else res.writeHead(431, { Connection: 'close' }).end();
  };
