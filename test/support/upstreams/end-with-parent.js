// A preload for servers of others: they end when the process that started them has ended, however that happened.
process.stdin.on('end', () => process.exit()).resume();
