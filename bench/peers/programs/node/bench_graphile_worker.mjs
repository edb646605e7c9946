/* graphile-worker on PostgreSQL. Its jobs are rows that it deletes when they are done: it keeps no history. */

import * as kit from "./kit.mjs";

const { Logger, makeWorkerUtils, run } = await kit.load("graphile-worker");

const JOBS = "graphile_worker._private_jobs";

const quiet = new Logger(() => (level, message) => {
  if (level === "error" || level === "warning") console.error(message);
});

/** Settings by profile; what is not named keeps its default. */
const SETTINGS = {
  // Jobs are fetched 8,000 at a time (2,000: a quarter slower; 500: a third as fast) and reported as done together with all that ended in the same turn of the loop.
  throughput: {
    concurrentJobs: 24,
    maxPoolSize: 25,
    localQueue: { size: 8_000 },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
  },
  // A worker that asks for itself runs a job sooner than a local queue that is filled first.
  latency: { concurrentJobs: 24, maxPoolSize: 25 },
  default: {},
};

class Control {
  constructor(utils) {
    this.utils = utils;
    this.doneUpTo = 0;
  }

  static async open() {
    const preset = { worker: { connectionString: kit.url(), logger: quiet } };
    return new Control(await makeWorkerUtils({ preset }));
  }

  setup() {
    return this.utils.migrate();
  }

  enqueue(index) {
    return this.utils.addJob("noop", { i: index, pad: kit.PAD });
  }

  enqueueMany(indexes) {
    return this.utils.addJobs(indexes.map((i) => ({ identifier: "noop", payload: { i, pad: kit.PAD } })));
  }

  enqueueHeld(index) {
    return this.utils.addJob("hold", { i: index });
  }

  /** Only ids above the last one known to be done are counted: dead rows of earlier rounds would make it slow. */
  async pending() {
    const { rows } = await this.query(
      `select count(*)::int as jobs, pg_sequence_last_value(pg_get_serial_sequence('${JOBS}', 'id')) as newest
         from ${JOBS} where id > $1`,
      [this.doneUpTo],
    );
    const [{ jobs, newest }] = rows;
    if (jobs === 0 && newest !== null) this.doneUpTo = newest;
    return jobs;
  }

  async finished() {
    return null;
  }

  close() {
    return this.utils.release();
  }

  query(text, values) {
    return this.utils.withPgClient((client) => client.query(text, values));
  }
}

async function work() {
  const runner = await run({
    preset: { worker: { connectionString: kit.url(), logger: quiet, ...SETTINGS[kit.profile()] } },
    taskList: {
      noop: ({ i }) => kit.ran(i),
      hold: ({ i }) => kit.hold(i),
    },
    noHandleSignals: true,
  });
  kit.endWith(() => runner.stop());
  await runner.promise;
}

await kit.main(Control.open, work);
