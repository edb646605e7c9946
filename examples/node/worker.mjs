#!/usr/bin/env node
// A Ropeway worker in plain JavaScript: Node 18.17 or later, no packages. See README.md beside it.
//
//   ROPEWAY_TOKEN=... node worker.mjs [handlers.mjs]
//
// It leases jobs with a long poll, keeps their leases alive while handlers run, and writes how each one ended. What
// it was told is no longer its own it stops and forgets. SIGTERM lets what runs finish and gives the rest back.

import { randomUUID } from 'node:crypto';
import { hostname } from 'node:os';
import { resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath, pathToFileURL } from 'node:url';

const settings = {
  url: (process.env.ROPEWAY_URL ?? 'http://127.0.0.1:8000').replace(/\/+$/, ''),
  token: process.env.ROPEWAY_TOKEN ?? '',
  queues: (process.env.QUEUES ?? 'default').split(','),
  slots: Number(process.env.SLOTS ?? 4),
  leaseSeconds: Number(process.env.LEASE_SECONDS ?? 30),
  drainSeconds: Number(process.env.DRAIN_SECONDS ?? 25),
  workerId: process.env.WORKER_ID ?? `${hostname()}-${process.pid}`,
};

const WAIT_SECONDS = 20; // of a long poll; the server cuts it at 30
const ANSWER_SECONDS = 30; // for a request, besides what it asks the server to wait
const LONGEST_PAUSE = 5; // between two tries

const say = (event, fields = {}) => console.error(JSON.stringify({ event, ...fields }));

// ── HTTP ──

/** An answer that says no: `code` is the stable name of the reason (docs/errors.md). */
class Problem extends Error {
  constructor(status, body) {
    super(body?.detail ?? `the server answered ${status}`);
    this.name = 'Problem';
    this.status = status;
    this.code = body?.code ?? 'unknown';
  }
}

/**
 * Sends a request until it is answered: a server that is away, restarts or asks for patience (429 and 503, with
 * Retry-After) is asked again. All that is sent here may be sent twice: the same token is answered alike.
 * Resolves to the body, or null for 204; rejects with a Problem, or when `signal` ends it.
 */
