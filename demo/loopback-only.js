// Preload for servers that would listen on all interfaces: every TCP listen() without a host binds to 127.0.0.1.
import net from 'node:net';

const { listen } = net.Server.prototype;
net.Server.prototype.listen = function (...args) {
  const isPort = (value) => typeof value === 'number' || (typeof value === 'string' && /^\d+$/.test(value));
  if (isPort(args[0]) && typeof args[1] !== 'string') args.splice(1, 0, '127.0.0.1');
  else if (args[0] !== null && typeof args[0] === 'object' && isPort(args[0].port) && !args[0].host) {
    args[0] = { ...args[0], host: '127.0.0.1' };
  }
  return listen.apply(this, args);
};
