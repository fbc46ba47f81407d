// Files in an object store, in a part of it that is the plugin's own. It needs the line under `For blobs` in
// wit/world.wit.
//
// In: names, and text, bytes, or anything that JSON can represent. Out: a file's URL, its bytes, or a
// `BlobError`. A blob is written at once, not with the end of the task, so name it by the task's id.
//
//   const url = blobs.put(`${task.id}/rows.csv`, 'text/csv', rows);

import * as host from 'tqhost:handler/blobs@0.1.0';
import { reject, retry } from './tqhost.js';

/** @typedef {'invalid-name' | 'not-found' | 'too-large' | 'unavailable'} BlobCode */

/**
 * Why a call was refused. If nobody catches the error, the task ends with `failure`: a retry if the store is
 * unavailable, otherwise a rejection.
 */
export class BlobError extends Error {
  constructor(/** @type {BlobCode} */ code, /** @type {string} */ why) {
    super(why);
    this.name = 'BlobError';
    this.code = code;
    this.failure = code === 'unavailable' ? retry(why) : reject(why);
  }
}

/**
 * Blobs of the plugin. A name has 1 to 512 bytes: letters of ASCII, digits, `._-+=@:,`, and `/` between its
 * parts.
 */
export const blobs = {
  /**
   * Writes a blob as a whole, in the place of an earlier one of this name. Returns its URL.
   * @param {string} name
   * @param {string} contentType '' for bytes of any kind
   * @param {string | Uint8Array | number | boolean | object} data
   * @returns {string}
   */
  put: (name, contentType, data) => attempt(() => host.put(name, contentType, bytesOf(data))),

  /** @returns {Uint8Array} */
  get: (/** @type {string} */ name) => attempt(() => host.get(name)),

  /** @returns {string} */
  text: (/** @type {string} */ name) => read(name, textOf),

  /** @returns {any} */
  json: (/** @type {string} */ name) => read(name, (data) => JSON.parse(textOf(data))),
};

function bytesOf(value) {
  if (value instanceof Uint8Array) return value;
  return new TextEncoder().encode(typeof value === 'string' ? value : JSON.stringify(value));
}

const textOf = (data) => new TextDecoder('utf-8', { fatal: true }).decode(data);

/** A blob that is not what the handler expects is the same in every attempt. */
function read(name, convert) {
  const data = blobs.get(name);
  try {
    return convert(data);
  } catch (error) {
    throw reject(`the blob \`${name}\` is not as expected: ${error.message}`);
  }
}

/** Calls a function that may fail with an error of its interface. */
function attempt(call) {
  try {
    return call();
  } catch (thrown) {
    throw thrown?.payload ? new BlobError(thrown.payload.tag, thrown.payload.val) : thrown;
  }
}
