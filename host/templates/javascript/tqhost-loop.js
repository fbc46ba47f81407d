// Runs handlers: one task, or many at once in one instance (`instance = { concurrent = … }`).
//
// In: functions that return promises. Out: an event loop that waits for the host: clocks, answers, and the
// next task. `ready(pollable, ms)` waits for something of the host; setTimeout and setInterval are here.
// When a task ends, so does what it has left behind: its timers never fire, and its waits throw.
//
// Each callback runs for the task that made it, and the loop tells the host which task computes. So the host
// knows whose each call is. For that, build.js makes `await` a call of `then`, which this file changes.
//
// Not here: what a task returns (`tqhost.js`).

import { enter, fail, finish, next, subscribe } from 'tqhost:extensions/tasks@0.1.0';
import { subscribeDuration } from 'wasi:clocks/monotonic-clock@0.2.4';
import { poll } from 'wasi:io/poll@0.2.4';

/** The task that computes, and the one that the host knows. Undefined: none, or there is only one. */
let current;
let entered;

/** A unit test has one task, and the event loop of Node.js. In the sandbox tqhost-web.js makes `process`. */
const isSandbox = typeof process === 'undefined';
/** Whether the build has made `await` a call of `then`. Otherwise nobody knows whose a callback is. */
const isFollowed = (async () => {}).constructor === Function;

/** The helpers' notes on each task that has not ended; under `undefined` on the only one, or on none. */
const kept = new Map();
/** For the helpers: an object that is the task's own. */
export const own = () => kept.get(current) ?? {};

function tell() {
  if (current === entered) return;
  // The host has forgotten a task that has ended, so its callbacks belong to no task.
  const task = kept.has(current) ? current : undefined;
  if (task === entered) return;
  entered = task;
  enter(task);
}

/** Calls a function with a value for a task. */
function within(number, call, value) {
  const before = current;
  current = number;
  tell();
  try {
    return call(value);
  } finally {
    current = before;
    if (before !== undefined || !isFollowed) tell();
  }
}

/** A function of at most one value that runs for the task that computes now. */
function bound(call) {
  if (typeof call !== 'function' || current === undefined) return call;
  const number = current;
  return (value) => within(number, call, value);
}

const engine = { clearTimeout, queueMicrotask, setInterval, setTimeout, then: Promise.prototype.then };

/** Whether the loop below runs. At the top of a file, without a host, the engine has the timers. */
export let isServed = false;
const timers = new Map();
let lastTimer = 0;

function start(call, ms, values, every) {
  lastTimer += 1;
  if (!kept.has(current)) return lastTimer;
  const wait = Math.max(0, Number(ms) || 0);
  const run = bound(() => {
    try {
      call(...values);
    } catch (error) {
      // It must not end the other tasks.
      console.error(error);
    }
  });
  const timer = { at: performance.now() + wait, run, number: current };
  timers.set(lastTimer, every ? { ...timer, every: Math.max(1, wait) } : timer);
  return lastTimer;
}

if (isSandbox) {
  Promise.prototype.then = function (done, failed) {
    return engine.then.call(this, bound(done), bound(failed));
  };
  globalThis.queueMicrotask = (call) => engine.queueMicrotask(bound(call));
  globalThis.setTimeout = (call, ms, ...values) =>
    isServed ? start(call, ms, values, false) : engine.setTimeout(call, ms, ...values);
  globalThis.setInterval = (call, ms, ...values) =>
    isServed ? start(call, ms, values, true) : engine.setInterval(call, ms, ...values);
  globalThis.clearTimeout = globalThis.clearInterval = (timer) =>
    void (isServed ? timers.delete(timer) : engine.clearTimeout(timer));
}

/** The pollables that are waited for. */
const waits = new Map();

/**
 * Waits until it is ready, while other tasks go on. False if it is not ready after `ms`. It throws the reason
 * of a signal that is aborted.
 * @param {AbortSignal} [signal]
 * @returns {Promise<boolean>}
 */
export function ready(pollable, ms, signal) {
  if (!kept.has(current)) throw new Error('only a task that `handles` or `batches` runs can wait');
  return new Promise((resolve, reject) => {
    const settle = (end, value) => {
      clearTimeout(late);
      signal?.removeEventListener('abort', abort);
      waits.delete(pollable);
      end(value);
    };
    const abort = () => settle(reject, signal.reason);
    const late = setTimeout(() => settle(resolve, false), ms);
    waits.set(pollable, { settle, resolve, reject, number: current });
    if (signal?.aborted) abort();
    else signal?.addEventListener('abort', abort);
  });
}