async function send(method, path, body, { signal, waits = 0, tries = Infinity } = {}) {
  for (let made = 1; ; made += 1) {
    const pause = Math.min(LONGEST_PAUSE, 0.1 * 2 ** (made - 1));
    const limit = AbortSignal.timeout((ANSWER_SECONDS + waits) * 1000);
    let asked = 0;
    try {
      const response = await fetch(settings.url + path, {
        method,
        headers: {
          Authorization: `Bearer ${settings.token}`,
          ...(body === undefined ? {} : { 'Content-Type': 'application/json' }),
        },
        body: body === undefined ? undefined : JSON.stringify(body),
        signal: signal ? AbortSignal.any([signal, limit]) : limit,
      });
      const text = await response.text();
      if (response.ok) return text ? JSON.parse(text) : null;
      const refusal = new Problem(response.status, parsed(text));
      if (response.status !== 429 && response.status < 500) throw refusal;
      if (made >= tries) throw refusal;
      asked = Number(response.headers.get('retry-after')) || 0;
      say('asked to wait', { path, code: refusal.code, seconds: asked });
    } catch (error) {
      if (error instanceof Problem || signal?.aborted || made >= tries) throw error;
      say('no answer', { path, error: String(error.cause?.code ?? error.message) });
    }
    // Spread, so that workers that were refused together do not come back together.
    await sleep((asked + pause * (0.5 + Math.random() / 2)) * 1000, undefined, { signal });
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

// ── One job ──

/** Why a run was stopped before its handler had ended: the reason of its AbortSignal. */
class Stopped extends Error {}
const LOST = new Stopped('the lease is lost');
const LEAVING = new Stopped('the worker stops');
const LATE = new Stopped('the job ran longer than its timeout');

/** A handler throws this when trying again is of no use: the job is dead at once. */
export class Reject extends Error {
  name = 'Reject';
}

class Run {
  constructor(lease) {
    this.job = lease.job;
    this.token = lease.lease_token;
    this.stop = new AbortController();
    this.goodUntil = performance.now() + lease.lease_seconds * 1000;
  }

  /** Calls one of the verbs that need the lease. */
  verb(verb, body = {}) {
    return send('POST', `/v1/jobs/${this.job.id}/${verb}`, { lease_token: this.token, ...body });
  }

  /** Runs the handler and writes how it ended. Never rejects. */
  async execute(handlers) {
    const { id, type, attempt } = this.job;
    say('started', { id, type, attempt });
    try {
      const [verb, body] = await this.outcome(handlers);
      if (verb === null) return;
      const answer = await this.verb(verb, body);
      say(verb, { id, type, status: answer.status });
    } catch (error) {
      // 409: the job was taken back, cancelled or has ended. Its outcome is not ours to write.
      say('not written', { id, type, code: error.code, error: error.message });
    }
  }

  async outcome(handlers) {
    const handler = handlers[this.job.type];
    if (handler === undefined) {
      return ['nack', { error: { type: 'unknown_type', message: `this worker has no handler for ${this.job.type}` } }];
    }
    const late = this.job.timeout > 0 ? setTimeout(() => this.stop.abort(LATE), this.job.timeout * 1000) : undefined;
    try {
      // A handler that does not look at ctx.signal cannot be stopped; then it is only no longer waited for.
      const result = await Promise.race([handler(this.job.payload, this.context()), rejection(this.stop.signal)]);
      return ['ack', result === undefined ? {} : { result }];
    } catch (error) {
      if (this.stop.signal.aborted) return this.stopped(this.stop.signal.reason);
      const told = { type: error?.name ?? 'Error', message: String(error?.message ?? error), traceback: error?.stack };
      return ['nack', { error: told, retry: !(error instanceof Reject) }];
    } finally {
      clearTimeout(late);
    }
  }

  stopped(reason) {
    if (reason === LEAVING) return ['release', {}];
    if (reason === LATE) return ['nack', { error: { type: 'Timeout', message: LATE.message } }];
    say('stopped', { id: this.job.id, type: this.job.type, reason: reason.message });
    return [null];
  }

  /** What a handler gets besides its payload. */
  context() {
    return {
      job: this.job,
      signal: this.stop.signal,
      progress: (done, total, message) => this.verb('progress', { done, total, message }),
      log: (message, level = 'info') => this.verb('progress', { logs: [{ message, level }] }),
    };
  }
}

const rejection = (signal) =>
  new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason), { once: true }));

// ── The worker ──

export class Worker {
  #handlers;
  #runs = new Set();
  #leaving = new AbortController();
  #quiet = false;
  // A secret of this process: whatever it holds, also by a reply that never arrived, can be given back by it.
  #owner = randomUUID();

  constructor(handlers) {
    this.#handlers = handlers;
  }

