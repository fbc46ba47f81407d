// BullMQ for Node.js. In: the orders that src/lib.rs describes. Out: tasks, and their times. It has the
// defaults, with two exceptions: the concurrency, which its documents put at 100 to 300 for jobs that mostly
// wait, and completed jobs, which are removed.
import { writeFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { Queue, Worker } from 'bullmq';

const QUEUE = 'bench';
// `waits` asks this URL in each job, and says how many jobs run at once.
const { ASKS, AT_ONCE = 100 } = process.env;
const CHUNK = 500;
const PAYLOAD_BYTES = 200;

const { hostname: host, port } = new URL(process.env.REDIS_URL);
const connection = { host, port: Number(port) };

const now = () => process.hrtime.bigint();
const job = () => ({ payload: now().toString().padStart(20, '0').padEnd(PAYLOAD_BYTES, 'x') });

const times = [];
const note = process.env.TIMES
  ? (point, payload) => times.push(`${point} ${BigInt(payload.slice(0, 20))} ${now()}\n`)
  : () => {};

async function fill(tasks) {
  const queue = new Queue(QUEUE, { connection });
  for (let left = tasks; left > 0; left -= CHUNK) {
    const jobs = Array.from({ length: Math.min(left, CHUNK) }, () => ({ name: 'task', data: job() }));
    await queue.addBulk(jobs);
  }
  await queue.close();
}

async function pace(rate, seconds) {
  const queue = new Queue(QUEUE, { connection });
  const begin = performance.now();
  for (let n = 0; n < rate * seconds; n++) {
    const wait = begin + (n * 1000) / rate - performance.now();
    if (wait > 0) await sleep(wait);
    await queue.add('task', job());
  }
  await queue.close();
}

async function ask() {
  const answer = await fetch(ASKS, { method: 'POST', body: 'x'.repeat(100) });
  if (answer.headers.get('content-type') !== 'text/event-stream') return (await answer.json()).choices.length;
  return (await answer.text()).split('data: ').length - 1;
}

async function work() {
  const run = async ({ data }) => {
    note('started', data.payload);
    return data.payload;
  };
  const options = { connection, concurrency: Number(AT_ONCE), removeOnComplete: { count: 0 } };
  const worker = new Worker(QUEUE, ASKS ? ask : run, options);
  // This event comes after the reply of the script that completed the job.
  worker.on('completed', (_, payload) => note('done', payload));
  worker.on('error', (error) => console.error(error));
  process.stdin.resume().on('end', () => {
    if (process.env.TIMES) writeFileSync(process.env.TIMES, times.join(''));
    process.exit();
  });
  await worker.waitUntilReady();
  console.log('ready');
}

const [order, ...rest] = process.argv.slice(2);
switch (order) {
  case 'fill':
    await fill(Number(rest[0]));
    break;
  case 'pace':
    await pace(Number(rest[0]), Number(rest[1]));
    break;
  case 'work':
    await work();
    break;
  default:
    throw new Error('fill N, pace RATE SECONDS, or work');
}
