/* The protocol of programs/kit.py for peers that run on Node: read that file first; the same words mean the same here.

    node programs/node/NAME.mjs control     answers one JSON line on standard output for each JSON line on standard input
    node programs/node/NAME.mjs work        runs the peer's worker until it is told to stop

Beside the variables of kit.py: BENCH_ENVIRONMENT, the folder in which npm put the peer's packages.

Node cannot map a file, so what ran goes to a log per process, `$BENCH_RECORD.<pid>.log`: twelve bytes for each start,
the job's index (uint32) and the time in seconds since 1970 (float64), both little endian. */

import { spawn } from "node:child_process";
import { existsSync, openSync, writeFileSync, writeSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

/** Brings a job's arguments to about 100 bytes. */
export const PAD = "x".repeat(80);

/** A held job sleeps this long when it runs for the first time: longer than any recovery is waited for. */
const HOLD_SECONDS = 3_600;

/** An asked-for end is waited for this long; a handler that never returns must not keep the process. */
const STOP_SECONDS = 5;

/** What ran is in the file after at most this long. */
const FLUSH_SECONDS = 0.01;

/** Calls of one sender that may wait for their answers at once. */
const UNDER_WAY = 500;

const ENTRY_BYTES = 12;
const ENTRIES = 4_096;

export const url = () => process.env.BENCH_URL;
export const profile = () => process.env.BENCH_PROFILE ?? "throughput";
export const processes = () => Number(process.env.BENCH_PROCESSES ?? "1");

/** Seconds since 1970, with microseconds, which Date.now() does not have. */
export const now = () => (performance.timeOrigin + performance.now()) / 1_000;

export const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1_000));

/** A package of the peer's environment. An ES module does not look at NODE_PATH, so it is resolved from there by hand. */
export function load(name) {
  const resolve = createRequire(pathToFileURL(`${process.env.BENCH_ENVIRONMENT}/package.json`)).resolve;
  return import(pathToFileURL(resolve(name)));
}

// ── what the handlers do ──

class Log {
  constructor(path) {
    this.file = openSync(path, "a");
    this.buffer = Buffer.alloc(ENTRIES * ENTRY_BYTES);
    this.used = 0;
    this.flushed = now();
    setInterval(() => this.flush(), FLUSH_SECONDS * 1_000).unref();
    process.on("exit", () => this.flush());
  }

  add(index) {
    const time = now();
    this.buffer.writeUInt32LE(index, this.used);
    this.buffer.writeDoubleLE(time, this.used + 4);
    this.used += ENTRY_BYTES;
    // A peer that is busy for long keeps the timer waiting.
    if (this.used === this.buffer.length || time - this.flushed > FLUSH_SECONDS) this.flush(time);
  }

  flush(time = now()) {
    if (this.used > 0) writeSync(this.file, this.buffer, 0, this.used);
    this.used = 0;
    this.flushed = time;
  }
}

let log = null;

/** Mark in the record that job `index` starts now. */
export function ran(index) {
  log ??= new Log(`${process.env.BENCH_RECORD}.${process.pid}.log`);
  log.add(index);
}

/** A handler that never ends when it first runs, and at once when it runs again. */
export async function hold(index) {
  ran(index);
  log.flush();
  const note = `${process.env.BENCH_RECORD}.pid`;
  if (existsSync(note)) return;
  writeFileSync(note, String(process.pid));
  await sleep(HOLD_SECONDS);
}

// ── what the harness asks for ──

/** Thrown by a control for what the peer cannot do, with the reason. */
export class Unsupported extends Error {}

async function timed(call) {
  const began = performance.now();
  const cpu = process.cpuUsage();
  await call();
  const { user, system } = process.cpuUsage(cpu);
  return { seconds: (performance.now() - began) / 1_000, cpu_seconds: (user + system) / 1e6 };
}

function single(control, { first, number, in_flight }) {
  let next = first;
  const caller = async () => {
    while (next < first + number) await control.enqueue(next++);
  };
  return timed(() => Promise.all(Array.from({ length: in_flight }, caller)));
}

