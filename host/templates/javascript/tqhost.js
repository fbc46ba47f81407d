// Helpers for a handler: they read fields, report failures, convert results and write log lines.
//
// In: a function from a task to a result. Out: the `handler` that the component exports.

import { unavailable as reportOutage } from 'tqhost:extensions/outage@0.1.0';
import { progress, remainingMs } from 'tqhost:handler/context@0.1.0';
import { log } from 'wasi:logging/logging@0.1.0-draft';
import { get } from 'wasi:config/store@0.2.0-rc.1';
import { own, run, runAll } from './tqhost-loop.js';

/** @typedef {import('tqhost:handler/types@0.1.0').Task} Task */

/**
 * `throw reject('why')`: it will never work. The task is dead-lettered at once.
 * @param {string} message
 */
export const reject = (message) => ({ tag: 'reject', val: message });

/**
 * A time in milliseconds as the host takes it: a whole number. `name` is for the error. One of less than a
 * millisecond is never 0, which may mean something else to the host.
 * @param {string} name
 * @param {number} time
 */
export function millis(name, time) {
  const whole = Math.ceil(Math.max(0, Number(time)));
  if (!Number.isFinite(whole)) throw new TypeError(`\`${name}\` is a number of milliseconds, not ${time}`);
  // The host shortens long times, if they fit into 64 bits.
  return BigInt(Math.min(whole, Number.MAX_SAFE_INTEGER));
}

/**
 * `throw retry('why')`: it may work later. The queue's backoff says when, unless `afterMs` does.
 * @param {string} message
 * @param {number} [afterMs]
 */
export const retry = (message, afterMs) => ({
  tag: 'retry',
  val: { message, afterMs: afterMs === undefined ? undefined : millis('afterMs', afterMs) },
});

/**
 * `throw unavailable('why')`: a service outside is down, or asks to be called later, after `afterMs`. It is a
 * retry that says nothing about this version. A queue with `hold` waits until the service is back.
 * @param {string} message
 * @param {number} [afterMs]
 */
export const unavailable = (message, afterMs) => ({ ...retry(message, afterMs), isOutage: true });

/**
 * `throw defer('why', 60_000)`: it is too early. The task comes back later, and no attempt is used.
 * @param {string} message
 * @param {number} afterMs
 */
export const defer = (message, afterMs) => ({
  tag: 'defer',
  val: { message, afterMs: millis('afterMs', afterMs) },
});

/**
 * A field's bytes. If the field is missing, the task is rejected, because no attempt would find it.
 * @param {Task} task
 * @param {string} name
 */
export function bytes(task, name) {
  const field = task.fields.find((field) => field.name === name);
  if (field === undefined) throw reject(`field \`${name}\` is missing`);
  return field.value;
}

/**
 * A field's text.
 * @param {Task} task
 * @param {string} name
 */
export function text(task, name) {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes(task, name));
  } catch (error) {
    // Anything else is not the field's fault: a missing field is rejected already, and memory may be used up.
    throw error instanceof TypeError ? reject(`field \`${name}\` is not UTF-8 text`) : error;
  }
}

/**
 * A field that holds JSON.
 * @param {Task} task
 * @param {string} name
 */
export function json(task, name) {
  const source = text(task, name);
  try {
    return JSON.parse(source);
  } catch (error) {
    throw error instanceof SyntaxError ? reject(`field \`${name}\` is not JSON: ${error.message}`) : error;
  }
}

/**
 * Whether the task has this field.
 * @param {Task} task
 * @param {string} name
 */
export const has = (task, name) => task.fields.some((field) => field.name === name);

/**
 * The value that the host's configuration grants this plugin under this key, or undefined.
 * @param {string} key
 */
export const config = (key) => get(key);

export { progress, remainingMs };

/** The errors of a chain of causes that are told. A chain may be a circle. */
const MAX_CAUSES = 10;

/**
 * For tqhost-http.js: notes that a request of this attempt has failed outside, and the failure for a later
 * exception, `retry` or `unavailable`. The exception must not count against this version of the handler.
 * @param {typeof retry} failure
 * @param {number} [afterMs] how long the server asks to wait
 */
export function failedOutside(failure, afterMs) {
  own().outside = (/** @type {string} */ message) => failure(message, afterMs);
}

