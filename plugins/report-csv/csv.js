// Rows to CSV, as RFC 4180 has it: CRLF, and quotes where they are needed. Knows nothing of tasks.

/** All columns of rows that are objects, in the order in which they come first. */
export function columnsOf(rows) {
  const columns = new Set();
  for (const row of rows) for (const name of Object.keys(row)) columns.add(name);
  return [...columns];
}

/** A header and a line for each row; what a row does not have is empty. */
export function csv(rows, columns, delimiter) {
  const line = (cells) => cells.map((value) => cell(value, delimiter)).join(delimiter);
  return [columns, ...rows.map((row) => columns.map((name) => (Object.hasOwn(row, name) ? row[name] : null)))].map((cells) => line(cells) + '\r\n').join('');
}

function cell(value, delimiter) {
  if (value === null || value === undefined) return '';
  let text = typeof value === 'object' ? JSON.stringify(value) : String(value);
  // A spreadsheet would run a text that begins so as a formula.
  if (typeof value === 'string' && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
  return text.includes(delimiter) || /["\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
