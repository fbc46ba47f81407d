// An incident by clicks, in a headless Chromium: a queue backs up, and its tasks fail, since a version was
// replaced. The dead letters name that version, it is rolled back, and they are requeued with a rate.
//
//   TQHOST_BROWSER=PACKAGES node incident.mjs URL GUARDED_URL SCREENSHOTS TASKS QUEUED VERSION
//
// TASKS are dead because of VERSION (`name@digest`), and QUEUED wait behind attempts that do not end until
// the script has printed `requeued`.
//
// Each page is judged by axe on the way, in light and in dark, and a picture of it is taken; with
// TQHOST_SCREENSHOTS also in other widths, as a whole, in the folder `more`. The page of the login is that of
// another host. The last line is JSON: what axe found, what the console told, steps, seconds. Not here: the
// host and its tasks (browser.rs).
import { mkdir, readFile } from "node:fs/promises";
import { createRequire } from "node:module";

const load = createRequire(`${process.env.TQHOST_BROWSER}/package.json`);
const chromium = (await import(load.resolve("@sparticuz/chromium"))).default;
const puppeteer = (await import(load.resolve("puppeteer-core"))).default;
const axe = load.resolve("axe-core/axe.min.js");

const [url, guarded, pictures, tasks, queued, bad] = process.argv.slice(2);
const WIDE = { width: 1280, height: 800 };
const PHONE = { width: 360, height: 780 };
const MORE = process.env.TQHOST_SCREENSHOTS ? [PHONE, WIDE, { width: 1920, height: 1080 }] : [];
const serious = new Set();
const told = [];
let steps = 0;

