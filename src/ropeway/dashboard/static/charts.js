// Draws how it was: rates, depth, waits and runs over time, from the samples that the store keeps.
"use strict";

(() => {
  const EVERY = 15000; // as often as there are new samples

  const CHARTS = {
    flow: { unit: "/ min", series: [["enqueued", "coming in", "--queued"], ["succeeded", "succeeded", "--succeeded"], ["failed", "failed, tried again", "--retrying"], ["dead", "died", "--dead"]] },
    depth: { unit: "jobs", series: [["waiting", "waiting", "--queued"], ["running", "running", "--running"]] },
    waits: { unit: "s", time: true, series: [["wait_p50", "half of them", "--queued"], ["wait_p95", "95 %", "--scheduled"]] },
    runs: { unit: "s", time: true, series: [["run_p50", "half of them", "--running"], ["run_p95", "95 %", "--retrying"]] },
  };

  const style = () => getComputedStyle(document.documentElement);
  const drawn = new Map();

  function seconds(value) {
    if (value === null || value === undefined) return "–";
    if (value < 1) return `${Math.round(value * 1000)} ms`;
    if (value < 120) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
    return `${Math.round(value / 60)} min`;
  }

  function figure(value) {
    if (value === null || value === undefined) return "–";
    return value >= 100 ? Math.round(value).toLocaleString("en") : String(Math.round(value * 10) / 10);
  }

  const clock = (at) => new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
  const exactClock = (at) => new Date(at * 1000).toLocaleTimeString([], { hour12: false });
  const day = (at) => new Date(at * 1000).toLocaleDateString([], { weekday: "short", day: "numeric", month: "short" });

  function options(chart, box) {
    const colours = style();
    const show = chart.time ? seconds : figure;
    const axis = { stroke: colours.getPropertyValue("--faint"), grid: { stroke: colours.getPropertyValue("--line"), width: 1 }, ticks: { show: false } };
    return {
      width: Math.max(240, box.clientWidth),
      height: 180,
      legend: { live: true },
      cursor: { points: { size: 6 } },
      scales: { y: { range: (_u, _low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [{ ...axis, values: (_u, marks, _axis, _space, step) => marks.map(step < 60 ? exactClock : step < 86400 ? clock : day) }, { ...axis, size: 62, values: (_u, marks) => marks.map(show) }],
      series: [{ label: "at", value: (_u, at) => (at === null ? "–" : `${day(at)}, ${clock(at)}`) }, ...chart.series.map(([, label, colour]) => ({ label, stroke: colours.getPropertyValue(colour), width: 2, spanGaps: Boolean(chart.time), points: { size: 4 }, value: (_u, value) => show(value) }))],
    };
  }

  function draw(box, data) {
    const chart = CHARTS[box.dataset.chart];
    const rows = [data.at, ...chart.series.map(([name]) => data[name])];
    const known = rows.slice(1).some((row) => row.some((value) => value !== null));
    box.querySelector("[data-none]").hidden = known;
    const old = drawn.get(box);
    if (old) { old.setData(rows); return; }
    if (known) drawn.set(box, new uPlot(options(chart, box), rows, box));
  }

  // What a young store knows is not squeezed to the edge of an empty picture.
  function sinceItsBeginning(data) {
    const names = Object.values(CHARTS).flatMap((chart) => chart.series.map(([name]) => name));
    const first = data.at.findIndex((_at, place) => names.some((name) => data[name][place] !== null));
    const from = Math.max(0, Math.min(first - 1, Math.floor(data.at.length * 0.8)));
    return Object.fromEntries(["at", ...names].map((name) => [name, data[name].slice(from)]));
  }

  function again() {
    for (const plot of drawn.values()) plot.destroy();
    drawn.clear();
    load();
  }

  async function load() {
    const place = document.querySelector("[data-history]");
    if (!place || document.hidden) return;
    const chosen = place.querySelector("[data-range][aria-pressed=true]");
    const reply = await fetch(`${place.dataset.history}?range=${encodeURIComponent(chosen.dataset.range)}`, { headers: { accept: "application/json" } });
    if (!reply.ok) return;
    const data = sinceItsBeginning(await reply.json());
    for (const box of place.querySelectorAll("[data-chart]")) draw(box, data);
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-range]");
    if (!button) return;
    for (const other of document.querySelectorAll("[data-range]")) other.setAttribute("aria-pressed", String(other === button));
    again();
  });

  let width = 0;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    for (const [box, plot] of drawn) plot.setSize({ width: Math.max(240, box.clientWidth), height: 180 });
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  setInterval(load, EVERY);
  load();
})();
