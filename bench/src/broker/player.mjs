// ioredis and BullMQ. Reads numbers, and answers when it has done as much.
import { createInterface } from 'node:readline';
import Redis from 'ioredis';
import { Queue, Worker } from 'bullmq';

const [mode, path] = process.argv.slice(2);
const message = 'x'.repeat(64);
const batch = 100;
const connect = () => new Redis({ path, maxRetriesPerRequest: null });
let run;

if (mode === 'publish') {
  const publisher = connect(), subscriber = connect();
  let received = 0, goal = Infinity, wake;
  await subscriber.subscribe('node');
  subscriber.on('message', () => { if (++received >= goal) wake(); });
  run = async (total) => {
    for (let sent = 0; sent < total;) {
      const count = Math.min(batch, total - sent);
      goal = received + count;
      const all = new Promise((resolve) => { wake = resolve; });
      await Promise.all([all, ...Array.from({ length: count }, () => publisher.publish('node', message))]);
      sent += count;
    }
    return 0;
  };
} else {
  const queue = new Queue('bull', { connection: connect() });
  const options = { removeOnComplete: true, removeOnFail: true };
  let ran = 0, done = 0, goal = Infinity, wake, at;
  const worker = new Worker('bull', async () => { ran++; at = process.hrtime.bigint(); }, { connection: connect(), concurrency: 50 });
  worker.on('completed', () => { if (++done >= goal) wake(); });
  await worker.waitUntilReady();
  const wait = (count) => { goal = done + count; return new Promise((resolve) => { wake = resolve; }); };
  if (mode === 'jobs') {
    run = async (total) => {
      const all = wait(total);
      for (let sent = 0; sent < total;) {
        const count = Math.min(batch, total - sent);
        await Promise.all(Array.from({ length: count }, () => queue.add('job', message, options)));
        sent += count;
      }
      await all;
      return 0;
    };
  } else {
    run = async (total) => {
      const took = [];
      for (let number = 0; number < total; number++) {
        const completed = wait(1);
        const started = process.hrtime.bigint();
        await queue.add('job', message, options);
        await completed;
        took.push(Number(at - started) / 1000);
        await new Promise((resolve) => setTimeout(resolve, 1));
      }
      took.sort((a, b) => a - b);
      return took[Math.min(took.length - 1, Math.ceil(took.length * 0.99) - 1)];
    };
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  console.log(await run(Number(line)));
}
process.exit(0);
