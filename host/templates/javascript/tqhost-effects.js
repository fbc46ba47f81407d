// Effects that commit in the step that completes the task, or never: tasks for other queues (`outbox`),
// values that outlive the task (`state`), and Redis hashes of your own (`records`). Also the results of a
// flow (`flow`) and the number of the delivery (`fence`). They need the lines under `For effects` in
// wit/world.wit.
//
// In: values, as text, bytes, or anything that JSON can represent. Out: values, or an `EffectError`. An
// attempt sees its own writes. One that fails leaves nothing.
//
//   outbox.enqueue({ queue: 'letters', fields: { resume: text(task, 'resume') }, delayMs: 60_000 });
//   state.increment('resumes');

import { fence, select } from 'tqhost:extensions/delivery@0.1.0';
import * as hostRecords from 'tqhost:extensions/records@0.1.0';
import { results } from 'tqhost:handler/flow@0.1.0';
import * as hostOutbox from 'tqhost:handler/outbox@0.1.0';
import * as hostState from 'tqhost:handler/state@0.1.0';
import { millis, reject, retry } from './tqhost.js';

/** @typedef {string | Uint8Array | number | boolean | object} Value text, bytes, or what becomes JSON */
/**
 * @typedef {object} NewTask
 * @property {string} queue the queue's name in the host's configuration, which grants it by `enqueue_to`
 * @property {Record<string, Value>} [fields]
 * @property {number} [delayMs] the time from the commit until the task may run
 * @property {string} [idempotencyKey] a second task with this key is not enqueued
 */
/**
 * @typedef {object} ChildResult
 * @property {string} taskId
 * @property {string} queue
 * @property {Uint8Array | undefined} value
 */
/** @typedef {'unknown-queue' | 'not-permitted' | 'too-large' | 'unavailable'} EffectCode */

/**
 * Why a call was refused; it has no effect then. If nobody catches the error, the task ends with `failure`: a
 * retry if Redis is unavailable, otherwise a rejection.
 */
export class EffectError extends Error {
  constructor(/** @type {EffectCode} */ code, /** @type {string} */ why) {
    super(why);
    this.name = 'EffectError';
    this.code = code;
    this.failure = code === 'unavailable' ? retry(why) : reject(why);
  }
}

/** Tasks that the host enqueues when this one completes. */
export const outbox = {
  /**
   * Returns the id that the task will have.
   * @param {NewTask} task
   * @returns {string}
   */
  enqueue: (task) => attempt(() => hostOutbox.enqueue(newTask(task))),

  /**
   * Enqueues `children`, and `then` once when every child has completed. Returns the id of `then`. If a child
   * becomes a dead letter, `then` does so, too.
   * @param {NewTask[]} children
   * @param {NewTask} then
   * @returns {string}
   */
  fanOut: (children, then) => attempt(() => hostOutbox.fanOut(children.map(newTask), newTask(then))),
};

/** The results of a flow, for the task that runs after its children. */
export const flow = {
  /**
   * In the order of the children; empty for a task that follows no flow.
   * @returns {ChildResult[]}
   */
  results: () => results(),

  /**
   * The results as JSON. If a child gave no JSON, the task is rejected, because no attempt would find any.
   * @returns {any[]}
   */
  json: () => results().map(({ taskId, queue, value }) => {
    try {
      return JSON.parse(textOf(value ?? new Uint8Array()));
    } catch (error) {
      throw reject(`the result of task ${taskId} in queue \`${queue}\` is not JSON: ${error.message}`);
    }
  }),
};

