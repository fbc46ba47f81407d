// A guest in JavaScript: it counts its tasks, prints, sends requests to `url`, and ends as the field `end`
// says.
//
// It returns `tasks`, the number of its tasks with this one; in a batch also `batch`, the number of tasks in
// the call; with `url` the response; with `effects` and `blobs` what it reads. `retry`, `unavailable`,
// `defer` and `count` use the number in the field `number`; only `count` needs one. `uncaught` bypasses the
// helper of `tqhost new`, like a handler that does not use it. `asks` asks a model at `url` and prints
// nothing.

import { batches, defer, handles, has, json, reject, retry, text, unavailable } from './tqhost.js';
import { blobs } from './tqhost-blobs.js';
import { fence, flow, outbox, records, select, state } from './tqhost-effects.js';
import { fetch, retryAfterMs } from './tqhost-http.js';

let tasks = 0;

function work(task) {
  tasks += 1;
  const end = has(task, 'end') ? text(task, 'end') : 'well';
  if (end === 'asks') return asks(task);
  console.log('printed by', task.id, { n: 1n });
  console.error(`complained by ${task.id}`);
  if (end.startsWith('waits')) return waits(task, end);
  if (end === 'naps' || clumsy[end]) return naps(task, end);
  if (has(task, 'url')) return end === 'code' ? ask(task).catch((error) => error.code) : ask(task);
  if (end === 'effects') return effects(text(task, 'key'));
  if (end === 'blobs') return files(task.id);
  if (end === 'throw') explode();
  if (end === 'random') return { drawn: Math.random(), uuid: crypto.randomUUID() };
  if (end === 'number') throw 42;
  const later = { retry, unavailable, defer }[end];
  if (later) throw later('as told', has(task, 'number') ? json(task, 'number') : 1.5);
  if (end === 'count') return state.increment('count', json(task, 'number'));
  if (end === 'caused') throw new RangeError('it was not there', { cause: new Error('boom in JavaScript') });
  if (end === 'promise') return Promise.resolve({ tasks });
  if (end === 'recursion') return (function again(n) { return again(n + 1) + 1; })(0);
  return { tasks };
}

/** Returns the number of choices of an answer, or of events. */
async function asks(task) {
  const answer = await fetch(text(task, 'url'), { method: 'POST', body: 'x'.repeat(100) });
  if (answer.headers.get('content-type') !== 'text/event-stream') return (await answer.json()).choices.length;
  return (await answer.text()).split('data: ').length - 1;
}

/**
 * Waits for a clock and for `url`, counts itself before and after, and throws if `end` says so. A timer and a
 * request that it leaves behind end with it.
 */
async function waits(task, end) {
  state.increment(task.id, 1);
  setInterval(() => {}, 5);
  await Promise.all([1, 2, 3].map(() => new Promise((resolve) => { setTimeout(resolve, 100); })));
  const answer = await fetch(text(task, 'url'), { method: 'post', body: 'x'.repeat(100) });
  state.increment(task.id, answer.status);
  fetch(text(task, 'url').replace('/size', '/silent')).catch(() => {});
  console.log(`waited by ${task.id}`);
  if (end === 'waits, throws') explode();
  return { tasks, count: Number(state.increment(task.id, 0)) };
}

const sleep = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });

/** Waits for a while, and then ends well, or in one of the ways of `clumsy`. It prints before and after. */
async function naps(task, end) {
  console.log('before', task.id);
  await sleep(clumsy[end] ? 50 : 500);
  if (clumsy[end]) return clumsy[end]();
  console.log('after', task.id);
  return { id: task.id, count: Number(state.increment(task.id, 1)) };
}