function bulk(control, { first, number, batch }) {
  return timed(async () => {
    for (let start = first; start < first + number; start += batch) {
      const length = Math.min(batch, first + number - start);
      await control.enqueueMany(Array.from({ length }, (_, offset) => start + offset));
    }
  });
}

const seconds = () => performance.now() / 1_000;

async function paced(control, { first, pauses, path }) {
  await send(control, first, after(pauses), path);
  return {};
}

async function underLoad(control, { first, stages, path }) {
  const sent = stages.map(() => 0);
  await send(control, first, due(stages, sent), path);
  return { sent };
}

function* after(pauses) {
  let at = seconds();
  for (const pause of pauses) yield (at += pause);
}

function* due(stages, sent) {
  let begins = seconds();
  for (const [stage, [rate, length, jobs]] of stages.entries()) {
    const ends = begins + length;
    for (let number = 0; number < jobs; number++) {
      if (number > 0 && seconds() >= ends) break;
      sent[stage]++;
      yield begins + number / rate;
    }
    begins = ends;
  }
}

async function send(control, first, due, path) {
  const sent = [];
  let failure = null;
  let underWay = 0;
  let wake = () => {};
  const fewerThan = async (limit) => {
    while (underWay >= limit) await new Promise((resolve) => (wake = resolve));
  };
  for (const at of due) {
    const wait = at - seconds();
    if (wait > 0) await sleep(wait);
    if (underWay >= UNDER_WAY) await fewerThan(UNDER_WAY); // the store cannot keep up; the times say so
    if (failure !== null) throw failure;
    underWay++;
    control
      .enqueue(first + sent.push(now()) - 1)
      .catch((error) => (failure ??= error))
      .finally(() => (underWay--, wake()));
  }
  await fewerThan(1);
  if (failure !== null) throw failure;
  writeFileSync(path, new Float64Array(sent));
}

async function answer(control, { do: request, ...details }) {
  switch (request) {
    case "setup":
      return (await control.setup()) ?? {};
    case "single":
      return single(control, details);
    case "bulk":
      return bulk(control, details);
    case "paced":
      return paced(control, details);
    case "load":
      return underLoad(control, details);
    case "hold":
      await control.enqueueHeld(details.index);
      return {};
    case "pending":
      return { pending: await control.pending() };
    case "finished":
      return { finished: await control.finished() };
    default:
      return { error: `unknown request '${request}'` };
  }
}

async function serve(make) {
  // Libraries may print: only the harness's answers go to standard output.
  console.log = console.info = console.debug = console.error;
  const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
  const control = await make();
  say({ ready: true });
  for await (const line of createInterface({ input: process.stdin })) {
    try {
      say(await answer(control, JSON.parse(line)));
    } catch (error) {
      say(error instanceof Unsupported ? { unsupported: error.message } : { error: String(error) });
    }
  }
  await control.close();
  process.exit(0);
}

// ── workers ──

/** SIGTERM and SIGINT end this process: `stop` first, but not for longer than it may take. */
export function endWith(stop) {
  let stopping = false;
  const end = async () => {
    if (stopping) return;
    stopping = true;
    await Promise.race([stop().catch((error) => console.error(error)), sleep(STOP_SECONDS)]);
    process.exit(0);
  };
  process.on("SIGTERM", end);
  process.on("SIGINT", end);
}

/** This program, once per process; signals are handed on; ends when all have ended. */
async function fork() {
  const env = { ...process.env, BENCH_PROCESSES: "1" };
  const children = Array.from({ length: processes() }, () =>
    spawn(process.execPath, process.argv.slice(1), { env, stdio: "inherit" }),
  );
  for (const signal of ["SIGTERM", "SIGINT"]) {
    process.on(signal, () => children.forEach((child) => child.kill(signal)));
  }
  const ends = children.map((child) => new Promise((ended) => child.once("exit", (code) => ended(code ?? 1))));
  process.exit(Math.max(...(await Promise.all(ends))));
}

/** The program: `control` or `work`. */
export async function main(make, work) {
  switch (process.argv[2]) {
    case "control":
      return serve(make);
    case "work":
      return processes() > 1 ? fork() : work();
    default:
      console.error(`usage: ${process.argv[1]} control|work`);
      process.exit(2);
  }
}
