// An application that takes tasks of tqhost's plugin http-call. Node.js 18 or newer, no packages.
//
//   WEBHOOK_SECRET=whsec_… PORT=3000 node receiver.mjs
//
// In: POST requests, signed as Standard Webhooks says. Out: the answer, which is the task's outcome, and one
// line on stdout for each task that was worked on. Replace `work` by your own code, and `known` by a table of
// your database.

import { createHmac, timingSafeEqual } from "node:crypto";
import { createServer } from "node:http";

/** The clocks of both machines may differ by this. */
const TOLERANCE_SECONDS = 5 * 60;
const MAX_BODY = 16 * 1024 * 1024;
/** How many tasks are remembered here. A table with a unique key on queue and id needs no bound. */
const MAX_KNOWN = 100_000;

const keys = (process.env.WEBHOOK_SECRET ?? "")
  .split(/\s+/)
  .filter((secret) => secret.startsWith("whsec_"))
  .map((secret) => Buffer.from(secret.slice("whsec_".length), "base64"));
if (keys.length === 0) {
  console.error("set WEBHOOK_SECRET to the secret of the plugin's configuration: whsec_…");
  process.exit(1);
}

/**
 * The tasks that were seen, by queue and id (two queues may have tasks with the same id): the highest fence,
 * the promise of the answer, whether it is there.
 */
const known = new Map();

/** Your own code. A Rejection ends the task; after any other error it comes again. */
async function work(task) {
  const values = task.body ? [task.body] : Object.values(task.fields).flat().map(bytes);
  const size = values.reduce((sum, value) => sum + value.length, 0);
  if (size === 0) throw new Rejection("the task has no content");
  console.log(JSON.stringify({ id: task.id, queue: task.queue, attempt: task.attempt }));
  return { bytes: size };
}

class Rejection extends Error {}

/** A value's bytes. A string is text, and an object has base64. */
function bytes(value) {
  return typeof value === "string" ? Buffer.from(value, "utf8") : Buffer.from(value.base64, "base64");
}

/** The task of a request. With `body = "data"` the body is that field, and the rest is in headers. */
function read(headers, body) {
  let json;
  try {
    json = JSON.parse(body.toString("utf8"));
  } catch {
    // A field need not be JSON.
  }
  const [queue, attempt, fence] = ["queue", "attempt", "fence"].map((name) => headers[`tqhost-${name}`]);
  const told = { queue, attempt: Number(attempt), fence: Number(fence) };
  // A field may look like a task, but it does not know its own delivery.
  const isWhole = json?.fields && Object.entries(told).every(([name, value]) => json[name] === value);
  return isWhole ? json : { id: headers["webhook-id"], ...told, body };
}

/** Why a request is not the host's, or undefined if it is. */
function refusal(headers, body) {
  const [id, time, signatures] = ["id", "timestamp", "signature"].map((name) => headers[`webhook-${name}`]);
  if (!id || !time || !signatures) return "a header of Standard Webhooks is missing";
  const late = Math.abs(Date.now() / 1000 - Number(time));
  if (!/^\d+$/.test(time) || late > TOLERANCE_SECONDS) return "the time of the request is not now";
  const given = signatures
    .split(" ")
    .filter((signature) => signature.startsWith("v1,"))
    .map((signature) => Buffer.from(signature.slice("v1,".length), "base64"));
  const isSigned = keys.some((key) => {
    const expected = createHmac("sha256", key).update(`${id}.${time}.`).update(body).digest();
    return given.some((one) => one.length === expected.length && timingSafeEqual(one, expected));
  });
  return isSigned ? undefined : "the signature is wrong";
}

/** Works on a task once, however often it comes. */
async function once(task) {
  const name = `${task.queue}/${task.id}`;
  let entry = known.get(name);
  if (entry && !entry.isDone) {
    // An older delivery may arrive late, when its host has been replaced by another one.
    if (task.fence < entry.fence) return problem(409, "a newer delivery of this task was seen");
    entry.fence = task.fence;
  }
  if (!entry) {
    entry = { fence: task.fence, answer: work(task), isDone: false };
    known.set(name, entry);
    entry.answer.then(
      () => (entry.isDone = true),
      // Only an answer is remembered. After an error the next attempt works again.
      () => known.delete(name),
    );
    if (known.size > MAX_KNOWN) known.delete(known.keys().next().value);
  }
  try {
    return { status: 200, type: "application/json", body: JSON.stringify(await entry.answer) };
  } catch (error) {
    if (error instanceof Rejection) return problem(422, error.message);
    console.error(error);
    return problem(500, "the work failed");
  }
}

function problem(status, detail) {
  return { status, type: "application/problem+json", body: JSON.stringify({ status, detail }) };
}

async function answer(request) {
  if (request.method !== "POST") return problem(405, "tasks come by POST");
  const pieces = [];
  let size = 0;
  for await (const piece of request) {
    size += piece.length;
    if (size > MAX_BODY) return problem(413, `a task has at most ${MAX_BODY} bytes`);
    pieces.push(piece);
  }
  // The signature is for the bytes as they came, not for the JSON that they mean.
  const body = Buffer.concat(pieces);
  const why = refusal(request.headers, body);
  return why ? problem(401, why) : once(read(request.headers, body));
}

const server = createServer((request, response) => {
  answer(request)
    .catch((error) => {
      console.error(error);
      return problem(500, "the request could not be read");
    })
    .then(({ status, type, body }) => {
      // What was not read of a body that is too large must not be taken for the next request.
      if (status === 413) response.setHeader("connection", "close");
      response.writeHead(status, { "content-type": type, "content-length": Buffer.byteLength(body) });
      response.end(body);
    });
});
// Longer than the plugin's keep_alive, so that the host closes connections, and no request meets their end.
server.keepAliveTimeout = 30_000;
server.listen(Number(process.env.PORT ?? 3000), "127.0.0.1", () => {
  console.log(JSON.stringify({ port: server.address().port }));
});
