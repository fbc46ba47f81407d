// Stands in for a host in unit tests: effects and blobs go to `memory`, log lines to the console, and
// `memory.http` answers requests.
//
// In: a handler and the fields of a task. Out: the handler's result, and what it left in `memory`.
// package.json loads this file before the tests, so that Node.js finds the modules that only the compiler
// knows.
//
//   memory.http = [{ id: 7 }, reply('busy', 429, { 'retry-after': '2' }), 'connection-refused'];
//
// Not here: grants and limits of size. `tqhost try` has all of them.

import * as modules from 'node:module';

const fresh = () => ({
  /** The tasks of the outbox: `{ id, queue, fields, delayMs, idempotencyKey, after }`, fields as text. */
  sent: [],
  /** The children's results, for a task that follows a flow: `{ taskId, queue, value }`, values as bytes. */
  results: [],
  /** Values of the state, as text. */
  state: new Map(),
  /** Records: a Map of fields, as text, for each key. */
  records: new Map(),
  /** Blobs: `{ contentType, data }` for each name, data as bytes. */
  blobs: new Map(),
  /** Configuration that is granted. */
  config: new Map(),
  /**
   * What answers requests: a list of answers, one for each request in turn; a function from a request to an
   * answer; or `network`, which is that of this machine. An answer is a `reply`, or its body (bytes, or else
   * JSON), or the code of an `HttpError`, like 'connection-refused'.
   */
  http: undefined,
  /** Requests: `{ method, url, headers, body, json() }`, names of headers in lower case, bodies as text. */
  requests: [],
  fence: 1n,
  /** What the last call reported with `unavailable`: `{ index, afterMs }` for each task. */
  outages: [],
  /** `{ tag, val }`: the next call of outbox, state, records or blobs fails with this error. */
  refusal: undefined,
});

/** What a handler did, and what it finds. */
export const memory = fresh();

/** @typedef {{ status: number, headers: Record<string, string>, body: any }} Reply */
class Answer {
  constructor(body, status, headers) {
    Object.assign(this, { body, status, headers });
  }
}

/**
 * An answer of a server. Its body is text, bytes, or what becomes JSON.
 * @param {any} [body]
 * @param {Record<string, string>} [headers]
 */
export const reply = (body = '', status = 200, headers = {}) => new Answer(body, status, headers);

const fetchOfNode = globalThis.fetch;

/** Asks the network of this machine, without the host's grants. */
export async function network({ method, url, headers, content }) {
  const body = content.length > 0 ? content : undefined;
  const response = await fetchOfNode(url, { method, headers, body, redirect: 'manual' });
  const own = Object.fromEntries(response.headers);
  // Node.js has decoded the body already.
  delete own['content-encoding'];
  return reply(new Uint8Array(await response.arrayBuffer()), response.status, own);
}

/** In place of the exchange of tqhost-http.js. */
async function answered({ method, url, headers, content }) {
  const body = text(content);
  const request = { method, url, headers: Object.fromEntries(headers), body, json: () => JSON.parse(body) };
  memory.requests.push(request);
  const { http } = memory;
  const answer = Array.isArray(http) ? http.shift() : await http?.({ ...request, content });
  if (answer === undefined) {
    const kinds = 'it is a list, a function or `network`';
    throw new Error(`${method} ${url}: \`memory.http\` has no answer; ${kinds}`);
  }
  if (typeof answer === 'string') return { error: answer };
  const given = answer instanceof Answer ? answer : reply(answer);
  const isPlain = typeof given.body === 'string' || given.body instanceof Uint8Array;
  const type = isPlain ? {} : { 'content-type': 'application/json' };
  return {
    status: given.status,
    headers: new Headers({ ...type, ...given.headers }),
    body: bytes(isPlain ? given.body : JSON.stringify(given.body)),
  };
}

/** Empties the memory. Call it before each test. */
export const reset = () => Object.assign(memory, fresh());

/**
 * Runs one attempt of a handler, at a task with these fields. Returns its result as text. If the attempt
 * fails, its effects are dropped, its blobs stay, and the failure is thrown: `{ tag, val }`.
 * @param {ReturnType<import('./tqhost.js').handles>} handler
 * @param {Record<string, string | Uint8Array>} fields
 * @returns {Promise<string | undefined>}
 */
export async function run(handler, fields, attempt = 1) {
  await web;
  const { sent, state, records } = memory;
  const before = structuredClone({ sent, state, records });
  memory.outages = [];
  try {
    const result = await handler.handle({
      id: '1-0',
      queue: 'test',
      fields: fieldsOf(fields),
      attempt,
      maxAttempts: 3,
      enqueuedAtMs: 1_767_225_600_000n,
      deadlineMs: 1_767_225_660_000n,
      traceparent: undefined,
    });
    return result && text(result);
  } catch (failure) {
    Object.assign(memory, before);
    throw failure;
  }
}

const text = (value) => new TextDecoder().decode(value);
const bytes = (value) => (typeof value === 'string' ? new TextEncoder().encode(value) : value);
const fieldsOf = (fields) => Object.entries(fields).map(([name, value]) => ({ name, value: bytes(value) }));
const textsOf = (fields) => fields.map(({ name, value }) => [name, text(value)]);

/** An error of an interface, as the compiler's code throws it. */
function refuse(tag, val) {
  throw Object.assign(new Error(val), { payload: { tag, val } });
}

