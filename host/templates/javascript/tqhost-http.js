// HTTP requests. They need the line `import wasi:http/outgoing-handler@0.2.4;` in wit/world.wit.
//
// In: a URL and what to send. Out: a promise of the standard `Response` with its whole body, whatever its
// status; or an `HttpError`. The host's configuration grants the targets (`allowed_hosts`), and bounds times
// and sizes (`http`). Not here: redirects, which are responses like any other.
//
// After a failed request, or a response with status 429 or 5xx, an exception that the handler does not catch
// is a retry instead of a trap. It is `unavailable` after 429, 503 and a timeout, and without any answer.
//
// It is the global `fetch`, too, so packages find it: build.js adds this file if wit/world.wit has the line.
//
//   const response = await fetch('https://api.example.com/v1/orders', { method: 'POST', body: order });
//   if (response.status === 429) throw unavailable('the server is busy', retryAfterMs(response));

import { handle } from 'wasi:http/outgoing-handler@0.2.4';
import { Fields, OutgoingBody, OutgoingRequest, httpErrorCode } from 'wasi:http/types@0.2.4';
import { drop, reading, ready } from './tqhost-loop.js';
import { failedOutside, reject, remainingMs, retry, unavailable } from './tqhost.js';

/**
 * Why there is no response. The text names the host of the URL, but no path, header or body. `code` is one of
 * wasi:http's `error-code` (`HTTP-request-denied`, `connection-refused`, …) or `header-error` (`forbidden`,
 * `invalid-syntax`). If nobody catches the error, the task ends with `failure`: a retry, `unavailable` where
 * the server does not answer at all or in time, or a rejection where the same error would happen again.
 */
export class HttpError extends Error {
  constructor(code, why, { isAnswered = false } = {}) {
    super(why);
    this.name = 'HttpError';
    this.code = code;
    const isDown = unreachable.includes(code) || (cut.includes(code) && !isAnswered);
    const later = isDown ? unavailable : retry;
    this.failure = theSameAgain.includes(code) ? reject(why) : later(why);
    if (this.failure.tag === 'retry' && !refused.includes(code)) failedOutside(later);
  }
}

/**
 * `fetch` of the web, with `timeoutMs` for the whole response as well as `signal`. By default, and at most, a
 * request may take a little less than the rest of the attempt: a tenth of it less, up to half a second. So
 * the handler can still tell that the server did not answer. Other requests and timers run while it waits.
 * @param {string | URL | Request} input
 * @param {RequestInit & { timeoutMs?: number }} [init]
 */
export function fetch(input, init = {}) {
  // What fails later has no stack of your files.
  const { stack } = new Error();
  return fetched(input, init).catch((error) => {
    if (error instanceof HttpError) error.stack = stack;
    throw error;
  });
}

async function fetched(input, init) {
  const whole = requestOf(input, init);
  whole.content ??= await written(input, init, whole.headers);
  const { signal = input.signal, timeoutMs = Infinity } = init;
  if (signal?.aborted) throw signal.reason;
  // In a unit test the memory answers.
  const { status, headers, body, error } = await (handle.answer ?? exchange)(whole, signal, timeoutMs);
  if (error) throw errorOf({ tag: error }, targetOf(whole.url));
  const coding = body.length > 0 ? headers.get('content-encoding')?.trim().toLowerCase() : undefined;
  const isCoded = ['gzip', 'x-gzip', 'deflate'].includes(coding);
  const content = isCoded ? await decoded(coding, body, whole) : body;
  const later = status === 429 || status === 503 ? unavailable : retry;
  if (status === 429 || status >= 500) failedOutside(later, retryAfterMs({ headers }));
  return answerOf(status, headers, content, whole.url);
}

/** The parts of a request, with its body as bytes, if it is a simple one. */
function requestOf(input, init) {
  const from = input instanceof Request ? input : undefined;
  const headers = new Headers(init.headers ?? from?.headers);
  const method = (init.method ?? from?.method ?? 'GET').toUpperCase();
  const content = from && init.body === undefined ? undefined : bytesOf(init.body);
  return { url: from ? from.url : String(input), method, headers, content };
}

