/**
 * A producer's client for tqhost, on node-redis or ioredis.
 *
 * In: a client of Redis, and the name of a queue's stream. Out: tasks by plain XADD, their statuses, waits
 * that end, cancels through the HTTP API, and webhooks of `http-call` that are checked. Not here: handlers,
 * and what only hosts write.
 */
import { createHmac, timingSafeEqual } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

const MAX_FIELDS = 1000;
const MAX_TASK_BYTES = 16 << 20;
const MAX_ID_BYTES = 256;
const MAX_DELAY_MS = 365 * 24 * 3600 * 1000;
const RESERVED = ["tq-", "end."];
/** Redis does not announce changes of a status, so a wait looks a few times a second. */
const PERIOD_MS = 250;
const HTTP_TIMEOUT_MS = 30_000;
/** A trace context of W3C: version 00, or a later one, which appends to it, in 256 bytes at most. */
const TRACE_IDS = "(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}";
const TRACE = new RegExp(`^(00-${TRACE_IDS}|(?!00|ff)[0-9a-f]{2}-${TRACE_IDS}-[!-@[-~]{0,200})$`);

/** Sends a command, and returns its reply with strings as buffers. */
export type Send = (command: (string | Buffer)[]) => Promise<unknown>;

/** A client of node-redis (the package `redis`), 4 or newer. */
export function nodeRedis(client: {
  sendCommand(command: (string | Buffer)[], options?: object): Promise<unknown>;
  withTypeMapping?(mapping: object): { sendCommand(command: (string | Buffer)[]): Promise<unknown> };
}): Send {
  // Version 5 and newer map types, by the first byte of a reply: here that of strings, `$`.
  if (client.withTypeMapping) {
    const buffers = client.withTypeMapping({ 36: Buffer });
    return (command) => buffers.sendCommand(command);
  }
  return (command) => client.sendCommand(command, { returnBuffers: true });
}

/** A client of ioredis, 5 or newer, alone or of a cluster, without a `keyPrefix`. */
export function ioRedis(client: {
  callBuffer(command: string, ...args: (string | Buffer)[]): Promise<unknown>;
}): Send {
  return ([name, ...args]) => client.callBuffer(String(name), ...args);
}

export type Fields = Record<string, string | Uint8Array> | Iterable<readonly [string, string | Uint8Array]>;

export interface Options {
  /** The task's id, at most 256 bytes; without it, that of its entry. */
  id?: string | undefined;
  key?: string | undefined;
  delayMs?: number | undefined;
  traceparent?: string | undefined;
}

/** The fields of docs/status.md. UNKNOWN: the id is not known, or not yet, or not any more. */
export interface Status {
  id: string;
  status: "PENDING" | "PROCESSING" | "COMPLETED" | "FAILED" | "CANCELLED" | "UNKNOWN";
  attempt?: number;
  enqueued_at?: number;
  due_at?: number;
  started_at?: number;
  finished_at?: number;
  progress?: number;
  note?: string;
  error?: string;
  duplicate_of?: string;
  result?: Buffer;
}

const NUMBERS = ["attempt", "enqueued_at", "due_at", "started_at", "finished_at", "progress"];
const NAMES = ["status", "result", "note", "error", "duplicate_of", ...NUMBERS];

/** The base of all errors of this module. Errors of Redis come as its client throws them. */
export class TqhostError extends Error {
  constructor(message: string) {
    super(message);
    this.name = new.target.name;
  }
}
/** No host would take such a task. Nothing was written. */
export class NotATask extends TqhostError {}
/** As many tasks as `maxBacklog` wait or run. Nothing was written. */
export class QueueFull extends TqhostError {}
/** The task has not ended within the time. It goes on; `status` is the last one that was seen. */
export class NotEnded extends TqhostError {
  constructor(readonly status: Status, timeoutMs: number) {
    super(`not ended after ${timeoutMs} ms: ${status.id} is ${status.status}`);
  }
}
/** The HTTP API refuses; `code` is one of docs/api.md, such as `unknown-task` or `task-ended`. */
export class ApiRefused extends TqhostError {
  constructor(readonly httpStatus: number, readonly code: string, detail: string) {
    super(`${code} (${httpStatus}): ${detail}`);
  }
}
/** The request is not one of `http-call`: answer 401. */
export class BadWebhook extends TqhostError {}

