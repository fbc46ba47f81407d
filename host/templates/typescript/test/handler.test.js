// Tests the handler's function, and the built component in the sandbox of a host: no Redis, no host.
// `make test` builds both first.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { test } from 'node:test';

import { handler } from '../build/handler.js';
import { run } from '../tqhost-memory.js';

test('words are counted', async () => {
  assert.deepEqual(JSON.parse(await run(handler, { content: 'one  two\nthree' })), { words: 3 });
});

function tried(...args) {
  const command = ['try', '{{NAME}}.wasm', '--json', ...args];
  const ran = spawnSync(process.env.TQHOST ?? 'tqhost', command, { encoding: 'utf8' });
  assert.ok(ran.stdout, ran.error?.message ?? ran.stderr);
  return JSON.parse(ran.stdout);
}

test('the words of the sample are counted', () => {
  const { outcome, result, message } = tried('task.json');
  const expected = { outcome: 'completed', result: { words: 7 }, message: null };
  assert.deepEqual({ outcome, result, message }, expected);
});

test('a task without text is rejected', () => {
  const { outcome, message } = tried('--field', 'other=1');
  const expected = { outcome: 'reject', message: 'field `content` is missing: it has other' };
  assert.deepEqual({ outcome, message }, expected);
});
