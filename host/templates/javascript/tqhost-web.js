// What packages look for in every engine: `process.env`, `AbortSignal.timeout`, and errors in place of
// answers for another language or time zone, because the engine has no `Intl`.
//
// In: nothing; build.js puts this file before the handler. Out: changed globals.
//
// Not here: timers (`tqhost-loop.js`), `fetch` (`tqhost-http.js`), `Buffer`, which is the package of this
// name (`build.js`).

// It comes first, because it asks whether there is a `process`.
import { isServed } from './tqhost-loop.js';
import { get } from 'wasi:config/store@0.2.0-rc.1';

/** The plugin's `config`, as environment. At the top of a file, without a host, it is empty. */
const env = new Proxy({}, {
  get: (_, key) => (typeof key === 'string' && isServed ? get(key) : undefined),
  has: (_, key) => typeof key === 'string' && env[key] !== undefined,
});
const nothing = () => {};
const process = {
  env,
  argv: [],
  platform: 'wasi',
  version: '',
  versions: {},
  cwd: () => '/',
  nextTick: (run, ...args) => queueMicrotask(() => run(...args)),
  on: nothing,
  once: nothing,
  off: nothing,
  emitWarning: (warning) => console.warn(warning),
};

// build-errors.js runs the bundle in Node.js, which has all of this.
if (globalThis.process === undefined) {
  globalThis.process = process;
  // The engine's own ends the attempt without a word.
  AbortSignal.prototype.throwIfAborted = function () {
    if (this.aborted) throw this.reason;
  };
  AbortSignal.timeout = (ms) => {
    const control = new AbortController();
    setTimeout(() => control.abort(new DOMException('the time is over', 'TimeoutError')), ms);
    return control.signal;
  };
  // The stream of the engine's own never ends in the loop of tqhost-loop.js.
  Blob.prototype.stream = function () {
    const start = async (control) => {
      control.enqueue(new Uint8Array(await this.arrayBuffer()));
      control.close();
    };
    return new ReadableStream({ start });
  };
}

/** Without arguments the engine's own answers are right. */
function refuse(kind, name, least) {
  const own = kind.prototype[name];
  kind.prototype[name] = function (...args) {
    if (args.slice(least).some((each) => each !== undefined)) {
      const why = 'as the engine has no `Intl`';
      throw new TypeError(`\`${name}\` knows no languages and time zones here, ${why}`);
    }
    return own.apply(this, args);
  };
}
if (typeof Intl === 'undefined') {
  for (const name of ['toLocaleString', 'toLocaleDateString', 'toLocaleTimeString']) refuse(Date, name, 0);
  refuse(Number, 'toLocaleString', 0);
  refuse(BigInt, 'toLocaleString', 0);
  refuse(String, 'localeCompare', 1);
}
