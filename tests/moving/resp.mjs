// A Redis client for the old consumers of the tests: Node.js, and no packages.
//
// In: commands. Out: replies, with bulk strings as text. A reply of RESP 2 only. Not here: what is consumed.

import { connect } from "node:net";

const END = Buffer.from("\r\n");

export class Redis {
  /** The functions that wait for replies, in the order of the commands. */
  #waiting = [];
  #received = Buffer.alloc(0);
  #socket;

  /** Connects, or fails. */
  static connect(port) {
    return new Promise((resolve, reject) => {
      const socket = connect(port, "127.0.0.1", () => resolve(new Redis(socket)));
      socket.once("error", reject);
    });
  }

  constructor(socket) {
    this.#socket = socket;
    socket.setNoDelay(true);
    socket.on("data", (bytes) => this.#take(bytes));
    socket.on("error", () => {});
    socket.on("close", () => {
      for (const { reject } of this.#waiting.splice(0)) reject(new Error("Redis closed the connection"));
    });
  }

  call(...args) {
    if (this.#socket.destroyed) return Promise.reject(new Error("Redis closed the connection"));
    const parts = args.map((arg) => `$${Buffer.byteLength(String(arg))}\r\n${arg}\r\n`);
    this.#socket.write(`*${args.length}\r\n${parts.join("")}`);
    return new Promise((resolve, reject) => this.#waiting.push({ resolve, reject }));
  }

  close() {
    this.#socket.destroy();
  }

  #take(bytes) {
    this.#received = Buffer.concat([this.#received, bytes]);
    for (;;) {
      const reply = parse(this.#received, 0);
      if (!reply) return;
      this.#received = this.#received.subarray(reply.end);
      const { resolve, reject } = this.#waiting.shift();
      if (reply.value instanceof Error) reject(reply.value);
      else resolve(reply.value);
    }
  }
}

/** The reply at this place and where it ends, or undefined if some of it is not here yet. */
function parse(bytes, at) {
  const line = bytes.indexOf(END, at);
  if (line < 0) return undefined;
  const [kind, rest, start] = [bytes[at], bytes.toString("utf8", at + 1, line), line + 2];
  switch (String.fromCharCode(kind)) {
    case "+":
      return { value: rest, end: start };
    case "-":
      return { value: new Error(rest), end: start };
    case ":":
      return { value: Number(rest), end: start };
    case "$": {
      if (rest === "-1") return { value: null, end: start };
      const end = start + Number(rest);
      return bytes.length < end + 2 ? undefined : { value: bytes.toString("utf8", start, end), end: end + 2 };
    }
    default: {
      if (rest === "-1") return { value: null, end: start };
      const values = [];
      let end = start;
      while (values.length < Number(rest)) {
        const one = parse(bytes, end);
        if (!one) return undefined;
        values.push(one.value);
        end = one.end;
      }
      return { value: values, end };
    }
  }
}