const browser = await puppeteer.launch({
  args: puppeteer.defaultArgs({ args: chromium.args, headless: "shell" }),
  executablePath: await chromium.executablePath(),
  headless: "shell",
});
try {
  const page = await browser.newPage();
  // axe is put into the page by the browser itself, which the policy of the pages would refuse.
  await page.setViewport(WIDE);
  page.on("console", (line) => told.push(`${line.type()}: ${line.text()}`));
  page.on("pageerror", (error) => told.push(`error: ${error.message}`));
  await mkdir(`${pictures}/${MORE.length ? "more" : ""}`, { recursive: true });

  const picture = (name, fullPage = false) =>
    page.screenshot({ path: `${pictures}/${name}.png`, optimizeForSpeed: fullPage, fullPage });
  const judge = async (name, isShown = true) => {
    const source = await readFile(axe, "utf8");
    for (const scheme of ["light", "dark"]) {
      await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
      await page.evaluate(source);
      const found = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
      if (found.passes.length < 10) throw new Error(`axe has looked at nothing of ${name}`);
      for (const { id, impact, nodes } of found.violations) {
        if (["serious", "critical"].includes(impact)) {
          serious.add(`${name}, ${scheme}: ${id} in ${nodes.map((node) => node.html).slice(0, 3).join(" ")}`);
        }
      }
      if (isShown) await picture(`${name}-${scheme}`);
      for (const size of MORE) {
        await page.setViewport(size);
        await picture(`more/${name}-${size.width}-${scheme}`, true);
      }
      await page.setViewport(WIDE);
    }
    await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: "light" }]);
    await page.setViewport(PHONE);
    const width = await page.evaluate(() => document.documentElement.scrollWidth);
    if (width > PHONE.width) serious.add(`${name}: it is ${width} wide on a phone of ${PHONE.width}`);
    if (isShown) await picture(`${name}-phone`);
    await page.setViewport(WIDE);
  };
  const words = () => page.evaluate(() => document.querySelector("main").innerText);
  const lines = (text) => text.replace(/\n\n/g, "\n");
  const until = async (what, holds) => {
    const end = Date.now() + 60_000;
    for (;;) {
      const text = await words();
      if (holds(text)) return text;
      if (Date.now() > end) throw new Error(`${what} did not happen: ${text}`);
      // The page keeps one connection, from which it hears what has changed.
      await page.waitForNetworkIdle({ idleTime: 100, timeout: 10_000, concurrency: 1 }).catch(() => {});
    }
  };
  // A locator looks once more for what the page replaces by itself before the click.
  const press = (selector) => page.locator(selector).click();
  const click = async (selector) => {
    steps += 1;
    await Promise.all([page.waitForNavigation(), press(selector)]);
  };

  await page.goto(url);
  const from = Date.now();
  // A host that has just started says so for a moment.
  const isTold = (text) => text.includes(`There are ${tasks}.`) && !text.includes("starting");
  await until("the alarm", isTold);
  const seen = Date.now() - from;
  // The queue backs up.
  const waiting = await page.$eval('tbody a[href="/queues/mail"]', (link) => {
    const row = link.closest("tr");
    const heads = [...row.closest("table").querySelectorAll("thead th")];
    return row.cells[heads.findIndex((head) => head.textContent === "Queued")].textContent;
  });
  if (waiting !== queued) throw new Error(`${waiting} tasks are queued, not ${queued}`);
  await judge("overview");
  // A row does not change while the pointer is pressed on it, and does again afterwards.
  const isNew = (looked) => document.querySelector("#live .note").textContent !== looked;
  const untilChanged = async () => {
    const looked = await page.$eval("#live .note", (note) => note.textContent);
    await page.waitForFunction(isNew, { timeout: 60_000 }, looked);
  };
  const row = 'tbody tr:has(a[href="/queues/mail"])';
  await page.locator(`${row} td:last-of-type`).hover();
  await page.mouse.down();
  const held = await page.$(row);
  const age = await held.evaluate((row) => row.innerText);
  await untilChanged();
  await untilChanged();
  if (!(await held.evaluate((row) => row.isConnected))) throw new Error(`a pressed row is replaced: ${age}`);
  await page.mouse.up();
  const isOlder = (row, age) => document.querySelector(row).innerText !== age;
  await page.waitForFunction(isOlder, { timeout: 60_000 }, row, age);
  const focused = await page.evaluate(() => document.activeElement.ariaLabel);
  if (focused !== "Queues") throw new Error(`the focus is lost to ${focused}`);
  await click('tbody a[href="/queues/mail"]');
  await judge("queue");
  // Chosen boxes stay while the page changes, and lead to a page that asks about exactly these.
  const boxes = "form.chosen tbody input";
  const isChosen = () => page.$$eval(boxes, (all) => all.filter((box) => box.checked).length);
  await press(boxes);
  await press("h1");
  await untilChanged();
  const bar = await page.$eval("form.chosen .actions", (bar) => bar.innerText);
  if ((await isChosen()) !== 1 || !bar.includes("1 chosen")) throw new Error(`a box is lost: ${bar}`);
  await press("form.chosen thead input");
  const all = await isChosen();
  if (String(all) !== queued) throw new Error(`${all} boxes are chosen, not ${queued}`);
  await Promise.all([page.waitForNavigation(), press("form.chosen button")]);
  const chosen = await words();
  if (!chosen.includes(`${queued} tasks of queue mail, chosen by hand.`)) throw new Error(chosen);
  await judge("chosen");
  await Promise.all([page.waitForNavigation(), press("main .trail a")]);
  await click('.alarms a[href="/queues/mail/dead"]');
  await judge("dead-letters");
  // The cause: one version, which the row of the group names. Its filter is a link.
  const cause = await words();
  if (!cause.includes(`${tasks} dead letters of the ${tasks}`)) throw new Error(cause);
  const rows = 'section[aria-labelledby="groups"] tbody tr';
  const groups = await page.$$eval(rows, (rows) => rows.map((row) => row.innerText));
  const found = groups.length === 1 && groups[0].match(/\bmail@[0-9a-f]{12}\b/)?.[0];
  if (found !== bad) throw new Error(`${found} is to blame, not ${bad}: ${groups}`);
  await click('section[aria-labelledby="groups"] tbody a');
  const letter = page.url();
  await click('section[aria-labelledby="tasks"] tbody a');
  await judge("task");
  await click('header a[href="/plugins"]');
  await judge("plugins");
  await click('tbody a[href="/plugins/mail"]');
  await judge("plugin");
  // The version that the dead letters name is withdrawn, and the one before comes back.
  const running = 'section[data-live="versions"] tbody th span';
  const version = await page.$eval(running, (span) => span.title);
  const [, digits] = found.split("@");
  if (!version.startsWith(digits)) throw new Error(`${version} runs, not ${digits}`);
  await click("form[action='/plugins/mail/rollback'] button");
  const swap = await words();
  if (!swap.includes(`${digits} stops, `)) throw new Error(swap);
  await judge("rollback", false);
  await page.type("#why", "it loses mail");
  await click("form[action='/plugins/mail/rollback'] button");
  // The page changes by itself.
  await page.waitForFunction(
    (running, old) => document.querySelector(running)?.title !== old,
    { timeout: 60_000 },
    running,
    version,
  );
  // Back to the letters of that cause.
  await page.goto(letter);
  await page.type("#rate", "20/s");
  await click('button[value="requeue"]');
  const count = await words();
  if (!count.includes(`${tasks} dead letters of queue mail match.`)) throw new Error(count);
  await judge("confirm");
  await click("form[action='/queues/mail/dead/requeue'] button");
  await until("the requeue", (text) => text.includes(`${tasks} dead letters are requeued`));
  await judge("requeued", false);
  await click('main a[href="/queues/mail"]');
  const backlog = lines(await words());
  if (backlog.includes("Queued\n0") || !backlog.includes("Running\n2")) throw new Error(backlog);
  console.log("requeued");
  const drained = ["Queued\n0", "Running\n0", "Dead\n0"];
  await until("the queue to drain", (text) => drained.every((part) => lines(text).includes(part)));
  const seconds = (Date.now() - from) / 1000;

  // The pages that the incident did not need.
  for (const [name, path] of [
    ["purge", "queues/reports/dead/confirm?what=purge"],
    ["drain", "queues/reports/drain"],
    ["nothing-dead", "queues/reports/dead"],
    ["hosts", "hosts"],
    ["jobs", "jobs?sort=done&order=desc"],
    ["changes", "changes"],
    ["search", "search?q=m"],
    ["missing", "queues/nothing"],
  ]) {
    await page.goto(url + path);
    await judge(name, ["drain", "hosts"].includes(name));
  }
  told.splice(0, told.length, ...told.filter((line) => !line.includes("404")));
  await page.goto(guarded);
  await judge("login");

  // The arrow keys go through the steps of a chart, and each tells its values. Longer steps are judged, too.
  await page.goto(`${url}queues/mail`);
  await page.focus(".plot");
  const readout = () => page.$eval(".readout", (line) => line.textContent);
  const last = await readout();
  await page.keyboard.press("ArrowLeft");
  const before = await readout();
  const values = /^\d\d:\d\d: [\d,]+ completed, [\d,]+ failed/;
  if (!values.test(last) || !values.test(before) || last === before) throw new Error(`${last} ${before}`);
  await page.goto(`${url}queues/mail?range=24h`);
  await judge("day", false);

  // The keyboard reaches the content first, and the switch stops the changes.
  await page.goto(url);
  await page.keyboard.press("Tab");
  const first = await page.evaluate(() => document.activeElement.textContent);
  await page.keyboard.press("?");
  const keys = await page.$eval("#keys:popover-open", (list) => list.innerText);
  if (!keys.includes("Search queues")) throw new Error(keys);
  await judge("keys", false);
  await page.keyboard.press("Escape");
  await press("#live button");
  const switched = await page.$eval("#live button", (button) => button.textContent);
  const report = { serious: [...serious], told, steps, seconds, seen, first, switched };
  console.log(JSON.stringify(report));
} finally {
  await browser.close();
}