  /** Takes jobs until `leave` is called, then returns when all are finished or given back. */
  async run() {
    const beating = setInterval(() => this.#beat(), (settings.leaseSeconds / 3) * 1000);
    const reporting = setInterval(() => this.#report(), 10_000);
    try {
      await this.#report({ first: true });
      say('worker started', { worker_id: settings.workerId, queues: settings.queues });
      while (!this.#leaving.signal.aborted) await this.#fill();
      await this.#drain();
    } finally {
      clearInterval(beating);
      clearInterval(reporting);
    }
    say('worker stopped');
  }

  leave() {
    this.#leaving.abort();
  }

  /** Leases as many jobs as there are free slots, or waits for a free slot. */
  async #fill() {
    const free = settings.slots - this.#runs.size;
    try {
      if (free === 0 || this.#quiet) return await this.#oneEnds();
      const reply = await send(
        'POST',
        '/v1/lease',
        {
          queues: settings.queues,
          worker_id: settings.workerId,
          owner: this.#owner,
          count: free,
          lease_seconds: settings.leaseSeconds,
          wait: WAIT_SECONDS,
        },
        { signal: this.#leaving.signal, waits: WAIT_SECONDS },
      );
      for (const lease of reply?.leases ?? []) this.#start(new Run(lease));
    } catch (error) {
      if (!this.#leaving.signal.aborted) throw error;
    }
  }

  #start(run) {
    this.#runs.add(run);
    run.ended = run.execute(this.#handlers).finally(() => this.#runs.delete(run));
  }

  async #oneEnds() {
    const left = rejection(this.#leaving.signal);
    const pause = sleep(1000, undefined, { signal: this.#leaving.signal });
    await Promise.race([left, pause, ...[...this.#runs].map((run) => run.ended)]);
  }

  /** Keeps all leases alive with one call; what is no longer ours is stopped. */
  async #beat() {
    const runs = [...this.#runs];
    if (runs.length === 0) return;
    const items = runs.map((run) => ({
      id: run.job.id,
      lease_token: run.token,
      lease_seconds: settings.leaseSeconds,
    }));
    const sentAt = performance.now();
    try {
      const { results } = await send('POST', '/v1/leases/heartbeat', { items }, { tries: 2 });
      results.forEach((result, index) => {
        if (!result.ok) runs[index].stop.abort(LOST);
        else runs[index].goodUntil = sentAt + result.expires_in * 1000;
      });
    } catch (error) {
      say('no heartbeat', { error: error.message });
    }
    // By our own clock, which no pause of the network can hold back: somebody else may run it by now.
    for (const run of runs) if (performance.now() > run.goodUntil) run.stop.abort(LOST);
  }

  /** Tells the server that this worker is there, and hears whether it shall be quiet or stop. */
  async #report({ first = false } = {}) {
    try {
      const orders = await send(
        'PUT',
        `/v1/workers/${encodeURIComponent(settings.workerId)}`,
        {
          host: hostname(),
          pid: process.pid,
          version: `node ${process.versions.node}`,
          queues: settings.queues,
          types: Object.keys(this.#handlers),
          slots: settings.slots,
          running: this.#runs.size,
          rss_bytes: process.memoryUsage.rss(),
        },
        { tries: 1 },
      );
      this.#quiet = orders.quiet;
      if (orders.stop) this.leave();
    } catch (error) {
      if (first && (error.status === 401 || error.status === 403)) throw error;
      say('not reported', { error: error.message });
    }
  }

  async #drain() {
    say('stopping', { running: this.#runs.size });
    const over = setTimeout(() => {
      for (const run of this.#runs) run.stop.abort(LEAVING);
    }, settings.drainSeconds * 1000);
    await Promise.all([...this.#runs].map((run) => run.ended));
    clearTimeout(over);
    // The long poll that was broken off may have been granted jobs just then: none of them was started.
    await send('POST', '/v1/owners/end', { owner: this.#owner, started: [] }, { tries: 3 });
    await send('DELETE', `/v1/workers/${encodeURIComponent(settings.workerId)}`, undefined, { tries: 1 });
  }
}

// ── The program ──

async function main() {
  const here = fileURLToPath(new URL('handlers.mjs', import.meta.url));
  const { default: handlers } = await import(pathToFileURL(resolve(process.argv[2] ?? here)).href);
  const worker = new Worker(handlers);
  for (const name of ['SIGTERM', 'SIGINT']) {
    let asked = 0;
    process.on(name, () => (asked++ ? process.exit(1) : worker.leave()));
  }
  await worker.run();
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  main().then(
    () => process.exit(0), // a handler that was given up on must not keep the process
    (error) => {
      say('worker failed', { error: error.message, code: error.code });
      process.exit(1);
    },
  );
}