/** The names and values of the task's entry, by the rules of `tqhost enqueue`. */
function entryOf(fields: Fields, { id, key, delayMs = 0, traceparent }: Options): (string | Buffer)[] {
  const pairs = Symbol.iterator in fields ? fields : Object.entries(fields);
  const entry: [string, Buffer][] = [];
  for (const [name, value] of pairs as Iterable<readonly [string, string | Uint8Array]>) {
    if (typeof value !== "string" && !(value instanceof Uint8Array)) {
      throw new TypeError(`field \`${name}\`: a value is a string or a Uint8Array`);
    }
    entry.push([name, typeof value === "string" ? Buffer.from(value) : Buffer.from(value)]);
  }
  if (entry.length === 0) throw new NotATask("a task needs at least one field");
  if (entry.length > MAX_FIELDS) {
    throw new NotATask(`a task has at most ${MAX_FIELDS} fields, this one has ${entry.length}`);
  }
  const size = entry.reduce((sum, [name, value]) => sum + Buffer.byteLength(name) + value.length, 0);
  if (size > MAX_TASK_BYTES) {
    const limit = `${MAX_TASK_BYTES} bytes (16MiB)`;
    throw new NotATask(`a task has at most ${limit}, this one has ${size}: keep large data in blobs`);
  }
  for (const [name] of entry) {
    const prefix = RESERVED.find((prefix) => name.startsWith(prefix));
    if (prefix) {
      throw new NotATask(`field \`${name}\`: names that start with \`${prefix}\` are reserved for tqhost`);
    }
  }
  if (!(delayMs <= MAX_DELAY_MS)) throw new NotATask("a delay is 365d at most");
  if (key === "") throw new NotATask("an idempotency key has at least one byte, this one is empty");
  const idBytes = id === undefined ? 1 : Buffer.byteLength(id);
  if (idBytes < 1 || idBytes > MAX_ID_BYTES) {
    throw new NotATask(`a task's id has 1 to ${MAX_ID_BYTES} bytes, this one has ${idBytes}`);
  }
  if (traceparent !== undefined && !TRACE.test(traceparent)) {
    const form = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    throw new NotATask(`not a W3C trace context: write it like ${form}`);
  }
  const own: [string, string | undefined][] = [
    ["tq-id", id],
    ["tq-key", key],
    // A part of a millisecond counts as a whole one.
    ["tq-delay-ms", delayMs > 0 ? String(Math.ceil(delayMs)) : undefined],
  ];
  // As with `tqhost enqueue`: the task's own trace context stays, and a full task gets none.
  if (entry.length < MAX_FIELDS && entry.every(([name]) => name !== "traceparent")) {
    own.unshift(["traceparent", traceparent]);
  }
  return [...entry.flat(), ...own.flatMap(([name, value]) => (value === undefined ? [] : [name, value]))];
}

export class Queue {
  private readonly base: string;

  /** `maxBacklog` is that of the queue's configuration; without it, no task is refused. */
  constructor(private send: Send, readonly stream: string, readonly maxBacklog?: number) {
    // A stream's own hash tag is that of its other keys.
    this.base = stream.includes("{") ? `tq:${stream}` : `tq:{${stream}}`;
  }

  /** Adds a task, and returns its id: the given one, or that of its entry. */
  async enqueue(fields: Fields, options: Options = {}): Promise<string> {
    const entry = entryOf(fields, options);
    if (this.maxBacklog !== undefined) {
      const queued = Number(await this.send(["XLEN", this.stream]));
      const delayed = Number(await this.send(["ZCARD", `${this.base}:delayed`]));
      if (queued + delayed >= this.maxBacklog) {
        throw new QueueFull(
          `the queue of ${this.stream} is full: ${this.maxBacklog} tasks or more wait or run ` +
            "(max_backlog); try again later, or raise it",
        );
      }
    }
    const added = await this.send(["XADD", this.stream, "*", ...entry]);
    return options.id ?? String(added);
  }