/** Ends what a task waits for. */
function release(number, why) {
  for (const [id, timer] of timers) if (timer.number === number) timers.delete(id);
  for (const { settle, reject, number: of } of [...waits.values()]) {
    if (of === number) settle(reject, new Error(why));
  }
}

/** Lets everything run that can: the engine calls a timer when nothing else is left. */
const drained = () => new Promise((resolve) => void engine.setTimeout(resolve, 0));

/** Gives a handle of the host back. */
export const drop = (resource) => resource[Symbol.dispose ?? Symbol.for('dispose')]();

/** A clock of the host counts nanoseconds in 64 bits. */
const LONGEST_MS = 1e9;

/** The number of forms that the engine reads. It reads 16 KiB of one in each turn of the loop. */
let readings = 0;
/** The loop waits for the host after this number of turns, although the engine may not have ended. */
const MOST_TURNS = 10_000;

/** Awaits the bytes of a form, which the engine reads in several turns. */
export async function reading(bytes) {
  readings += 1;
  try {
    return await bytes;
  } finally {
    readings -= 1;
  }
}

/** Runs what is ready until `isOver`. `take` is called when `news` is ready. */
async function serve(isOver, news, take) {
  for (let turns = 0; ; turns += 1) {
    await drained();
    if (isOver()) return;
    // A handler may also read a form by itself.
    const isIdle = waits.size === 0 && timers.size === 0 && !news;
    if ((isIdle || readings > 0) && turns < MOST_TURNS) {
      runTimers();
      continue;
    }
    if (isIdle) {
      const error = new Error('the handler waits for something that can never happen');
      console.error(error);
      throw error;
    }
    turns = 0;
    const waiting = [...waits];
    const pollables = waiting.map(([pollable]) => pollable);
    if (news) pollables.push(news);
    let due = Infinity;
    for (const { at } of timers.values()) due = Math.min(due, at);
    const rest = Math.min(LONGEST_MS, Math.max(0, due - performance.now()));
    const timer = due === Infinity ? undefined : subscribeDuration(BigInt(Math.ceil(rest * 1e6)));
    if (timer) pollables.push(timer);
    tell();
    for (const index of poll(pollables)) {
      if (index < waiting.length) {
        const { settle, resolve } = waiting[index][1];
        settle(resolve, true);
      } else if (pollables[index] === news) {
        take();
      }
    }
    if (timer) drop(timer);
    runTimers();
  }
}

function runTimers() {
  const now = performance.now();
  for (const [id, timer] of [...timers]) {
    if (timer.at > now || !timers.has(id)) continue;
    if (timer.every === undefined) timers.delete(id);
    else timer.at = now + timer.every;
    timer.run();
  }
}

/** Runs `work` with timers and waits, which end with it. */
async function serving(work) {
  isServed = true;
  try {
    return await work();
  } finally {
    kept.delete(undefined);
    release(undefined, 'the task has ended');
    // The requests that nobody waited for are dropped before the next task begins.
    await drained();
    isServed = false;
  }
}

/** Runs one task to its end. `begin()` returns the promise of it. */
export async function run(begin) {
  kept.set(undefined, {});
  if (!isSandbox) return begin();
  return serving(async () => {
    let isOver = false;
    const settled = Promise.resolve(begin()).finally(() => { isOver = true; });
    settled.catch(() => {});
    await serve(() => isOver);
    return settled;
  });
}

/**
 * Runs the tasks that the host brings. `begin(task)` returns the promise of a task's end, as `finish` takes
 * it; its tag is `trap` after an error that nobody caught.
 */
export async function runAll(begin) {
  let isOver = false;
  const end = (number, ended) => {
    // One that was stopped may go on for a while.
    if (!kept.has(number)) return;
    if (ended.tag === 'trap') fail(number);
    else finish(number, ended);
    // No task computes now, as the host sees it.
    entered = undefined;
    kept.delete(number);
    release(number, 'the task has ended');
  };
  const take = () => {
    for (let event; (event = next()) !== undefined; ) {
      if (event.tag === 'start') {
        const { number, task } = event.val;
        kept.set(number, {});
        within(number, () => begin(task).then((ended) => end(number, ended)));
      } else if (event.tag === 'stop') {
        const number = event.val;
        release(number, 'the time of the task is over');
        // A task that has not ended now waits for a timer, which never fires, or goes on all the same.
        drained().then(() => within(number, () => end(number, { tag: 'trap' })));
      } else {
        // The host says so whenever it is asked.
        isOver = true;
        return;
      }
    }
  };
  const news = subscribe();
  kept.set(undefined, {});
  try {
    await serving(() => {
      take();
      return serve(() => isOver, news, take);
    });
  } finally {
    drop(news);
  }
}