function begin(key) {
  const { refusal } = memory;
  memory.refusal = undefined;
  if (refusal) refuse(refusal.tag, refusal.val);
  if (key === undefined) return;
  const size = bytes(key).length;
  if (size < 1 || size > 512) refuse('too-large', `a key has 1 to 512 bytes, this one has ${size}`);
}

function send({ fields, delayMs, ...task }, after = []) {
  const id = `new-${memory.sent.length + 1}`;
  const shown = { fields: Object.fromEntries(textsOf(fields)), delayMs: Number(delayMs), after };
  memory.sent.push({ id, ...task, ...shown });
  return id;
}

/** Begins a call of blobs. */
function beginBlob(name) {
  begin();
  const isPart = (part) => /^[A-Za-z0-9._+=@:,-]{1,200}$/.test(part) && part !== '.' && part !== '..';
  if (name.length > 512 || !name.split('/').every(isPart)) {
    refuse('invalid-name', `"${name}" is not the name of a blob`);
  }
}

/** The functions of each interface. */
export const interfaces = {
  'tqhost:handler/context': { progress() {}, remainingMs: () => 60_000n },
  'wasi:logging/logging': { log: (level, _, message) => process.stderr.write(`${level} ${message}\n`) },
  'wasi:config/store': { get: (key) => memory.config.get(key) },
  'wasi:http/outgoing-handler': { handle: { answer: answered } },
  'wasi:http/types': {
    Fields: undefined,
    OutgoingBody: undefined,
    OutgoingRequest: undefined,
    httpErrorCode: undefined,
  },
  'tqhost:extensions/delivery': { fence: () => memory.fence, select() {} },
  'tqhost:extensions/tasks': { enter() {}, fail() {}, finish() {}, next() {}, subscribe() {} },
  'wasi:clocks/monotonic-clock': { subscribeDuration: undefined },
  'wasi:io/poll': { poll: undefined },
  'tqhost:extensions/outage': {
    unavailable: (index, afterMs) =>
      void memory.outages.push({ index, afterMs: afterMs === undefined ? undefined : Number(afterMs) }),
  },
  'tqhost:handler/flow': { results: () => memory.results },
  'tqhost:handler/outbox': {
    enqueue: (task) => (begin(), send(task)),
    fanOut: (children, then) => (begin(), send(then, children.map((child) => send(child)))),
  },
  'tqhost:handler/state': {
    get: (key) => (begin(key), memory.state.has(key) ? bytes(memory.state.get(key)) : undefined),
    set: (key, value) => (begin(key), void memory.state.set(key, text(value))),
    delete: (key) => (begin(key), void memory.state.delete(key)),
    increment(key, delta) {
      begin(key);
      const before = memory.state.get(key) ?? '0';
      if (!/^-?[0-9]+$/.test(before)) refuse('unavailable', `the value of \`${key}\` is not a whole number`);
      const sum = BigInt(before) + delta;
      if (String(sum).replace('-', '').length > 18) {
        refuse('too-large', `the counter \`${key}\` would have more than 18 digits`);
      }
      memory.state.set(key, String(sum));
      return sum;
    },
  },
  'tqhost:handler/blobs': {
    put(name, contentType, data) {
      beginBlob(name);
      if (contentType && !contentType.includes('/')) refuse('invalid-name', 'the content type has no `/`');
      memory.blobs.set(name, { contentType: contentType || 'application/octet-stream', data: data.slice() });
      return `memory:///${name}`;
    },
    get(name) {
      beginBlob(name);
      return memory.blobs.get(name)?.data ?? refuse('not-found', `there is no blob \`${name}\``);
    },
  },
  'tqhost:extensions/records': {
    put(key, fields) {
      begin(key);
      memory.records.set(key, new Map([...(memory.records.get(key) ?? []), ...textsOf(fields)]));
    },
    get(key) {
      begin(key);
      return memory.records.has(key) ? fieldsOf(Object.fromEntries(memory.records.get(key))) : undefined;
    },
    delete: (key) => (begin(key), void memory.records.delete(key)),
    expire: (key) => begin(key),
  },
};

const here = import.meta.url.split('?')[0];

/** Finds the module of an interface: one that exports the functions above. */
function resolve(specifier, context, next) {
  const name = specifier.split('@')[0];
  if (!Object.hasOwn(interfaces, name)) return next(specifier, context);
  const own = Object.keys(interfaces[name])
    .map((each) => `const $${each} = all.${each}; export { $${each} as ${each} };`);
  const from = `import { interfaces } from '${here}'; const all = interfaces['${name}'];`;
  return { url: `data:text/javascript,${encodeURIComponent(from + own.join(''))}`, shortCircuit: true };
}

export { resolve };
const isHere = import.meta.url === here;
// Older versions of Node.js have `register` only, which loads this file in a thread of its own.
if (modules.registerHooks) modules.registerHooks({ resolve });
else if (isHere) modules.register(`${here}?hooks`);
// Its `fetch` is the global one, as in a component. It imports this file, so nothing here can wait for it.
const web = isHere ? import('./tqhost-http.js') : undefined;
if (isHere) {
  const own = process.env;
  process.env = new Proxy(own, { get: (_, key) => memory.config.get(key) ?? own[key] });
}