  async status(id: string): Promise<Status> {
    const read = async () =>
      (await this.send(["HMGET", `${this.base}:task:${id}`, ...NAMES])) as (Buffer | null)[];
    let values = await read();
    // A task that waits for its first host has no status, but an entry. One that left its entry between these
    // two commands has a status now.
    if (values[0] === null && /^[0-9]{1,19}-[0-9]{1,19}$/.test(id)) {
      const entries = (await this.send(["XRANGE", this.stream, id, id])) as unknown[];
      if (entries.length > 0) return { id, status: "PENDING" };
      values = await read();
    }
    const found: Record<string, unknown> = { id, status: "UNKNOWN" };
    NAMES.forEach((name, n) => {
      const value = values[n];
      if (value == null || values[0] === null) return;
      found[name] = name === "result" ? value : NUMBERS.includes(name) ? Number(value) : value.toString();
    });
    return found as unknown as Status;
  }

  /** The status after the task's end, however it ended. Throws `NotEnded` after the time. */
  async wait(id: string, timeoutMs: number): Promise<Status> {
    const end = performance.now() + timeoutMs;
    for (;;) {
      const status = await this.status(id);
      if (["COMPLETED", "FAILED", "CANCELLED"].includes(status.status)) return status;
      const left = end - performance.now();
      if (!(left > 0)) throw new NotEnded(status, timeoutMs);
      await sleep(Math.min(PERIOD_MS, left));
    }
  }
}

/**
 * Cancels a task through the HTTP API, since only hosts may end tasks. Returns the status that it had.
 *
 * `api` is a host's address, such as `http://127.0.0.1:7700`; `queue` the name in the configuration.
 */
export async function cancel(api: string, queue: string, id: string, token?: string): Promise<string> {
  const path = `/v1/queues/${encodeURIComponent(queue)}/tasks/${encodeURIComponent(id)}`;
  const answer = await fetch(api.replace(/\/+$/, "") + path, {
    method: "DELETE",
    headers: token === undefined ? {} : { authorization: `Bearer ${token}` },
    redirect: "manual",
    signal: AbortSignal.timeout(HTTP_TIMEOUT_MS),
  });
  const body = (await answer.json().catch(() => undefined)) as Record<string, string> | undefined;
  if (answer.ok && body?.before) return body.before;
  if (!body?.code) throw new ApiRefused(answer.status, "unreadable", "the answer is not one of tqhost");
  throw new ApiRefused(answer.status, body.code, body.detail ?? "");
}

/** Headers by their names: those of Node, of a `Request`, or any record. */
type WebhookHeaders = Headers | Record<string, string | string[] | undefined>;

/**
 * Checks a request of `http-call` (Standard Webhooks), and returns its `webhook-id`. Throws `BadWebhook`.
 *
 * `body` is the bytes as they came; `tolerance` is how many seconds the request's time may be away from
 * `now`, which is this machine's clock by default.
 */
export function verifyWebhook(
  secret: string,
  headers: WebhookHeaders,
  body: Uint8Array | string,
  { tolerance = 300, now = Date.now() / 1000 }: { tolerance?: number; now?: number } = {},
): string {
  const text = secret.replace(/^whsec_/, "");
  const key = Buffer.from(text, "base64");
  if (key.toString("base64") !== text || key.length < 24 || key.length > 64) {
    throw new TypeError("the secret is not whsec_ and 24 to 64 bytes in base64");
  }
  const pairs = headers instanceof Headers ? [...headers] : Object.entries(headers);
  const lower = new Map(pairs.map(([name, value]) => [name.toLowerCase(), String(value ?? "")]));
  const names = ["webhook-id", "webhook-timestamp", "webhook-signature"];
  const [id, stamp, signatures] = names.map((name) => lower.get(name));
  if (!id || !stamp || !signatures) {
    throw new BadWebhook("webhook-id, webhook-timestamp or webhook-signature is missing");
  }
  if (!/^[0-9]{1,15}$/.test(stamp)) throw new BadWebhook("webhook-timestamp is not a number");
  if (!(Math.abs(now - Number(stamp)) <= tolerance)) {
    throw new BadWebhook("webhook-timestamp is too old or too new");
  }
  const hmac = createHmac("sha256", key).update(`${id}.${stamp}.`).update(body).digest("base64");
  const own = Buffer.from(`v1,${hmac}`);
  // Each signature is compared, whichever is equal.
  const equal = signatures.split(" ").map((signature) => {
    const theirs = Buffer.from(signature);
    return theirs.length === own.length && timingSafeEqual(theirs, own);
  });
  if (!equal.includes(true)) throw new BadWebhook("no signature matches");
  return id;
}
