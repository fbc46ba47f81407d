// {{NAME}}: counts the words of a text.
//
// In: a task with the field `content`. Out: `{"words": n}`.

import { handles, reject, text } from './tqhost.js';

async function count(task) {
  const words = text(task, 'content').split(/\s+/).filter(Boolean).length;
  if (words === 0) throw reject('field `content` is empty');
  console.log(`counted ${words} words`);
  return { words };
}

export const handler = handles(count);
