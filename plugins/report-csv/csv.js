// Writes rows as CSV by RFC 4180: CRLF, and quotes where they are needed. It does not depend on tasks.

/** All columns of the rows, in the order in which they first appear. */
export function columnsOf(rows) {
  const columns = new Set();
  for (const row of rows) for (const name of Object.keys(row)) columns.add(name);
  return [...columns];
}

/** A header, and a line for each row. A value that a row does not have is empty. */
export function csv(rows, columns, delimiter) {
  const line = (cells) => cells.map((value) => cell(value, delimiter)).join(delimiter);
  const values = (row) => columns.map((name) => (Object.hasOwn(row, name) ? row[name] : null));
  return [columns, ...rows.map(values)].map((cells) => line(cells) + '\r\n').join('');
}

function cell(value, delimiter) {
  if (value === null || value === undefined) return '';
  let text = typeof value === 'object' ? JSON.stringify(value) : String(value);
  // A spreadsheet would run a text that begins with such a character as a formula.
  if (typeof value === 'string' && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
  return text.includes(delimiter) || /["\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
