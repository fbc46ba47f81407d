// Runs handlers: one task, or many at once in one instance (`instance = { concurrent = … }`).
//
// In: functions that return promises. Out: an event loop that waits for the host: clocks, answers, and the
// next task. `ready(pollable, ms)` waits for something of the host; setTimeout and setInterval are here.
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

/** A unit test has the event loop of Node.js, and one task. */
const isSandbox = typeof process === 'undefined';
/** Whether the build has made `await` a call of `then`. Otherwise nobody knows whose a callback is. */
const isFollowed = (async () => {}).constructor === Function;

function tell() {
  if (current === entered) return;
  entered = current;
  enter(current);
}

/** Calls a function for a task. */
function within(number, call) {
  const before = current;
  current = number;
  tell();
  try {
    return call();
  } finally {
    current = before;
    if (before !== undefined || !isFollowed) tell();
  }
}

/** A function that runs for the task that computes now. */
function bound(call) {
  if (typeof call !== 'function' || current === undefined) return call;
  const number = current;
  return (...values) => within(number, () => call(...values));
}

const engine = { queueMicrotask, setTimeout, then: Promise.prototype.then };

/** The helpers' notes on each task. */
const kept = new Map();
/** For the helpers: an object that is the task's own. */
export function own() {
  if (!kept.has(current)) kept.set(current, {});
  return kept.get(current);
}

const timers = new Map();
let lastTimer = 0;

function start(call, ms, values, every) {
  const wait = Math.max(0, Number(ms) || 0);
  lastTimer += 1;
  const timer = { at: performance.now() + wait, call: bound(call), values, number: current };
  timers.set(lastTimer, every ? { ...timer, every: Math.max(1, wait) } : timer);
  return lastTimer;
}
if (isSandbox) {
  Promise.prototype.then = function (done, failed) {
    return engine.then.call(this, bound(done), bound(failed));
  };
  globalThis.queueMicrotask = (call) => engine.queueMicrotask(bound(call));
  globalThis.setTimeout = (call, ms, ...values) => start(call, ms, values, false);
  globalThis.setInterval = (call, ms, ...values) => start(call, ms, values, true);
  globalThis.clearTimeout = globalThis.clearInterval = (timer) => void timers.delete(timer);
}

/** The pollables that are waited for. */
const waits = new Map();

/**
 * Waits until it is ready, while other tasks go on. False if it is not ready after `ms`.
 * @returns {Promise<boolean>}
 */
export function ready(pollable, ms) {
  return new Promise((resolve, reject) => {
    const late = setTimeout(() => waits.get(pollable).settle(resolve, false), ms);
    const settle = (end, value) => {
      clearTimeout(late);
      waits.delete(pollable);
      end(value);
    };
    waits.set(pollable, { settle, resolve, reject, number: current });
  });
}

/** Lets everything run that can: the engine calls a timer when nothing else is left. */
const drained = () => new Promise((resolve) => void engine.setTimeout(resolve, 0));

const drop = (resource) => resource[Symbol.dispose ?? Symbol.for('dispose')]();

/** Runs what is ready until `isOver`. `take` is called when `news` is ready. */
async function serve(isOver, news, take) {
  for (;;) {
    await drained();
    if (isOver()) return;
    const waiting = [...waits];
    const pollables = waiting.map(([pollable]) => pollable);
    if (news) pollables.push(news);
    let due = Infinity;
    for (const { at } of timers.values()) due = Math.min(due, at);
    if (pollables.length === 0 && due === Infinity) {
      throw new Error('the handler waits for something that can never happen');
    }
    const rest = Math.max(0, due - performance.now());
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
    timer.call(...timer.values);
  }
}

/** Runs one task to its end. */
export async function run(promise) {
  if (!isSandbox) return promise;
  let isOver = false;
  const settled = Promise.resolve(promise).finally(() => { isOver = true; });
  settled.catch(() => {});
  await serve(() => isOver);
  return settled;
}

/**
 * Runs the tasks that the host brings. `begin(task)` gives the promise of a task's end, as `finish` takes it,
 * or of undefined if it failed with an error that nobody caught.
 */
export async function runAll(begin) {
  let isOver = false;
  const end = (number, ended) => {
    if (ended) finish(number, ended);
    else fail(number);
    // No task computes now, as the host sees it.
    entered = undefined;
    kept.delete(number);
  };
  const stop = (number) => {
    for (const [id, timer] of timers) if (timer.number === number) timers.delete(id);
    for (const { settle, reject, number: of } of [...waits.values()]) {
      if (of === number) settle(reject, new Error('the time of the task is over'));
    }
  };
  const take = () => {
    for (let event; (event = next()) !== undefined; ) {
      if (event.tag === 'start') {
        const { number, task } = event.val;
        within(number, () => begin(task).then((ended) => end(number, ended)));
      } else if (event.tag === 'stop') {
        stop(event.val);
      } else {
        isOver = true;
      }
    }
  };
  const news = subscribe();
  try {
    take();
    await serve(() => isOver, news, take);
  } finally {
    drop(news);
  }
}
