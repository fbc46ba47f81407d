// Makes the CSV file of a report.
//
// In: a task with the field `rows`, a JSON array of objects. Optional fields are `columns`, a JSON array of
// names that selects and orders the columns, and `total`, the expected number of rows. Out: the file's text.
// Not here: how the text is written (`csv.js`).

import { columnsOf, csv } from './csv.js';
import { config, defer, handles, has, json, progress, reject, retry, text } from './tqhost.js';

function report(task) {
  // Only the operator can correct that, and the task is not at fault.
  const delimiter = config('delimiter') ?? ',';
  if (delimiter.length !== 1 || '"\r\n'.includes(delimiter)) {
    throw retry('the configuration key `delimiter` is not one character');
  }

  const rows = json(task, 'rows');
  const isObject = (row) => typeof row === 'object' && row !== null && !Array.isArray(row);
  if (!Array.isArray(rows) || !rows.every(isObject)) throw reject('field `rows` is not an array of objects');
  if (has(task, 'total')) {
    const total = Number(text(task, 'total'));
    if (!Number.isInteger(total) || total < 0) throw reject('field `total` is not a number of rows');
    if (rows.length > total) throw reject(`there are ${rows.length} rows, more than the total of ${total}`);
    if (rows.length < total) throw defer(`${rows.length} of ${total} rows are there`, 60_000);
  }
  const columns = has(task, 'columns') ? json(task, 'columns') : columnsOf(rows);
  if (!Array.isArray(columns) || !columns.every((name) => typeof name === 'string')) {
    throw reject('field `columns` is not an array of names');
  }
  if (columns.length === 0) {
    throw reject('there are no columns: `rows` is empty, and `columns` does not name any');
  }

  progress(50, `${rows.length} rows`);
  const file = csv(rows, columns, delimiter);
  console.log(`${rows.length} rows, ${columns.length} columns`);
  return file;
}

export const handler = handles(report);
