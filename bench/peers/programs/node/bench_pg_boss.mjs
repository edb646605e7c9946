/* pg-boss on PostgreSQL. */

import * as kit from "./kit.mjs";

const { PgBoss } = await kit.load("pg-boss");

/** Settings by profile: of the queue, of the instance that works, and of its call to work(). */
const SETTINGS = {
  // A full batch is followed by the next one at once; one is fetched while another is reported as done.
  throughput: {
    queue: {},
    boss: {},
    work: { batchSize: 3_000, burstWhenBatchFull: true, localConcurrency: 2, pollingIntervalSeconds: 0.5 },
  },
  // A new job wakes a worker by NOTIFY instead of being found by the next poll.
  latency: {
    queue: { notify: true },
    boss: { useListenNotify: true },
    work: { batchSize: 1_000, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 },
  },
  default: { queue: {}, boss: {}, work: {} },
};

const settings = SETTINGS[kit.profile()];

const QUEUES = ["noop", "hold"];

function open(options = {}) {
  const boss = new PgBoss({ connectionString: kit.url(), ...options });
  boss.on("error", (error) => console.error(error));
  return boss;
}

class Control {
  constructor(boss) {
    this.boss = boss;
  }

  /** The instance that only sends leaves upkeep and schedules to those that work. */
  static async open() {
    return new Control(open({ max: 50, supervise: false, schedule: false }));
  }

  async setup() {
    await this.boss.start();
    for (const name of QUEUES) await this.boss.createQueue(name, settings.queue);
  }

  enqueue(index) {
    return this.boss.send("noop", { i: index, pad: kit.PAD });
  }

  enqueueMany(indexes) {
    return this.boss.insert("noop", indexes.map((i) => ({ data: { i, pad: kit.PAD } })));
  }

  enqueueHeld(index) {
    return this.boss.send("hold", { i: index });
  }

  pending() {
    return this.count("state < 'completed'");
  }

  finished() {
    return this.count("state = 'completed'");
  }

  async count(condition) {
    const text = `select count(*)::int as jobs from pgboss.job where name = any($1) and ${condition}`;
    const { rows } = await this.boss.getDb().executeSql(text, [QUEUES]);
    return rows[0].jobs;
  }

  close() {
    return this.boss.stop({ graceful: false });
  }
}

async function work() {
  const boss = open(settings.boss);
  await boss.start();
  kit.endWith(() => boss.stop());
  await boss.work("noop", settings.work, async (jobs) => {
    for (const job of jobs) kit.ran(job.data.i);
  });
  await boss.work("hold", settings.work, ([job]) => kit.hold(job.data.i));
}

await kit.main(Control.open, work);
