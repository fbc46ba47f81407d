// Bundles the handler with all that it imports, and builds the component of it. `make` calls it.
//
//   node build.js FILE.wasm
//
// In: handler.js (or handler.ts), its files, the packages in node_modules. Out: the component; or errors with
// a file and a line of yours, while the earlier component stays.
//
// Not here: the places of errors (`build-errors.js`), those of loops (`build-loops.js`).

import { existsSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { SourceMap } from 'node:module';
import { build } from 'esbuild';
import { BUNDLE, fail, packageOf, placeOf, show, whyNot, withoutNode } from './build-errors.js';
import { withCountedLoops } from './build-loops.js';

/** What packages look for, and the engine does not have. The value of each is `undefined`. */
const MISSING = [
  'Intl', 'WebAssembly', 'SharedArrayBuffer', 'Atomics', 'Worker', 'WebSocket',
  'XMLHttpRequest', 'window', 'document', 'navigator', 'localStorage', 'setImmediate',
];

/** In place of `fetch`, in a world without requests. */
async function fetchNeedsALine() {
  throw new TypeError('`fetch` needs the line `import wasi:http/outgoing-handler@0.2.4;` in wit/world.wit');
}

/** The first file: it loads the helpers before the handler. The handler has the `run` of many tasks, too. */
function entry() {
  const handler = existsSync('handler.ts') ? './handler.ts' : './handler.js';
  const hasHttp = /^\s*import wasi:http\/outgoing-handler@/m.test(readFileSync('wit/world.wit', 'utf8'));
  return `
    import './tqhost-web.js';
    ${hasHttp ? "import './tqhost-http.js';" : `globalThis.fetch = ${fetchNeedsALine};`}
    import { handler } from '${handler}';
    export * from '${handler}';
    export const concurrentHandler = handler;`;
}

/** One file of all that the handler imports: its text, its lines, and where they come from. */
async function bundled() {
  const missing = MISSING.map((name) => [name, `globalThis.${name}`]);
  const made = await build({
    stdin: { contents: entry(), resolveDir: '.', sourcefile: 'build.js' },
    inject: ['./build-buffer.js'],
    alias: { 'node:buffer': 'buffer' },
    outfile: BUNDLE,
    bundle: true,
    write: false,
    logLevel: 'silent',
    format: 'esm',
    platform: 'browser',
    mainFields: ['browser', 'module', 'main'],
    conditions: ['worker', 'browser', 'module'],
    target: 'es2022',
    // As a literal, \p{…} would be an error in the whole bundle. So it is one where it is used.
    // The loop can follow `await` as a call of `then` only (tqhost-loop.js).
    supported: {
      'regexp-unicode-property-escapes': false,
      'async-await': false,
      'async-generator': false,
      'for-await': false,
      // The engine ends at an `import()` of what is not in the bundle. So it is an error where it is used.
      'dynamic-import': false,
    },
    external: ['tqhost:*', 'wasi:*'],
    define: { ...Object.fromEntries(missing), global: 'globalThis', 'process.env.NODE_ENV': '"production"' },
    sourcemap: 'external',
    charset: 'utf8',
    legalComments: 'none',
  }).catch(({ errors }) => fail(...errors.map(withoutNode)));
  const [map, code] = made.outputFiles.map((file) => file.text);
  await show('warning', made.warnings);
  return { code, map: new SourceMap(JSON.parse(map)), lines: code.split('\n') };
}

/** Warns of each use of something that the engine lacks, once for each file. */
async function warnOfMissing(bundle) {
  const globals = new RegExp(`(?<!typeof )globalThis\\.(${MISSING.join('|')})\\b`, 'g');
  const patterns = [
    [globals, (name) => `\`${name}\` is undefined in a handler`],
    [
      /^(?:export )?(?:const|let|var) .*\bprocess\.env\.\w/g,
      () => '`process.env` is empty at the top of a file, which runs when the component is built',
    ],
    [/new RegExp\(["'`].*?\\\\p\{/gi, () => 'a handler has no `\\p{…}` in regular expressions'],
    [/\.normalize\((["']NFK?[CD]["'])?\)/g, () => 'a handler has no `normalize` of strings'],
  ];
  const warnings = new Map();
  for (const [number, line] of bundle.lines.entries()) {
    for (const [pattern, say] of patterns) {
      for (const { index, 1: name } of line.matchAll(pattern)) {
        const location = placeOf(bundle, number, index);
        // It asks before it uses what may be missing.
        if (/node_modules\/buffer\//.test(location.file)) continue;
        const who = packageOf(location.file);
        const text = say(name) + (who && `, and ${who} uses it`);
        const key = `${location.file} ${text}`;
        if (!warnings.has(key)) warnings.set(key, { text, location });
      }
    }
  }
  await show('warning', [...warnings.values()]);
}

/**
 * For tqhost.js, which tells the places of exceptions: the file and line of each line of the bundle. It is
 * text, which takes less memory than arrays until an exception needs it.
 */
function places({ map, lines }) {
  const files = [];
  const at = lines.flatMap((line, number) => {
    const { originalSource, originalLine } = map.findEntry(number, line.search(/\S|$/));
    if (originalSource === undefined) return [-1, 0];
    if (!files.includes(originalSource)) files.push(originalSource);
    return [files.indexOf(originalSource), originalLine + 1];
  });
  return `globalThis.tqhostPlaces = ${JSON.stringify(JSON.stringify({ files, at }))};\n`;
}

const output = process.argv[2];
const bundle = await bundled();
await warnOfMissing(bundle);
const { componentize } = await import('@bytecodealliance/componentize-js');
const { component } = await componentize(withCountedLoops(bundle) + places(bundle), {
  sourceName: BUNDLE,
  witPath: 'wit',
  worldName: 'project',
  disableFeatures: ['stdio', 'http', 'fetch-event'],
}).catch(async (error) => fail(await whyNot(bundle, error.message)));
// The file is renamed into its place, so that a watcher never sees half a file.
writeFileSync(`${output}.tmp`, component);
renameSync(`${output}.tmp`, output);
