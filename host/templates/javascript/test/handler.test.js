// The built component in the sandbox that a host runs it in: no Redis, no host. `make test` builds it first.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { test } from 'node:test';

function tried(...args) {
  const ran = spawnSync(process.env.TQHOST ?? 'tqhost', ['try', '{{NAME}}.wasm', '--json', ...args], { encoding: 'utf8' });
  assert.ok(ran.stdout, ran.error?.message ?? ran.stderr);
  return JSON.parse(ran.stdout);
}

test('the words of the sample are counted', () => {
  const { outcome, result, message } = tried('task.json');
  assert.deepEqual({ outcome, result, message }, { outcome: 'completed', result: { words: 7 }, message: null });
});

test('a task without text is rejected', () => {
  const { outcome, message } = tried('--field', 'other=1');
  assert.deepEqual({ outcome, message }, { outcome: 'reject', message: 'field `content` is missing' });
});
