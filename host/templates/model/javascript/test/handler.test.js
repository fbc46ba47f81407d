// Tests the handler's function with answers of its own, and the built component with a server of its own.
// `make test` builds it first.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, test } from 'node:test';

import { handler } from '{{TESTED}}';
import { memory, reply, reset, run } from '../tqhost-memory.js';

const events = (...pieces) =>
  [...pieces.map((content) => JSON.stringify({ choices: [{ delta: { content } }] })), '[DONE]']
    .map((chunk) => `data: ${chunk}\n\n`)
    .join('');

beforeEach(() => {
  reset();
  memory.config = new Map([['url', 'https://model.example/v1'], ['model', 'small'], ['api_key', 'k']]);
});

test('the answer is put together', async () => {
  memory.http = [reply(events('A short', ' text.'))];
  assert.deepEqual(JSON.parse(await run(handler, { content: 'x' })), { summary: 'A short text.' });
  const [asked] = memory.requests;
  assert.equal(asked.url, 'https://model.example/v1/chat/completions');
  assert.equal(asked.json().model, 'small');
  assert.equal(asked.headers.authorization, 'Bearer k');
});

test('a busy server is asked again when it says', async () => {
  memory.http = [reply('busy', 429, { 'retry-after': '2' })];
  await assert.rejects(run(handler, { content: 'x' }));
  assert.deepEqual(memory.outages, [{ index: 0, afterMs: 2000 }]);
});

test('a server that is away is asked again', async () => {
  memory.http = ['connection-refused'];
  await assert.rejects(run(handler, { content: 'x' }));
  assert.deepEqual(memory.outages, [{ index: 0, afterMs: undefined }]);
});

test('the component asks a server', async () => {
  const server = createServer((_, response) => response.end(events('Seven', ' words.')));
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const origin = `http://127.0.0.1:${server.address().port}`;
  const folder = mkdtempSync(join(tmpdir(), 'tqhost-'));
  const config = join(folder, 'tqhost.toml');
  const grants = `allowed_hosts = ["${origin}"]\nconfig = { url = "${origin}/v1" }\n`;
  writeFileSync(config, `[queues.q]\nplugin = "p"\n[plugins.p]\n${grants}`);
  const args = ['try', '{{NAME}}.wasm', 'task.json', '--json', '--config', config, '--queue', 'q'];
  const tried = spawn(process.env.TQHOST ?? 'tqhost', args, { stdio: ['ignore', 'pipe', 'inherit'] });
  let said = '';
  tried.stdout.on('data', (piece) => (said += piece));
  await once(tried, 'close');
  server.close();
  rmSync(folder, { recursive: true });
  assert.deepEqual(JSON.parse(said).result, { summary: 'Seven words.' }, said);
});
