// What a handler in JavaScript may do: keeps a count of its tasks, prints, and ends as the field `end` says.
//
// Returns `tasks`, how many it has had with this one; in a batch `batch`, how many came with it. `uncaught` gets past the helper of `tqhost new`, as in a handler that does not use it.

import { batches, handles, has, reject, text } from './tqhost.js';

let tasks = 0;

function work(task) {
  tasks += 1;
  console.log('printed by', task.id, { n: 1n });
  console.error(`complained by ${task.id}`);
  const end = has(task, 'end') ? text(task, 'end') : 'well';
  if (end === 'throw') explode();
  if (end === 'number') throw 42;
  if (end === 'promise') return Promise.resolve({ tasks });
  if (end === 'recursion') return (function again(n) { return again(n + 1) + 1; })(0);
  return { tasks };
}

function explode() {
  throw new TypeError('boom in JavaScript');
}

const helped = handles(work);

export const handler = {
  handle(task) {
    if (has(task, 'end') && text(task, 'end') === 'uncaught') explode();
    return helped.handle(task);
  },
};

export const batchHandler = batches((tasks) => {
  const end = (task) => (has(task, 'end') ? text(task, 'end') : 'well');
  if (tasks.some((task) => end(task) === 'throw')) explode();
  return tasks.map((task) => (end(task) === 'reject' ? reject('as told') : { batch: tasks.length }));
});