/** Ways to misbehave beside others of the instance. */
const clumsy = {
  endless() { for (;;); },
  async spins() { for (;;) await null; },
  async deaf() {
    for (;;) await sleep(3_600_000).catch(() => {});
  },
  never: () => new Promise(() => {}),
  sleeps: () => sleep(3_600_000),
  async hoards() {
    for (const held = []; ; ) held.push(new Uint8Array(8 << 20).fill(1));
  },
  /** Leaves behind what fails later, and what never ends. */
  async leaves() {
    Promise.reject(new Error('left by a promise'));
    setTimeout(explode, 10);
    queueMicrotask(explode);
    sleep(3_600_000).then(explode);
    (async () => { await sleep(20); explode(); })();
    await sleep(50);
    Promise.reject(new Error('left at the end'));
    (async () => { await null; explode(); })();
    (async () => { await sleep(20); explode(); })();
  },
  large: () => 'x'.repeat(3 << 20),
  floods() { for (let n = 0; n < 2000; n += 1) console.log('line', n); },
};

/** Has effects of each kind, with a record at `key`, and returns what it reads then. */
function effects(key) {
  state.set('seen', { by: 'javascript' }, { ttlMs: 60_000 });
  state.set('gone', 'x');
  state.delete('gone');
  state.set('late', 'x', { ttlMs: -0.5 });
  records.put(key, { by: 'javascript', n: 1 });
  records.expire(key, 60_000);
  outbox.enqueue({ queue: 'reports', fields: { by: 'javascript' }, delayMs: 1, idempotencyKey: 'once' });
  return {
    fence: Number(fence()),
    count: state.increment('count', 2),
    seen: state.json('seen'),
    gone: state.get('gone') === undefined,
    record: records.text(key),
    children: flow.json(),
  };
}

/** Puts a blob, reads it again, and names others that are refused. */
function files(id) {
  const url = blobs.put(`${id}/rows.json`, 'application/json', { by: 'javascript' });
  const refused = ['../other', `${id}/none`].map((name) => {
    try {
      return blobs.text(name);
    } catch (error) {
      return error.code;
    }
  });
  return { url, read: blobs.json(`${id}/rows.json`), bytes: blobs.get(`${id}/rows.json`).length, refused };
}

/**
 * Sends requests to `url`: `times` of them at once, with `bodySize` bytes of body, the header in `header`,
 * and the timeout `seconds`, if the task has these fields. With `throw` it waits for the end of the requests.
 */
async function ask(task) {
  const options = { headers: {} };
  if (has(task, 'bodySize')) {
    Object.assign(options, { method: 'post', body: 'x'.repeat(Number(text(task, 'bodySize'))) });
  }
  if (has(task, 'header')) options.headers[text(task, 'header')] = 'own';
  if (has(task, 'seconds')) options.timeoutMs = Number(text(task, 'seconds')) * 1000;
  const times = has(task, 'times') ? Number(text(task, 'times')) : 1;
  const asked = Promise.all(Array.from({ length: times }, () => fetch(text(task, 'url'), options)));
  if (has(task, 'end') && text(task, 'end') === 'throw') await asked.then(explode, explode);
  const [response] = await asked;
  if (response.status === 429) throw unavailable('the server is busy', retryAfterMs(response));
  return { status: response.status, type: response.headers.get('content-type'), body: await response.text() };
}

function explode() {
  throw new TypeError('boom in JavaScript');
}

const helped = handles(work);

export const handler = {
  ...helped,
  handle(task) {
    if (has(task, 'end') && text(task, 'end') === 'uncaught') explode();
    return helped.handle(task);
  },
};

export const batchHandler = batches((tasks) => {
  const end = (task) => (has(task, 'end') ? text(task, 'end') : 'well');
  if (tasks.every((task) => has(task, 'url'))) {
    return Promise.all(tasks.map((task) => ask(task).catch((error) => error)));
  }
  if (tasks.some((task) => end(task) === 'throw')) explode();
  return tasks.map((task, index) => {
    select(index);
    if (end(task) === 'effects') return effects(text(task, 'key'));
    return end(task) === 'reject' ? reject('as told') : { batch: tasks.length };
  });
});
