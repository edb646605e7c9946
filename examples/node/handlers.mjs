// One function per type of job: it gets the payload and a context, and returns the result.

import { setTimeout as sleep } from 'node:timers/promises';

import { Reject } from './worker.mjs';

export default {
  // Pretends to send; the line is in the job's own log.
  async 'email.send'(payload, ctx) {
    if (!payload.to) throw new Reject('there is nobody to send it to');
    await ctx.log(`to ${payload.to}`);
    return { sent: true };
  },

  // Tells how far it is, and stops when it is told to.
  async sleep(payload, ctx) {
    for (let second = 0; second < payload.seconds; second += 1) {
      await ctx.progress(second, payload.seconds);
      await sleep(1000, undefined, { signal: ctx.signal });
    }
    return payload.seconds;
  },

  // Fails, whatever it is given: to see retries and a death.
  async fail(payload) {
    throw new Error(payload.message ?? 'as asked');
  },
};
