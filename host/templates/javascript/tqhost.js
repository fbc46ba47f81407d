// Helpers for a handler: they read fields, report failures, convert results and write log lines.
//
// In: a function from a task to a result. Out: the `handler` that the component exports.

import { unavailable as reportOutage } from 'tqhost:extensions/outage@0.1.0';
import { progress, remainingMs } from 'tqhost:handler/context@0.1.0';
import { log } from 'wasi:logging/logging@0.1.0-draft';
import { get } from 'wasi:config/store@0.2.0-rc.1';
import { isServed, own, run, runAll } from './tqhost-loop.js';

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
  if (field === undefined) throw reject(`field \`${name}\` is missing: it has ${names(task)}`);
  return field.value;
}

/** The names of the fields that the task has, at most ten. One of them may be a typing error. */
function names({ fields }) {
  const more = fields.length > 10 ? [`and ${fields.length - 10} more`] : [];
  return [...fields.slice(0, 10).map(({ name }) => name), ...more].join(', ') || 'no fields';
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
/** The places that are told of each. */
const MAX_PLACES = 10;

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
      if (failure) return { tag: 'err', val: told(placed(failure, error), 0) };
      logError(error);
      const { outside } = own();
      if (outside) return { tag: 'err', val: told(outside(withInnermost(error)), 0) };
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

/** An error with its places, and those of the errors that caused it. A unit test has stacks of Node.js. */
function withCauses(error) {
  const places = ({ stack }) =>
    globalThis.tqhostPlaces ? placesOf(stack, MAX_PLACES).join('') : `\n${stack ?? ''}`;
  return causes(error).map((one) => `${one}${places(one ?? {})}`.trimEnd()).join(' caused by ');
}

/** An error, the innermost one of those that caused it, and the innermost place in your own files. */
function withInnermost(error) {
  const inner = causes(error).at(-1);
  const because = inner === error ? '' : `, caused by ${inner}`;
  return `${error}${because}${ownPlace(error)}`;
}

/** The innermost place in your own files, of those that the error has. */
const ownPlace = (error) => placesOf(error?.stack, 1, /node_modules/).join('');

/** A retry that an error of a helper stands for, such as that of a request, with the place in your files. */
function placed(failure, error) {
  if (failure === error || failure.tag !== 'retry') return failure;
  return { ...failure, val: { ...failure.val, message: `${failure.val.message}${ownPlace(error)}` } };
}

/** An error and what caused it, the innermost last. */
function causes(error) {
  const told = [];
  for (let one = error; one !== undefined && told.length < MAX_CAUSES; one = one?.cause) told.push(one);
  return told;
}

/**
 * The first places of a stack in your files and in packages, as build.js knows them, such as
 * ` at handler.js:4 in work`. Calls of the helpers and of the engine say nothing about the handler.
 */
function placesOf(stack, most, others) {
  const { files = [], at = [] } = JSON.parse(globalThis.tqhostPlaces ?? '{}');
  const place = ([, name, line]) => {
    const file = files[at[2 * line - 2]];
    if (!file || /^(tqhost(-\w+)?|build(-\w+)?)\.js$/.test(file) || others?.test(file)) return [];
    return [` at ${file}:${at[2 * line - 1]}${name && ` in ${name.replace(/[/<]+$/, '')}`}`];
  };
  const lines = [...(stack ?? '').matchAll(/^(.*)@bundle\.js:(\d+):\d+$/gm)];
  return lines.flatMap(place).slice(0, most);
}

/** How many rounds a loop makes between two looks at the clock. */
const ROUNDS = 500;
/** The part of an attempt's time in which it is late. */
const LATE = 0.1;

/**
 * For loops, which build-loops.js lets call this. When the deadline is near, it tells the host once where the
 * task computes. The host has these words in the error, if the attempt does not end in time.
 */
globalThis.tqhostLate = () => {
  if (!isServed) return ROUNDS;
  const [notes, left] = [own(), Number(remainingMs())];
  notes.late ??= left * LATE;
  if (left <= notes.late) {
    notes.late = -1;
    const places = placesOf(new Error().stack, 3).join('');
    if (places) log('warn', '', `its deadline is near: it computes${places}`);
  }
  return ROUNDS;
};

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
