// Puts in place what has changed in the page, as the host tells it. Everything works without it.
"use strict";
(() => {
  const AGAIN_MS = 3000;
  const PAUSED = "tqhost-paused";
  const place = document.getElementById("live");
  const parts = () => [...document.querySelectorAll("[data-live]")];

  // The key / leads to the search, and ? shows the keys, where nobody is typing.
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.closest("input:not([type=checkbox]), textarea, select");
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping) return;
    const box = document.querySelector("header .search input");
    if (event.key === "/" && box) {
      event.preventDefault();
      box.focus();
    } else if (event.key === "?") {
      document.getElementById("keys").togglePopover();
    }
  });
  // A list with boxes gets one for all of them, and says how many are chosen.
  const boxesOf = (form) => [...form.querySelectorAll("tbody input[type=checkbox]")];
  const count = (form) => {
    const boxes = boxesOf(form);
    const chosen = boxes.filter((box) => box.checked).length;
    const all = form.querySelector("thead input");
    all.checked = chosen > 0 && chosen === boxes.length;
    all.indeterminate = chosen > 0 && !all.checked;
    form.querySelector(".actions .note").textContent =
      chosen > 0 ? chosen + " chosen; the list stands still meanwhile:" : "With the chosen ones:";
  };
  const dressLists = () => {
    for (const form of document.querySelectorAll("form.chosen")) {
      const head = form.querySelector("th.box");
      if (!head || head.querySelector("input")) continue;
      const all = document.createElement("input");
      all.type = "checkbox";
      all.setAttribute("aria-label", "Choose all on this page");
      head.replaceChildren(all);
      count(form);
    }
  };
  document.addEventListener("change", (event) => {
    const form = event.target.closest("form.chosen");
    if (!form) return;
    const { checked } = event.target;
    if (event.target.closest("thead")) boxesOf(form).forEach((box) => { box.checked = checked; });
    count(form);
  });
  // Each chart tells the values of the step under the pointer, or of the one that the arrow keys have
  // reached.
  const stepsOf = (plot) => [...plot.querySelectorAll(".steps > *")];
  const tell = (plot, step) => {
    plot.querySelector(".steps > .at")?.classList.remove("at");
    step?.classList.add("at");
    const text = step?.querySelector("title").textContent || "";
    plot.closest(".chart").querySelector(".readout").textContent = text;
  };
  const dressCharts = () => {
    for (const plot of document.querySelectorAll(".plot")) {
      plot.tabIndex = 0;
      plot.setAttribute("role", "group");
      plot.setAttribute("aria-label", plot.dataset.chart + ": arrow keys read it, Enter opens the tasks");
    }
  };
  document.addEventListener("pointerover", (event) => {
    const plot = event.target.closest?.(".plot");
    if (plot) tell(plot, event.target.closest(".steps > *"));
  });
  document.addEventListener("focusin", (event) => {
    if (event.target.matches?.(".plot")) tell(event.target, stepsOf(event.target).at(-1));
  });
  document.addEventListener("keydown", (event) => {
    const plot = event.target;
    if (!plot.matches?.(".plot")) return;
    const steps = stepsOf(plot);
    const at = steps.findIndex((step) => step.classList.contains("at"));
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: steps.length - 1 }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      tell(plot, steps[Math.max(0, Math.min(steps.length - 1, to))]);
    } else if (event.key === "Enter" && steps[at]?.href) {
      location.assign(steps[at].getAttribute("href"));
    }
  });
  // `sent` has the parts as the host sent them last, without what this script adds to charts. A part that
  // came while the one in the page was in use waits in `late`.
  const late = new Map();
  const sent = new Map(parts().map((part) => [part.dataset.live, part.cloneNode(true)]));
  dressCharts();
  dressLists();

  // A count that has found nothing yet goes on by itself.
  const more = document.querySelector("form[data-continue]");
  if (more) {
    setTimeout(() => more.requestSubmit(), 500);
    return;
  }
  if (!place || parts().length === 0) return;

  const button = document.createElement("button");
  button.type = "button";
  const told = document.createElement("span");
  told.className = "note";
  // In this order, the button stays where it is when the words beside it change.
  place.append(told, " ", button);

  let isPaused = sessionStorage.getItem(PAUSED) === "yes";
  let source = null;
  const now = () => new Date().toISOString().slice(11, 19);
  const show = (text) => {
    button.textContent = isPaused ? "Resume updates" : "Pause updates";
    told.textContent = isPaused ? "as of " + now() : text;
  };

  // A part that somebody uses at present stays as it is: a pressed button of the mouse, a field, a chosen
  // box, a selected text, an unfolded log. A table that has been clicked has the focus, and goes on changing.
  const isInUse = (part) => {
    const at = getSelection();
    const isSelected = at && !at.isCollapsed && at.anchorNode && part.contains(at.anchorNode);
    const fields = [...part.querySelectorAll("input:not([type=checkbox]), textarea")];
    const isTyped = fields.some((field) => field.value !== field.defaultValue);
    const isUnfolded = part.querySelector("details[open], tbody input:checked");
    const focused = document.activeElement;
    const hasFocus = part.contains(focused) && focused !== part && !focused.matches(".scroll");
    return part.matches(":active") || isSelected || isTyped || isUnfolded || hasFocus;
  };

  const put = (text) => {
    const page = new DOMParser().parseFromString(text, "text/html");
    document.title = page.title;
    for (const part of parts()) {
      const name = part.dataset.live;
      // The host leaves out what it has sent before.
      const fresh = page.querySelector('[data-live="' + name + '"]') || late.get(name);
      if (fresh && isInUse(part)) late.set(name, fresh);
      if (!fresh || isInUse(part)) continue;
      late.delete(name);
      if (sent.get(name)?.isEqualNode(fresh)) continue;
      sent.set(name, fresh);
      const tables = [...part.querySelectorAll(".scroll")];
      const scrolled = tables.map((table) => table.scrollLeft);
      const focused = tables.indexOf(document.activeElement);
      part.replaceWith(document.importNode(fresh, true));
      const placed = document.querySelector('[data-live="' + name + '"]');
      placed.querySelectorAll(".scroll").forEach((table, at) => {
        table.scrollLeft = scrolled[at] || 0;
        if (at === focused) table.focus({ preventScroll: true });
      });
    }
    dressCharts();
    dressLists();
    show("live, " + now());
  };

  // A page that nobody sees listens to nothing: browsers have few connections for an address.
  const listen = () => {
    source?.close();
    source = null;
    if (isPaused || document.hidden) return;
    const url = new URL(location.href);
    url.searchParams.delete("done");
    const mine = source = new EventSource(url);
    mine.addEventListener("page", (event) => put(JSON.parse(event.data)));
    mine.addEventListener("over", () => {
      mine.close();
      isPaused = true;
      show("");
      told.textContent = "The session is over: load the page again.";
    });
    const miss = () => {
      told.textContent = "No answer since " + now() + "; still trying.";
    };
    mine.addEventListener("none", miss);
    mine.addEventListener("error", () => {
      miss();
      // The browser tries again by itself, but not after an answer that is no stream.
      if (mine.readyState === EventSource.CLOSED && source === mine) setTimeout(listen, AGAIN_MS);
    });
  };

  button.addEventListener("click", () => {
    isPaused = !isPaused;
    sessionStorage.setItem(PAUSED, isPaused ? "yes" : "no");
    show("live");
    listen();
  });
  document.addEventListener("visibilitychange", listen);
  show("live");
  listen();
})();
