// What a handler needs beside its own function: fields, failures, results, log lines.
//
// In: a function from a task to a result. Out: the `handler` that the component exports.

import { progress, remainingMs } from 'tqhost:handler/context@0.1.0';
import { log } from 'wasi:logging/logging@0.1.0-draft';
import { get } from 'wasi:config/store@0.2.0-rc.1';

/** `throw reject('why')`: it will never work. The task is dead-lettered at once. */
export const reject = (message) => ({ tag: 'reject', val: message });

/** `throw retry('why')`: it may work later. The queue's backoff says when, unless `afterMs` does. */
export const retry = (message, afterMs) => ({
  tag: 'retry',
  val: { message, afterMs: afterMs === undefined ? undefined : BigInt(afterMs) },
});

/** `throw defer('why', 60_000)`: it is too early, and nobody's fault. No attempt is used. */
export const defer = (message, afterMs) => ({ tag: 'defer', val: { message, afterMs: BigInt(afterMs) } });

/** A field's bytes. One that is missing makes the task a dead letter: no attempt would find it. */
export function bytes(task, name) {
  const field = task.fields.find((field) => field.name === name);
  if (field === undefined) throw reject(`field \`${name}\` is missing`);
  return field.value;
}

/** A field's text. */
export function text(task, name) {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes(task, name));
  } catch (error) {
    throw error.tag ? error : reject(`field \`${name}\` is not UTF-8 text`);
  }
}

/** A field that holds JSON. */
export function json(task, name) {
  const source = text(task, name);
  try {
    return JSON.parse(source);
  } catch (error) {
    throw reject(`field \`${name}\` is not JSON: ${error.message}`);
  }
}

/** Whether there is such a field. */
export const has = (task, name) => task.fields.some((field) => field.name === name);

/** What the host's configuration grants this plugin under this key; undefined if nothing. */
export const config = (key) => get(key);

export { progress, remainingMs };

/** Set once a request of this attempt has failed because of what it asked. */
let outside;

/**
 * For tqhost-http.js: the other side has failed a request of this attempt, and may have said how long to wait. An exception that follows may be its doing, so it must not
 * count against this version of the handler.
 */
export function failedOutside(afterMs) {
  outside = { afterMs };
}

/**
 * Makes the component's handler of a function. It may return nothing, text, bytes, or anything that JSON can hold, or a promise of it. An error
 * that it throws and that is not one of the failures above is logged with its stack, and ends the attempt as a trap: the task is tried again, and the host takes
 * it as a sign that this version is bad. After a request that failed outside it is a retry instead.
 */
export function handles(handle) {
  return {
    async handle(task) {
      outside = undefined;
      try {
        return result(await handle(task));
      } catch (error) {
        const failure = failureOf(error);
        if (failure) throw failure;
        const trap = trapOf(error);
        throw outside ? retry(String(error), outside.afterMs) : trap;
      }
    },
  };
}

/**
 * Makes the component's `batchHandler` of a function from a list of tasks to a list that is as long: for each task, at its place, what a handler may return, or a failure
 * (returned, not thrown). An error that it throws is logged, and each task is run again alone, by the handler. In wit/world.wit it needs the line
 * `export tqhost:handler/batch-handler@0.1.0;`.
 */
export function batches(handle) {
  return {
    async handleBatch(tasks) {
      try {
        const values = await handle(tasks);
        return values.map((value) => {
          const failure = failureOf(value);
          return failure ? { tag: 'err', val: failure } : { tag: 'ok', val: result(value) };
        });
      } catch (error) {
        throw trapOf(error);
      }
    },
  };
}

/** Logs an error, whose text the host then finds for the task's own error. What it gives is no failure of the interface, so the attempt traps when it is thrown. */
function trapOf(error) {
  log('error', '', `${error}\n${error?.stack ?? ''}`);
  return new Error(String(error));
}

const isFailure = (value) => ['reject', 'retry', 'defer'].includes(value?.tag);
/** What is a failure, or knows one, as the errors of tqhost-http.js do. */
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
    // JSON has no numbers of 64 bits, and a task has some; nor has it undefined.
    return JSON.stringify(value, (_, inner) => (typeof inner === 'bigint' ? Number(inner) : inner)) ?? String(value);
  } catch {
    return String(value);
  }
}
const write = (level) => (...values) => log(level, '', values.map(shown).join(' '));
Object.assign(console, { log: write('info'), info: write('info'), debug: write('debug'), warn: write('warn'), error: write('error') });
