/**
 * Carries out the calls of the conformance suite: a line of JSON for each call in, and for each answer out.
 *
 *     REDIS_URL=redis://… node conformance.js node-redis|ioredis
 *
 * Not here: the cases (`../conformance`), and the judge (`tests/world/clients.rs`).
 */
import { createInterface } from "node:readline";
import { Redis } from "ioredis";
import { createClient } from "redis";
import * as tqhost from "./tqhost-client.js";

// The calls are what `tests/world/clients.rs` writes, each with what its function needs.
interface Call {
  call: string; stream: string; max_backlog?: number; fields: [string, string][]; id: string; key?: string;
  delay_ms?: number; traceparent?: string; timeout_ms: number; api: string; queue: string; token?: string;
  secret: string; headers: Record<string, string>; body: string; now: number; tolerance: number;
}

async function carryOut(call: Call, send: tqhost.Send): Promise<object> {
  if (call.call === "verify") {
    const { secret, headers, now, tolerance } = call;
    const body = Buffer.from(call.body, "base64");
    return { id: tqhost.verifyWebhook(secret, headers, body, { now, tolerance }) };
  }
  if (call.call === "cancel") {
    return { before: await tqhost.cancel(call.api, call.queue, call.id, call.token) };
  }
  const queue = new tqhost.Queue(send, call.stream, call.max_backlog);
  if (call.call === "enqueue") {
    const { id, key, delay_ms: delayMs, traceparent } = call;
    const fields = call.fields.map(([name, value]) => [name, Buffer.from(value, "base64")] as const);
    return { id: await queue.enqueue(fields, { id, key, delayMs, traceparent }) };
  }
  const status = await (call.call === "wait" ? queue.wait(call.id, call.timeout_ms) : queue.status(call.id));
  return { ...status, result: status.result?.toString("base64") };
}

function failed(error: unknown): object {
  if (error instanceof tqhost.NotATask) return { error: "not-a-task", message: error.message };
  if (error instanceof tqhost.QueueFull) return { error: "queue-full", message: error.message };
  if (error instanceof tqhost.BadWebhook) return { error: "bad-webhook", message: error.message };
  if (error instanceof tqhost.NotEnded) return { error: "not-ended", status: error.status.status };
  if (error instanceof tqhost.ApiRefused) {
    return { error: "api-refused", code: error.code, http_status: error.httpStatus };
  }
  if (error instanceof TypeError) return { error: "bad-secret", message: error.message };
  throw error;
}

const url = process.env.REDIS_URL ?? "";
let send: tqhost.Send;
let close: () => unknown;
if (process.argv[2] === "ioredis") {
  // The check is an INFO, for which a producer needs no right.
  const client = new Redis(url, { enableReadyCheck: false });
  [send, close] = [tqhost.ioRedis(client), () => client.disconnect()];
} else {
  const client = await createClient({ url }).connect();
  [send, close] = [tqhost.nodeRedis(client), () => client.destroy()];
}
for await (const line of createInterface({ input: process.stdin })) {
  const answer = await carryOut(JSON.parse(line) as Call, send).catch(failed);
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
close();
