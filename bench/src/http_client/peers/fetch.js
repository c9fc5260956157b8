// Node's own fetch, which is undici.
const [url, inFlight] = [process.argv[1], Number(process.argv[2])];
let left = 0;

async function worker() {
  while (left > 0) {
    left -= 1;
    const response = await fetch(url);
    if (response.status !== 200) throw new Error(`status ${response.status}`);
    for await (const _ of response.body) { /* discarded */ }
  }
}

async function main() {
  for await (const line of require('readline').createInterface({ input: process.stdin })) {
    const count = Number(line);
    left = count;
    await Promise.all(Array.from({ length: Math.min(inFlight, count) }, worker));
    process.stdout.write(`${count}\n`);
  }
}

main().catch((error) => { console.error(error); process.exit(1); });
