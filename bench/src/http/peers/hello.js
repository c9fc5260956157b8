// Node: one process, one thread, its own HTTP server.
const http = require('node:http');

const hello = Buffer.from('Hello, world!\n');

const server = http.createServer((request, response) => {
  const found = request.url === '/hello';
  response.writeHead(found ? 200 : 404, {
    'Content-Type': 'text/plain; charset=utf-8',
    'Content-Length': found ? hello.length : 0,
  });
  response.end(found ? hello : undefined);
});
server.keepAliveTimeout = 60_000;
server.listen({ host: '127.0.0.1', port: Number(process.argv[1]), backlog: 4096 });
