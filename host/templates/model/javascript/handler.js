// {{NAME}}: asks a model for a summary of a text.
//
// In: a task with the field `content`; and the plugin's `config`: `url` of a server with OpenAI's interface,
// `model`, and `api_key`, if the server wants one. Out: `{"summary": …}`. If the server is busy or away, the
// task is tried again when the server says, and a queue with `hold` waits for it.

import { config, handles, progress, reject, retry, text, unavailable } from './tqhost.js';
import { fetch, retryAfterMs } from './tqhost-http.js';

/** The text of an answer that came as events. */
function joined(events) {
  const lines = events.split('\n').filter((line) => line.startsWith('data: {'));
  return lines.map((line) => JSON.parse(line.slice(6)).choices[0]?.delta.content ?? '').join('');
}

async function ask(prompt) {
  const key = config('api_key');
  progress(10, 'waits for the model');
  const response = await fetch(`${config('url')}/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...(key && { authorization: `Bearer ${key}` }) },
    body: JSON.stringify({
      model: config('model') ?? 'small',
      messages: [{ role: 'user', content: prompt }],
      stream: true,
    }),
    signal: AbortSignal.timeout(30_000),
  });
  const { status } = response;
  const said = `the model's server says ${status}`;
  if (status === 429 || status === 503) throw unavailable(said, retryAfterMs(response));
  if (status >= 500) throw retry(said);
  const answer = await response.text();
  if (status !== 200) throw reject(`${said}: ${answer.slice(0, 200)}`);
  return joined(answer);
}

async function summarize(task) {
  const content = text(task, 'content');
  if (content.trim() === '') throw reject('field `content` is empty');
  return { summary: await ask(`Summarize in one sentence:\n\n${content}`) };
}

export const handler = handles(summarize);
