// Lets loops tell where they are when the deadline of their task is near, as the engine cannot be asked.
//
// In: the bundle. Out: its text, in which each `while`, `do` and `for (;;)` of your own files counts its
// rounds, and calls `tqhostLate` of tqhost.js in every few hundred of them. The lines stay the same. A loop
// over a range or over a collection ends by itself, so it stays as it is, and as fast.

import { parse } from 'acorn';

/** The beginning of the text. The top of a file may loop before tqhost.js is there. */
const BEGIN = 'var tqhostRounds=0;function tqhostCount(){tqhostRounds=globalThis.tqhostLate?.()??500}';
const COUNT = 'tqhostRounds--||tqhostCount();';

const isOwn = (file) => file && !/node_modules\/|^(tqhost(-\w+)?|build(-\w+)?)\.js$/.test(file);

const mayBeEndless = ({ type, test, update }) =>
  type === 'WhileStatement' || type === 'DoWhileStatement' || (type === 'ForStatement' && !(test && update));

export function withCountedLoops({ code, map }) {
  const added = [];
  const visit = (node) => {
    if (mayBeEndless(node)) {
      const { line, column } = node.loc.start;
      if (isOwn(map.findEntry(line - 1, column).originalSource)) {
        const { type, start, end } = node.body;
        if (type === 'BlockStatement') {
          added.push([start + 1, COUNT]);
        } else {
          // Behind the last sign before the body, so that no place in the line of the body changes.
          added.push([code.slice(0, start).trimEnd().length, ` {${COUNT}`], [end, '}']);
        }
      }
    }
    for (const value of Object.values(node)) {
      if (Array.isArray(value)) value.forEach((each) => each?.type && visit(each));
      else if (value?.type) visit(value);
    }
  };
  visit(parse(code, { ecmaVersion: 'latest', sourceType: 'module', locations: true }));
  if (!added.length) return code;
  let [text, from] = [BEGIN, 0];
  for (const [at, more] of added.sort(([a], [b]) => a - b)) {
    text += code.slice(from, at) + more;
    from = at;
  }
  return text + code.slice(from);
}
