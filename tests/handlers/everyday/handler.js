// Eleven everyday programs in JavaScript. The field `program` says which one runs.
import ms from 'ms';
import { config, handles, json, text } from './tqhost.js';
import { blobs } from './tqhost-blobs.js';
import { fetch } from './tqhost-http.js';

const programs = {
  packages: () => ({ used: ms('2 days') }),

  dates() {
    const date = new Date('2026-02-28T23:30:00+02:00');
    date.setUTCDate(date.getUTCDate() + 1);
    const days = ['Sunday', 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday'];
    const seconds = Math.floor(Date.now() / 1000);
    return { date: date.toISOString().replace('.000Z', 'Z'), day: days[date.getUTCDay()], seconds };
  },

  uuids: () => ({ uuid: crypto.randomUUID() }),

  logging() {
    console.log('an everyday line', { n: 1 });
    console.warn('an everyday warning');
  },

  async http(task) {
    const response = await fetch(config('service'), {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'x-task': task.id },
      body: JSON.stringify({ words: ['one', 'two'] }),
    });
    return { status: response.status, body: await response.text() };
  },

  // What programs do elsewhere without a thought. This `fetch` is the global one.
  async habits() {
    const { fetch } = globalThis;
    const origin = config('service').replace('/size', '');
    const why = (call) => new Promise((resolve) => resolve(call())).catch(String);
    const form = new FormData();
    form.append('name', 'value');
    const control = new AbortController();
    setTimeout(() => control.abort(new Error('no patience')), 20);
    const slow = () => fetch(`${origin}/silent`);
    const soon = new Promise((resolve) => setTimeout(resolve, 20, 'the timer'));
    return {
      request: await (await fetch(new Request(`${origin}/size`, { method: 'POST', body: '12345' }))).text(),
      zipped: await (await fetch(new URL(`${origin}/zipped`))).text(),
      form: Number(await (await fetch(`${origin}/size`, { method: 'POST', body: form })).text()) > 40,
      race: await Promise.race([slow(), soon]),
      signal: await why(() => fetch(`${origin}/silent`, { signal: control.signal })),
      timeout: await why(() => fetch(`${origin}/silent`, { signal: AbortSignal.timeout(20) })),
      buffer: Buffer.from('hällo').toString('base64'),
      environment: [process.env.service === config('service'), process.env.nothing === undefined],
      language: await why(() => new Date(0).toLocaleString('de-DE', { timeZone: 'Europe/Berlin' })),
      number: await why(() => (1234.5).toLocaleString('de-DE')),
    };
  },

  // The engine reads a form in many turns, with and without a timer that is far away.
  async form() {
    const form = new FormData();
    form.append('file', new Blob(['x'.repeat(400_000)]));
    const isWhole = async () => {
      const response = await fetch(config('service'), { method: 'POST', body: form });
      return Number(await response.text()) > 400_000;
    };
    const first = await isWhole();
    setTimeout(() => {}, 3_600_000);
    return [first, await isWhole()];
  },

  json(task) {
    const { items, name } = json(task, 'order');
    return { total: items.reduce((sum, { price, n }) => sum + price * n, 0), name };
  },

  files(task) {
    const rows = Array.from({ length: 100_000 }, (_, n) => `${n},row ${n}\n`).join('');
    const name = `${task.id}/rows.csv`;
    blobs.put(name, 'text/csv', rows);
    const read = blobs.text(name).trimEnd().split('\n');
    return { rows: read.length, sum: read.reduce((sum, row) => sum + Number(row.split(',')[0]), 0) };
  },

  exceptions() {
    try {
      order();
    } catch (error) {
      if (error.cause instanceof RangeError) throw new Error('the order failed', { cause: error });
      throw error;
    }
  },

  async async() {
    const later = (value) => new Promise((resolve) => setTimeout(() => resolve(value), 20));
    const values = await Promise.all([later(1), later(2)]);
    return { sum: values[0] + values[1] };
  },

  random() {
    const [drawn] = crypto.getRandomValues(new Uint32Array(1));
    return { drawn: [Math.random(), drawn + Math.random()] };
  },
};

function order() {
  try {
    price();
  } catch (error) {
    throw new TypeError('the order has no price', { cause: error });
  }
}

function price() {
  throw new RangeError('there is no book 7');
}

export const handler = handles((task) => programs[text(task, 'program')](task));
