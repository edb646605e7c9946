// Keeps a page true while somebody looks at it. Everything works without it; with it nothing has to be loaded again.
"use strict";

(() => {
  const SLOW_EVERY = 3; // of a page that asks the store itself: every third look
  const ASK_SECONDS = 3; // between two looks when no stream can be had
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

  function look() {
    looks += 1;
    if (busy()) return;
    document.body.dispatchEvent(new CustomEvent("ropeway:tick"));
    if (looks % SLOW_EVERY === 0) document.body.dispatchEvent(new CustomEvent("ropeway:slow"));
  }

  function say(kind, words) {
    const pulse = document.querySelector("[data-pulse]");
    if (!pulse) return;
    pulse.className = `pulse ${kind}`;
    pulse.textContent = words;
  }

  let asking = null;

  function ask() {
    // No stream: a proxy that holds it back, or too many pages open. Ask now and then instead.
    if (asking === null) asking = setInterval(look, ASK_SECONDS * 1000);
    say("asking", "asking");
  }

  function listen(address) {
    const stream = new EventSource(address);
    stream.addEventListener("tick", () => {
      if (asking !== null) { clearInterval(asking); asking = null; }
      say("live", "live");
      look();
    });
    stream.addEventListener("error", () => {
      ask();
      if (stream.readyState === EventSource.CLOSED) setTimeout(() => listen(address), 15000);
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

  document.addEventListener("click", async (event) => {
    const element = event.target.closest("[data-copy]");
    if (!element || !navigator.clipboard) return;
    await navigator.clipboard.writeText(element.dataset.copy || element.textContent);
    element.title = "copied";
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

  // ── Updates leave alone what the reader has opened or written ──

  Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) =>
    !(name === "open" && node.tagName === "DETAILS") && !(name === "value" && node.matches("input[type=number]"));

  document.addEventListener("htmx:afterSettle", () => { showTimes(); showPicked(); follow(); });
  document.addEventListener("htmx:responseError", () => say("away", "store away"));
  document.addEventListener("htmx:sendError", () => say("away", "no answer"));

  const address = document.body.dataset.stream;
  if (address) {
    if (window.EventSource) listen(address); else ask();
  }
  showTimes();
  showPicked();
  follow();
  setInterval(showTimes, 1000);
})();