/** Values of the plugin that outlive its tasks. A key has 1 to 512 bytes. */
export const state = {
  /** @returns {Uint8Array | undefined} */
  get: (/** @type {string} */ key) => attempt(() => hostState.get(key)),

  /** @returns {string | undefined} */
  text: (/** @type {string} */ key) => read(key, textOf),

  /** @returns {any} */
  json: (/** @type {string} */ key) => read(key, (value) => JSON.parse(textOf(value))),

  /**
   * Keeps a value until it is deleted, or for `ttlMs` from the commit on.
   * @param {string} key
   * @param {Value} value
   * @param {object} [options]
   * @param {number} [options.ttlMs]
   */
  set: (key, value, { ttlMs = 0 } = {}) =>
    attempt(() => hostState.set(key, bytesOf(value), ttl(ttlMs))),

  delete: (/** @type {string} */ key) => attempt(() => hostState.delete(key)),

  /**
   * Adds to a whole number, which begins at 0. The commit adds to what is stored then, so no count is lost.
   * Returns the value that this attempt sees.
   * @param {string} key
   * @param {number} [delta]
   * @returns {number}
   */
  increment: (key, delta = 1) => Number(attempt(() => hostState.increment(key, wholeOf(delta)))),
};

/** Redis hashes under keys of your own. The plugin's `records` grants patterns of keys. */
export const records = {
  /**
   * Sets fields, and leaves the other fields as they are.
   * @param {string} key
   * @param {Record<string, Value>} fields
   */
  put: (key, fields) => attempt(() => hostRecords.put(key, fieldsOf(fields))),

  /** @returns {Record<string, Uint8Array> | undefined} */
  get(/** @type {string} */ key) {
    const fields = attempt(() => hostRecords.get(key));
    return fields && Object.fromEntries(fields.map(({ name, value }) => [name, value]));
  },

  /**
   * The fields as text.
   * @returns {Record<string, string> | undefined}
   */
  text(/** @type {string} */ key) {
    const fields = attempt(() => hostRecords.get(key));
    return fields && Object.fromEntries(fields.map(({ name, value }) => [name, textOf(value)]));
  },

  delete: (/** @type {string} */ key) => attempt(() => hostRecords.delete(key)),

  /** Deletes the hash after this time, counted from the commit. 0 keeps it until it is deleted. */
  expire: (/** @type {string} */ key, /** @type {number} */ ttlMs) =>
    attempt(() => hostRecords.expire(key, ttl(ttlMs))),
};

/**
 * `fence()` is a number (BigInt) that grows with every delivery of the task. Send it along with effects
 * outside tqhost, and let the service refuse a number lower than one that it has seen for this task.
 *
 * In a batch, `select(index)` says to which task the following calls belong; the first one is 0. Without it
 * they end the call as a trap. Do not `await` anything between `select` and these calls.
 */
export { fence, select };

function newTask({ queue, fields = {}, delayMs = 0, idempotencyKey }) {
  return { queue, fields: fieldsOf(fields), delayMs: millis('delayMs', delayMs), idempotencyKey };
}

/** A value whose time has passed goes at once. The host would keep it for ever with 0. */
const ttl = (ttlMs) => millis('ttlMs', ttlMs < 0 ? 1 : ttlMs);

/** A whole number that the host takes. */
function wholeOf(delta) {
  const whole = Number(delta) % 1 === 0 ? BigInt(delta) : undefined;
  if (whole !== undefined && BigInt.asIntN(64, whole) === whole) return whole;
  throw new TypeError(`\`delta\` is a whole number of 64 bits, not ${delta}`);
}

const fieldsOf = (fields) =>
  Object.entries(fields).map(([name, value]) => ({ name, value: bytesOf(value) }));

function bytesOf(value) {
  if (value instanceof Uint8Array) return value;
  return new TextEncoder().encode(typeof value === 'string' ? value : JSON.stringify(value));
}

const textOf = (value) => new TextDecoder('utf-8', { fatal: true }).decode(value);

/** The task is not at fault if a value is not what the handler expects. */
function read(key, convert) {
  const value = state.get(key);
  try {
    return value && convert(value);
  } catch (error) {
    throw new EffectError('unavailable', `the value of \`${key}\` is not as expected: ${error.message}`);
  }
}

/** Calls a function that may fail with an error of its interface. */
function attempt(call) {
  try {
    return call();
  } catch (thrown) {
    throw thrown?.payload ? new EffectError(thrown.payload.tag, thrown.payload.val) : thrown;
  }
}