/**
 * Makes the component's handler from a function. The function returns nothing, text, bytes, a value that JSON
 * can represent, or a promise of one of these. If it throws an error that is not one of the failures above,
 * the error is logged with its stack and the attempt ends as a trap: the task is tried again, and the trap
 * counts against this version. After a request that failed outside, such an error is a retry instead.
 * @param {(task: Task) => unknown} handle
 */
export function handles(handle) {
  /** How a task ends: with a result or a failure; the tag is `trap` after an error that nobody caught. */
  const ended = async (/** @type {Task} */ task) => {
    try {
      return { tag: 'ok', val: result(await handle(task)) };
    } catch (error) {
      const failure = failureOf(error);
      if (failure) return { tag: 'err', val: told(failure, 0) };
      logError(error);
      const { outside } = own();
      if (outside) return { tag: 'err', val: told(outside(String(error)), 0) };
      return { tag: 'trap', val: new Error(String(error)) };
    }
  };
  return {
    async handle(/** @type {Task} */ task) {
      const end = await run(() => ended(task));
      if (end.tag === 'ok') return end.val;
      // What is no failure of the interface makes the attempt trap.
      throw end.val;
    },
    run: () => runAll(ended),
  };
}

/**
 * Makes the component's `batchHandler` from a function. The function gets a list of tasks and returns a list
 * of the same length. It has a result or a failure (returned, not thrown) for each task, at the task's place.
 * If the function throws an error, the error is logged, and each task is run again alone, by the handler.
 * wit/world.wit needs the line `export tqhost:extensions/batch-handler@0.1.0;`.
 * @param {(tasks: Task[]) => unknown[] | Promise<unknown[]>} handle
 */
export function batches(handle) {
  return {
    async handleBatch(/** @type {Task[]} */ tasks) {
      try {
        const values = await run(() => handle(tasks));
        return values.map((value, index) => {
          const failure = failureOf(value);
          return failure ? { tag: 'err', val: told(failure, index) } : { tag: 'ok', val: result(value) };
        });
      } catch (error) {
        logError(error);
        throw new Error(String(error));
      }
    },
  };
}

/** Logs an error, so that the host finds its text for the task's error. */
const logError = (error) => log('error', '', withCauses(error));

/** An error with its stack, and those of the errors that caused it. */
function withCauses(error) {
  const told = [];
  for (let one = error; one !== undefined && told.length < MAX_CAUSES; one = one?.cause) {
    told.push(`${one}\n${withPlaces(one?.stack ?? '')}`.trimEnd());
  }
  return told.join('\ncaused by ');
}

/** The lines of a stack that are in your files and packages: build.js knows where each line is from. */
function withPlaces(stack) {
  const { files = [], at = [] } = JSON.parse(globalThis.tqhostPlaces ?? '{}');
  const placed = stack.replace(/bundle\.js:(\d+):\d+/g, (place, line) => {
    const file = files[at[2 * line - 2]];
    return file ? `${file}:${at[2 * line - 1]}` : place;
  });
  return placed.split('\n').filter((line) => !/@(tqhost(-\w+)?|bundle)\.js:/.test(line)).join('\n');
}

/** The failure for the task at this place of the call, once the host knows whether a service is down. */
function told(failure, index) {
  if (failure.isOutage) reportOutage(index, failure.val.afterMs);
  return failure;
}

const isFailure = (value) => ['reject', 'retry', 'defer'].includes(value?.tag);
/** The failure that the value is, or that an error has as `failure`, like those of the other helpers. */
const failureOf = (value) => [value, value instanceof Error ? value.failure : undefined].find(isFailure);

function result(value) {
  if (value === undefined || value === null) return undefined;
  if (value instanceof Uint8Array) return value;
  return new TextEncoder().encode(typeof value === 'string' ? value : JSON.stringify(value));
}

function shown(value) {
  if (typeof value === 'string') return value;
  if (value instanceof Error) return String(value);
  try {
    // JSON has neither `undefined` nor numbers of 64 bits, which a task has.
    const plain = (_, inner) => (typeof inner === 'bigint' ? Number(inner) : inner);
    return JSON.stringify(value, plain) ?? String(value);
  } catch {
    return String(value);
  }
}
const write = (level) => (...values) => log(level, '', values.map(shown).join(' '));
Object.assign(console, {
  log: write('info'),
  info: write('info'),
  debug: write('debug'),
  warn: write('warn'),
  error: write('error'),
});
