// Node: one process, one thread, echoes all input.
const net = require('node:net');

const server = net.createServer({ noDelay: true }, (socket) => {
  socket.on('error', () => socket.destroy());
  socket.on('data', (bytes) => socket.write(bytes));
});
server.listen({ host: '127.0.0.1', port: 0, backlog: 4096 }, () => console.log(server.address().port));

// The parent has exited.
process.stdin.on('end', () => process.exit());
process.stdin.resume();
