// An old consumer of jobs with two priorities: what a team runs before it moves to tqhost.
//
//   node production_consumer.mjs PORT CONSUMER
//
// In: entries of `jobs:high` and `jobs:low` with one field `payload` (JSON with `jobId`, `type` and
// `retryCount`), through the group `job-workers`. Out: a line on stdout for each job that is done;
// acknowledged entries, which stay in the stream; a new entry with `retryCount` + 1 for a job that failed, up
// to three times; then an entry of `jobs:high:failed` or `jobs:low:failed`.
//
// At most ten jobs run at once, and nobody waits for them. Two of three reads are for the high priority. A
// job that fails is tried three more times here, before the application adds it again. Its times are shorter
// than those of the original, which are in the comments.

import { setTimeout as sleep } from "node:timers/promises";

import { Redis } from "./resp.mjs";

const GROUP = "job-workers";
const [HIGH, LOW] = ["jobs:high", "jobs:low"];
const TURNS = [HIGH, HIGH, LOW];
const CONCURRENCY = 10;
const TRIES = 4;
const MAX_RETRY_COUNT = 3;
/** A second in the original. */
const BASE_MS = 5;
/** 30 seconds, and a heartbeat after a third of it. */
const IDLE_MS = 3000;
const GRACE_MS = 30_000;
/** After a lost connection: from 100 ms to 10 s, and up to a second more. */
const [FIRST_WAIT_MS, LONGEST_WAIT_MS, JITTER_MS] = [100, 10_000, 1000];

const [port, consumer] = [Number(process.argv[2]), process.argv[3]];
/** The jobs that run, by stream and entry. */
const running = new Map();
let isStopping = false;
let turn = 0;
let wake = () => {};

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

/** The work. A type may fail, hang, or meet a service that asks to be called in an hour. */
async function work(job) {
  if (job.type === "again" || job.type === "broken") throw new Error(`no handler for ${job.type}`);
  if (job.type === "slow") {
    say({ began: job.jobId });
    await new Promise(() => {});
  }
  if (job.type === "busy") {
    say({ waits: job.jobId });
    throw Object.assign(new Error("the service is busy"), { retryAfterMs: 3_600_000 });
  }
  say({ processed: job.jobId });
}

async function run(redis, stream, entry, payload) {
  const job = JSON.parse(payload);
  for (let tried = 1; ; tried += 1) {
    try {
      await work(job);
      break;
    } catch (error) {
      if (tried < TRIES) {
        await sleep(error.retryAfterMs ?? BASE_MS * 2 ** (tried - 1));
        continue;
      }
      // The application's own retry.
      const count = job.retryCount + 1;
      if (count <= MAX_RETRY_COUNT) {
        const again = JSON.stringify({ ...job, retryCount: count });
        await redis.call("XADD", stream, "*", "payload", again);
      } else {
        const letter = ["payload", payload, "error", error.message, "failed_at", Date.now()];
        await redis.call("XADD", `${stream}:failed`, "*", ...letter);
        say({ failed: job.jobId });
      }
      break;
    }
  }
  await redis.call("XACK", stream, GROUP, entry);
}

/** Starts a job, and does not wait for it. */
function start(redis, stream, [entry, fields]) {
  const key = `${stream} ${entry}`;
  if (running.has(key)) return;
  const ended = run(redis, stream, entry, fields[fields.indexOf("payload") + 1])
    .catch((error) => console.error(error))
    .finally(() => {
      running.delete(key);
      wake();
    });
  running.set(key, ended);
}

/** One entry with its stream: of the one whose turn it is, or else of the other one. */
async function next(reader) {
  const read = async (...more) =>
    (await reader.call("XREADGROUP", "GROUP", GROUP, consumer, "COUNT", 1, ...more))?.[0];
  const first = TURNS[turn];
  turn = (turn + 1) % TURNS.length;
  const other = first === HIGH ? LOW : HIGH;
  return (await read("STREAMS", first, ">")) ?? (await read("BLOCK", 20, "STREAMS", other, ">"));
}

/** Jobs whose consumer was silent for too long are taken over. */
async function reclaim(redis) {
  for (const stream of [HIGH, LOW]) {
    const room = CONCURRENCY - running.size;
    if (room <= 0) return;
    const claim = ["XAUTOCLAIM", stream, GROUP, consumer, IDLE_MS, "0", "COUNT", room];
    const [, entries] = await redis.call(...claim);
    for (const entry of entries) start(redis, stream, entry);
  }
}

/** What runs stays with this consumer. JUSTID does not count as a delivery. */
async function renew(redis) {
  for (const key of running.keys()) {
    const [stream, entry] = key.split(" ");
    await redis.call("XCLAIM", stream, GROUP, consumer, 0, entry, "JUSTID");
  }
}

async function consume(redis, reader) {
  for (const stream of [HIGH, LOW]) {
    await redis.call("XGROUP", "CREATE", stream, GROUP, "0", "MKSTREAM").catch((error) => {
      if (!error.message.startsWith("BUSYGROUP")) throw error;
    });
  }
  const upkeep = setInterval(() => renew(redis).then(() => reclaim(redis)).catch(() => {}), IDLE_MS / 3);
  try {
    while (!isStopping) {
      if (running.size >= CONCURRENCY) {
        await new Promise((resolve) => (wake = resolve));
        continue;
      }
      const read = await next(reader);
      if (read) start(redis, read[0], read[1][0]);
    }
  } finally {
    clearInterval(upkeep);
  }
}

process.on("SIGTERM", () => {
  isStopping = true;
  wake();
});

for (let wait = FIRST_WAIT_MS; !isStopping; wait = Math.min(2 * wait, LONGEST_WAIT_MS)) {
  let open = [];
  try {
    open = [await Redis.connect(port), await Redis.connect(port)];
    wait = FIRST_WAIT_MS;
    await consume(...open);
    await Promise.race([Promise.all(running.values()), sleep(GRACE_MS)]);
  } catch (error) {
    console.error(error.message);
    await sleep(wait + Math.random() * JITTER_MS);
  } finally {
    open.forEach((redis) => redis.close());
  }
}
process.exit(0);
