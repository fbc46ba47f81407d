// Tells what went wrong in a build, with the author's file and line.
//
// In: errors of the bundler or of the engine, and the bundle. Out: the same errors, with places in the files
// that the bundle was made of.

import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { builtinModules } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { formatMessages } from 'esbuild';

/** The name under which the engine knows the bundle. */
export const BUNDLE = 'bundle.js';

const AT_THE_TOP = {
  text: 'The top of a file runs when the component is built, without a host. Move the call into the handler.',
};

export async function show(kind, messages) {
  const told = await formatMessages(messages, { kind, color: process.stderr.isTTY });
  process.stderr.write(told.join(''));
}

export async function fail(...errors) {
  await show('error', errors);
  process.exit(1);
}

/** An error of the bundler, for somebody who has no use for its options. */
export function withoutNode(error) {
  const name = /^Could not resolve "(.*)"$/.exec(error.text)?.[1];
  if (name === undefined) return error;
  if (builtinModules.includes(name.replace(/^node:/, ''))) {
    const who = packageOf(error.location.file);
    const text = `"${name}" is a module of Node.js, which a handler does not have`;
    return { ...error, text: who ? `${text}: ${who} needs it` : text, notes: [] };
  }
  const isPackage = /^[@\w]/.test(name);
  return { ...error, notes: isPackage ? [{ text: `Is it a package? Then: npm install ${name}` }] : [] };
}

/** `the package x`, or nothing for a file of the project. Packages with a map of their own name it there. */
export function packageOf(file) {
  const name = /(?:.*node_modules\/|^webpack:\/\/)((?:@[^/]+\/)?[^/]+)/.exec(file)?.[1];
  return name ? `the package ${name}` : '';
}

/** The author's place of a place in the bundle. Both count from 0, but for the author's line. */
export function placeOf({ map, lines }, line, column) {
  const { originalSource: file, originalLine, originalColumn } = map.findEntry(line, column);
  if (file === undefined) return { file: BUNDLE, line: line + 1, column, lineText: lines[line] };
  // A package may have a map of its own, with files that only its makers have.
  const lineText = existsSync(file) ? readFileSync(file, 'utf8').split('\n')[originalLine] : lines[line];
  return { file, line: originalLine + 1, column: originalColumn, lineText };
}

const isOwn = ({ file }) => !/^(tqhost(-\w+)?|build)\.js$/.test(file);

/** Why the engine could not run the top of the files, from what it said. */
export async function whyNot(bundle, said) {
  const at = (line, column) => placeOf(bundle, line - 1, column - 1);
  const thrown = new RegExp(`^${BUNDLE}:(\\d+):(\\d+) (.*)$`, 'm').exec(said);
  if (thrown) {
    const [, line, column, text] = thrown;
    // The first place of the stack is that of the error. The helpers are not the author's.
    const stack = [...said.matchAll(new RegExp(`^ +.*@${BUNDLE}:(\\d+):(\\d+)$`, 'gm'))];
    const [own = at(line, column), ...callers] = stack.map(([, ...place]) => at(...place)).filter(isOwn);
    const notes = callers.map((location) => ({ text: 'It was called here:', location }));
    const needsHost = / can only be used during request handling.*/;
    if (needsHost.test(text)) notes.push(AT_THE_TOP);
    return { text: text.replace(needsHost, ' needs a host'), location: own, notes };
  }
  const isOfHost = said.includes('unknown imported function');
  const caller = isOfHost && (await whoCalls(bundle, at));
  return caller ? { ...caller, notes: [AT_THE_TOP] } : { text: said };
}

/**
 * Finds the call of a host function, or of a source of random numbers, at the top of a file. The engine does
 * not tell its place, so Node.js runs the bundle once more, with functions that note who calls them.
 */
async function whoCalls(bundle, at) {
  let first;
  const refuse = (name) =>
    function () {
      first ??= { name, stack: new Error().stack };
      throw new Error(name);
    };
  globalThis.tqhostRefuse = refuse;
  Math.random = refuse('Math.random()');
  const random = ['getRandomValues', 'randomUUID'].map((name) => [name, refuse(`crypto.${name}()`)]);
  Object.defineProperty(globalThis, 'crypto', { value: Object.fromEntries(random) });
  const code = bundle.code.replace(/\{([^{}]*)\} from "((?:tqhost|wasi):[^"]*)"/g, (_, names, from) => {
    const stubs = names.split(',').map((each) => {
      const name = each.trim().split(' as ')[0];
      return `const $${name} = tqhostRefuse('${name}() of ${from}'); export { $${name} as ${name} };`;
    });
    return `{${names}} from "data:text/javascript,${encodeURIComponent(stubs.join(''))}"`;
  });
  const folder = mkdtempSync(join(tmpdir(), 'tqhost-'));
  const file = join(folder, 'bundle.mjs');
  writeFileSync(file, code);
  await import(pathToFileURL(file)).catch(() => {});
  rmSync(folder, { recursive: true });
  if (!first) return undefined;
  const places = [...first.stack.matchAll(/bundle\.mjs:(\d+):(\d+)/g)].map(([, ...place]) => at(...place));
  return { text: `${first.name} needs a host`, location: places.find(isOwn) ?? places[0] };
}