/** The bytes of other bodies: the standard knows how to write and to call forms, blobs and streams. */
async function written(input, { body }, headers) {
  const message = body === undefined ? input : new Response(body);
  const bytes = message.arrayBuffer();
  // A stream may wait for something else.
  const content = new Uint8Array(await (body instanceof ReadableStream ? bytes : reading(bytes)));
  const type = message.headers.get('content-type')?.replace(/boundary=([^";]+)/, 'boundary="$1"');
  if (type && !headers.has('content-type')) headers.set('content-type', type);
  return content;
}

/** Sends the request, and waits for the whole response. Each `await` costs time, so there are few. */
async function exchange({ url, method, headers, content }, signal, timeoutMs) {
  const target = targetOf(url);
  const message = messageOf(target, method, headers, content);
  const rest = Number(remainingMs());
  const mostMs = Math.max(0, Math.round(Math.min(timeoutMs, rest - Math.min(rest / 10, marginMs))));
  const end = performance.now() + mostMs;
  const late = () => errorOf({ tag: 'HTTP-response-timeout' }, target);
  const wait = async (pollable) => {
    const left = end - performance.now();
    if (left <= 0 || !(await ready(pollable, left, signal))) throw late();
  };
  // The host bounds the number of handles of an attempt, so they are given back at once, the last one first.
  const held = [];
  const hold = (resource) => (held.push(resource), resource);
  try {
    const out = content.length > 0 ? message.body() : undefined;
    const sent = hold(attempt(() => handle(message, undefined), (code) => errorOf(code, target)));
    if (out !== undefined) await write(out, content, wait);
    await wait(hold(sent.subscribe()));
    // The response is ready, and nothing has taken it yet.
    const answer = sent.get().val;
    if (answer.tag === 'err') throw errorOf(answer.val, target);
    const response = hold(answer.val);
    const fields = headersOf(response);
    const stream = hold(hold(response.consume()).stream());
    const more = hold(stream.subscribe());
    const pieces = [];
    for (let piece; (piece = next(stream, target)) !== undefined; ) {
      if (piece.length === 0) await wait(more);
      // The time counts whatever is there: a server could send without end.
      else if (performance.now() >= end) throw late();
      else pieces.push(piece);
    }
    const body = new Uint8Array(pieces.reduce((size, piece) => size + piece.length, 0));
    pieces.reduce((at, piece) => (body.set(piece, at), at + piece.length), 0);
    return { status: response.status(), headers: fields, body };
  } finally {
    while (held.length > 0) drop(held.pop());
  }
}

/** The body without its content coding. */
async function decoded(coding, body, { url }) {
  // Some servers send deflate without its head.
  const isBare = coding === 'deflate' && (body[0] & 15) !== 8;
  const kind = isBare ? 'deflate-raw' : coding.replace('x-', '');
  try {
    const stream = new Blob([body]).stream().pipeThrough(new DecompressionStream(kind));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  } catch {
    throw errorOf({ tag: 'HTTP-response-content-coding' }, targetOf(url));
  }
}

/**
 * How long the server asks to wait (`Retry-After`), for `retry`. Without `Retry-After` it is undefined, and
 * the queue's backoff decides.
 */
export function retryAfterMs(response) {
  const value = response.headers.get('retry-after')?.trim() ?? '';
  const [, whole, fraction] = /^([0-9]+)(?:\.([0-9]+))?$/.exec(value) ?? [];
  if (whole !== undefined) {
    // A fraction is rounded up. What is longer than any time is the longest one.
    const seconds = Number(whole) + (/[1-9]/.test(fraction ?? '') ? 1 : 0);
    return Math.min(seconds * 1000, Number.MAX_SAFE_INTEGER);
  }
  // A date is compared with the server's own clock, if the response tells it.
  const now = timeOf(response.headers.get('date')?.trim() ?? '');
  const wait = timeOf(value) - (Number.isNaN(now) ? Date.now() : now);
  return Number.isNaN(wait) ? undefined : Math.max(0, wait);
}

/** The time of an HTTP date, or NaN. `Date.parse` alone makes a date of `-1`, too. */
function timeOf(date) {
  // Some servers write the offset of GMT in place of its name.
  return /^[a-z]/i.test(date) ? Date.parse(date.replace(/(\+0000|UTC)$/, 'GMT')) : NaN;
}

/** The most time that is left for the handler after a request. */
const marginMs = 500;

const theSameAgain = [
  'HTTP-request-URI-invalid',
  'HTTP-request-method-invalid',
  'HTTP-request-body-size',
  'HTTP-response-body-size',
  'forbidden',
  'invalid-syntax',
];

/** With these codes the host refused the request, and sent nothing. */
const refused = ['HTTP-request-denied', 'destination-IP-prohibited'];

/** With these codes no server answers, whatever the request asks for. */
const unreachable = [
  'DNS-error',
  'DNS-timeout',
  'destination-not-found',
  'destination-unavailable',
  'destination-IP-unroutable',
  'TLS-protocol-error',
  'TLS-certificate-error',
  'TLS-alert-received',
  'configuration-error',
  'connection-refused',
  'connection-timeout',
  'connection-read-timeout',
  'connection-write-timeout',
  'HTTP-response-timeout',
];

/** With these codes the connection ended before the answer or within it. */
const cut = ['connection-terminated', 'HTTP-response-incomplete'];

const why = {
  'HTTP-request-denied':
    "the request to {host} is refused: the plugin's allowed_hosts do not allow it, or max_requests were made",
  'destination-IP-prohibited': 'the request to {host} is refused: its address is not public',
  'HTTP-request-URI-invalid': 'the url has characters that it cannot have',
  'HTTP-request-body-size': "the request is larger than the plugin's max_request_body",
  'HTTP-response-body-size': "the response is larger than the plugin's max_response_body",
  'HTTP-response-timeout': '{host} did not answer in time',
  'connection-read-timeout': '{host} did not answer in time',
  'connection-write-timeout': '{host} did not answer in time',
  'connection-timeout': '{host} could not be reached in time',
  'connection-refused': '{host} refuses connections',
  'connection-terminated': '{host} ended the connection too early',
  'HTTP-response-incomplete': '{host} ended the connection too early',
  'DNS-error': '{host} could not be looked up',
  'DNS-timeout': '{host} could not be looked up',
  'TLS-certificate-error': 'the certificate of {host} is not trusted',
};

function errorOf({ tag: code }, { host }, options) {
  const text = why[code] ?? `the request to {host} failed: ${code}`;
  return new HttpError(code, text.replace('{host}', host), options);
}

/** The parts of a URL, which wasi:http takes one by one. */
function targetOf(url) {
  const [, scheme, host, path] = /^(https?):\/\/([^/?#]*)([^#]*)/i.exec(url) ?? [];
  const invalid = (message) => new HttpError('HTTP-request-URI-invalid', message);
  if (scheme === undefined) throw invalid('the url does not begin with http:// or https://');
  if (host === '' || host.includes('@')) throw invalid('the url has no host, or a user name in it');
  return { tls: scheme.toLowerCase() === 'https', host, path: path.startsWith('/') ? path : `/${path}` };
}

/** The bytes of a simple body; undefined for one that the standard has to write. */
function bytesOf(body) {
  if (body === null || body === undefined) return new Uint8Array();
  if (body instanceof ArrayBuffer) return new Uint8Array(body);
  if (ArrayBuffer.isView(body)) return new Uint8Array(body.buffer, body.byteOffset, body.byteLength);
  const isPlain = typeof body !== 'object' || Object.hasOwn(body, 'toString');
  return isPlain ? new TextEncoder().encode(String(body)) : undefined;
}

const standardMethods = ['GET', 'HEAD', 'POST', 'PUT', 'DELETE', 'CONNECT', 'OPTIONS', 'TRACE', 'PATCH'];

function messageOf({ tls, host, path }, method, headers, content) {
  const fields = new Fields();
  if (content.length > 0 || ['POST', 'PUT', 'PATCH'].includes(method)) {
    headers.set('content-length', String(content.length));
  }
  for (const [name, value] of headers) {
    // The value may be a secret.
    attempt(
      () => fields.append(name, new TextEncoder().encode(value)),
      ({ tag }) => new HttpError(tag, `the header \`${name}\` cannot be sent`),
    );
  }
  const message = new OutgoingRequest(fields);
  const isStandard = standardMethods.includes(method);
  const asMethod = isStandard ? { tag: method.toLowerCase() } : { tag: 'other', val: method };
  attempt(
    () => message.setMethod(asMethod),
    () => new HttpError('HTTP-request-method-invalid', `there is no method \`${method}\``),
  );
  attempt(() => {
    message.setScheme({ tag: tls ? 'HTTPS' : 'HTTP' });
    message.setAuthority(host);
    message.setPathWithQuery(path);
  }, () => new HttpError('HTTP-request-URI-invalid', why['HTTP-request-URI-invalid']));
  return message;
}

async function write(out, content, wait) {
  const stream = out.write();
  let more;
  try {
    try {
      for (let at = 0; at < content.length; ) {
        const room = Number(stream.checkWrite());
        if (room === 0) {
          more ??= stream.subscribe();
          await wait(more);
        } else {
          stream.write(content.subarray(at, at + room));
          at += room;
        }
      }
    } finally {
      if (more) drop(more);
      drop(stream);
    }
    OutgoingBody.finish(out, undefined);
  } catch (error) {
    // If the server does not take the whole body, its response, or the error in its place, says why.
    if (!error?.payload) throw error;
  }
}

function headersOf(response) {
  const headers = new Headers();
  const fields = response.headers();
  for (const [name, value] of fields.entries()) {
    headers.append(name, String.fromCharCode.apply(undefined, value));
  }
  drop(fields);
  return headers;
}

/** The standard `Response` refuses statuses that are not in the standard, and a body with some that are. */
function answerOf(status, headers, whole, url) {
  const body = whole.length === 0 || [204, 205, 304].includes(status) ? null : whole;
  const isStandard = status >= 200 && status <= 599;
  const answer = new Response(body, isStandard ? { status, headers } : { headers });
  const more = isStandard ? {} : { status: { value: status }, ok: { value: false } };
  return Object.defineProperties(answer, { url: { value: url }, ...more });
}

/** The next piece of the body: undefined at its end, and an empty one if it has not arrived yet. */
function next(stream, target) {
  try {
    return stream.read(65_536n);
  } catch ({ payload }) {
    if (payload.tag === 'closed') return undefined;
    const code = httpErrorCode(payload.val) ?? { tag: 'HTTP-response-incomplete' };
    drop(payload.val);
    throw errorOf(code, target, { isAnswered: true });
  }
}

/** Calls a function that may fail with an error of the interface. */
function attempt(call, error) {
  try {
    return call();
  } catch (thrown) {
    throw 'payload' in thrown ? error(thrown.payload) : thrown;
  }
}

globalThis.fetch = fetch;
