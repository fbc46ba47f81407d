// Uses each package of docs/languages/packages.md. The field `package` says which one.
//
// `model` of the plugin's config is a server with the interfaces of OpenAI and Anthropic, `events` one that
// streams, and `web` one with the pages of the tests.

import Anthropic from '@anthropic-ai/sdk';
import Ajv from 'ajv';
import axios from 'axios';
import * as cheerio from 'cheerio';
import { addDays, format, parseISO } from 'date-fns';
import * as jose from 'jose';
import ky from 'ky';
import { groupBy } from 'lodash-es';
import OpenAI from 'openai';
import pRetry from 'p-retry';
import Papa from 'papaparse';
import { v5, v7 } from 'uuid';
import YAML from 'yaml';
import { z } from 'zod';

import { config, handles, text } from './tqhost.js';

const messages = [{ role: 'user', content: 'x' }];
const question = { model: 'm', messages };
const fails = (promise) => promise.then(() => 'no error', ({ name }) => name);

/** Each returns what it finds, and what it should find. */
const programs = {
  async openai(model, web) {
    const client = (baseURL, more) => new OpenAI({ baseURL, apiKey: 'k', maxRetries: 0, ...more });
    const ask = (from, more) => from.chat.completions.create({ ...question, ...more });
    const whole = await Promise.all([ask(client(model)), ask(client(model))]);
    let said = '';
    for await (const event of await ask(client(config('events')), { stream: true })) {
      said += event.choices[0].delta.content;
    }
    const late = await ask(client(`${web}/silent?`, { timeout: 100 })).catch(String);
    const found = [...whole.map(({ choices }) => choices[0].message.content), said, late];
    return [found, ['Hello', 'Hello', 'Hello', 'Error: Request timed out.']];
  },

  async '@anthropic-ai/sdk'(model) {
    const client = new Anthropic({ baseURL: model, apiKey: 'k' });
    return [(await client.messages.create({ ...question, max_tokens: 9 })).content[0].text, 'Hello'];
  },

  async axios(_, web) {
    const late = await fails(axios.get(`${web}/silent`, { timeout: 100 }));
    const { data } = await axios.post(`${web}/size`, '12345');
    return [[(await axios.get(`${web}/zipped`)).data, data, late], ['zipped', 5, 'AxiosError']];
  },

  async ky(_, web) {
    const late = await fails(ky.get(`${web}/silent`, { timeout: 100, retry: 0 }));
    return [[await ky.get(`${web}/zipped`).text(), late], ['zipped', 'TimeoutError']];
  },

  'p-retry': async (_, web) => {
    let tries = 0;
    const ask = async () => {
      tries += 1;
      const { ok } = await fetch(`${web}/status?${tries === 3 ? 200 : 503}`);
      if (!ok) throw new Error('again');
    };
    await pRetry(ask, { minTimeout: 5 });
    return [tries, 3];
  },

  zod: () => [z.object({ n: z.coerce.number() }).parse({ n: '1' }), { n: 1 }],
  ajv: () => [new Ajv().compile({ type: 'object', required: ['a'] })({}), false],
  'date-fns': () => [format(addDays(parseISO('2026-02-28'), 1), 'yyyy-MM-dd EEEE'), '2026-03-01 Sunday'],
  uuid: () => [[v5('x', v5.URL), v7().length], ['4cd605e7-afa2-5360-b5b9-c5e9fb5c76f4', 36]],
  'lodash-es': () => [groupBy([1, 2, 3], (n) => n % 2), { 0: [2], 1: [1, 3] }],
  cheerio: () => [cheerio.load('<ul><li>1<li><b>2</b></ul>')('ul li b').text(), '2'],
  papaparse: () => [Papa.parse('a,b\n1,"2, 3"', { header: true }).data, [{ a: '1', b: '2, 3' }]],
  yaml: () => [YAML.parse(YAML.stringify({ a: [1, null] })), { a: [1, null] }],

  async jose() {
    const key = new TextEncoder().encode('k'.repeat(32));
    const token = await new jose.SignJWT({ a: 1 }).setProtectedHeader({ alg: 'HS256' }).sign(key);
    return [(await jose.jwtVerify(token, key)).payload, { a: 1 }];
  },
};

export const handler = handles(async (task) => {
  const [found, expected] = (await programs[text(task, 'package')](config('model'), config('web'))).map(
    (each) => JSON.stringify(each),
  );
  if (found !== expected) throw new Error(`${found} is not ${expected}`);
});
