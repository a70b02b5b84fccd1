// A preload for servers of others: it makes them listen on 127.0.0.1 only, and print the port.
import net from 'node:net';

const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (first, ...rest) {
  const callback = rest.findLast((argument) => typeof argument === 'function');
  const port = typeof first === 'object' && first !== null ? first.port : first;
  return listen.call(this, { port: Number(port), host: '127.0.0.1' }, () => {
    process.stderr.write(`listening on port ${this.address().port}\n`);
    callback?.();
  });
};
