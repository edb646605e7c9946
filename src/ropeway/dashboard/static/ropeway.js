// Keeps a page true while somebody looks at it. Everything works without it; with it nothing has to be loaded again.
"use strict";

(() => {
  const SLOW_EVERY = 3; // of a page that asks the store itself: every third look
  const ASK_MS = 3000; // between two looks when no stream can be had
  const SILENT_MS = 12000; // a stream that works says something every five seconds
  let looks = 0;
  let leaving = false; // a form was sent: what the next page is to say must not be fetched by this one

  // ── Times ──

  const UNITS = [["d", 86400], ["h", 3600], ["min", 60]];

  function roughly(seconds) {
    for (const [unit, size] of UNITS) if (seconds >= size) return `${Math.round(seconds / size)} ${unit}`;
    return `${Math.round(seconds)} s`;
  }

  function relative(at) {
    const away = (at - Date.now()) / 1000;
    if (Math.abs(away) < 1) return "now";
    return away > 0 ? `in ${roughly(away)}` : `${roughly(-away)} ago`;
  }

  function showTimes() {
    for (const element of document.querySelectorAll("time[data-relative]")) {
      const words = relative(Date.parse(element.dateTime));
      if (element.textContent !== words) element.textContent = words;
    }
  }

  // ── Looks ──

  function busy() {
    // Whoever picks rows or writes into the table must not have it changed under their hands.
    const active = document.activeElement;
    const writing = active && active.closest("#live") && active.matches("input:not([type=checkbox]), select, textarea");
    return document.hidden || leaving || writing || document.querySelector("[data-pick]:checked") !== null;
  }

  function look(atAll = false) {
    looks += 1;
    if (busy()) return;
    document.body.dispatchEvent(new CustomEvent("ropeway:tick"));
    if (atAll || looks % SLOW_EVERY === 0) document.body.dispatchEvent(new CustomEvent("ropeway:slow"));
  }

  function say(kind, words) {
    const pulse = document.querySelector("[data-pulse]");
    if (!pulse) return;
    pulse.className = `pulse ${kind}`;
    pulse.textContent = words;
  }

  // ── The stream tells of each look at the store; while it says nothing the page asks by itself ──

  const address = document.body.dataset.stream;
  let stream = null;
  let opened = -Infinity; // when it was opened, and when it last said anything
  let heard = -Infinity;

  function hangUp() {
    if (stream !== null) stream.close();
    stream = null;
  }

  function hear() {
    heard = performance.now();
    say("live", "live");
  }

  function listen() {
    hangUp();
    opened = performance.now();
    stream = new EventSource(address);
    stream.addEventListener("tick", () => { hear(); look(); });
    stream.addEventListener("still", hear);
    stream.addEventListener("error", () => { heard = -Infinity; say("asking", "asking"); });
  }

  function watch() {
    // Only its silence tells that a proxy holds a stream back, or that its other end has gone.
    const now = performance.now();
    if (document.hidden || now - heard < SILENT_MS) return;
    say("asking", "asking");
    look(true);
    if (now - opened >= SILENT_MS) listen();
  }

  function keepUp() {
    setInterval(watch, ASK_MS);
    if (!document.hidden) listen();
    // Browsers allow six connections to a host, for all tabs together: one that nobody sees holds none.
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) { hangUp(); return; }
      listen();
      look(true);
    });
  }

  // ── Picking rows: those of one table belong to one form, and so do its buttons ──

  const rows = (form) => [...document.querySelectorAll("[data-pick]")].filter((box) => box.getAttribute("form") === form);
  const picked = (form) => rows(form).filter((box) => box.checked).length;

  function showPicked() {
    for (const count of document.querySelectorAll("[data-picked-count]")) count.textContent = picked(count.dataset.pickedCount) || "none";
    for (const button of document.querySelectorAll("[data-needs-pick]")) button.disabled = picked(button.getAttribute("form")) === 0;
    for (const box of document.querySelectorAll("[data-pick-all]")) {
      const some = picked(box.dataset.pickAll), all = rows(box.dataset.pickAll).length;
      box.checked = some > 0 && some === all;
      box.indeterminate = some > 0 && some < all;
    }
  }

  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-pick-all]")) {
      for (const box of rows(event.target.dataset.pickAll)) box.checked = event.target.checked;
    }
    if (event.target.matches("[data-pick], [data-pick-all]")) showPicked();
  });

  document.addEventListener("submit", (event) => { leaving = !event.defaultPrevented; });
  window.addEventListener("pageshow", () => { leaving = false; });

  // ── Copying what stands in the element that a button names ──

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const source = document.getElementById(button.dataset.copy);
    const answer = button.nextElementSibling;
    answer.textContent = "";
    try {
      // Over plain HTTP, and where the browser does not allow it, there is no clipboard for us.
      await navigator.clipboard.writeText(source.textContent);
      answer.textContent = "Copied.";
    } catch {
      getSelection().selectAllChildren(source);
      answer.textContent = "Selected: copy it with the keyboard.";
    }
  });

  // ── A log is followed by whoever has not scrolled away from its end ──

  const log = () => document.querySelector("[data-follow]");
  let atEnd = true;

  document.addEventListener("scroll", (event) => {
    if (event.target === log()) atEnd = event.target.scrollHeight - event.target.scrollTop - event.target.clientHeight < 8;
  }, true);

  function follow() {
    const followed = log();
    if (followed && atEnd) followed.scrollTop = followed.scrollHeight;
  }

  // ── Updates leave alone what the reader has opened or written, and where they are ──

  Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) =>
    !(name === "open" && node.tagName === "DETAILS") &&
    !(name === "value" && node.matches("input[type=number]")) &&
    !(name === "disabled" && node.matches("[data-needs-pick]"));

  // A part that updates itself asks for the page's own address: with its anchor, htmx would go there each time.
  document.addEventListener("htmx:configRequest", (event) => { event.detail.path = event.detail.path.split("#")[0]; });

  document.addEventListener("htmx:afterSettle", () => { showTimes(); showPicked(); follow(); });
  document.addEventListener("htmx:responseError", () => say("away", "store away"));
  document.addEventListener("htmx:sendError", () => say("away", "no answer"));

  for (const button of document.querySelectorAll("[data-copy]")) button.hidden = false;
  if (address) keepUp();
  showTimes();
  showPicked();
  follow();
  setInterval(showTimes, 1000);
})();
