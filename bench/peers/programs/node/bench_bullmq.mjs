/* BullMQ on Redis. */

import * as kit from "./kit.mjs";

const { Queue, Worker } = await kit.load("bullmq");

const QUEUE = "bench";

/** Settings by profile; what is not named keeps its default. */
const SETTINGS = {
  throughput: { concurrency: 100 },
  latency: { concurrency: 100 },
  default: {},
};

class Control {
  constructor(queue) {
    this.queue = queue;
  }

  static async open() {
    const queue = new Queue(QUEUE, { connection: { url: kit.url() } });
    await queue.waitUntilReady();
    return new Control(queue);
  }

  async setup() {}

  enqueue(index) {
    return this.queue.add("noop", { i: index, pad: kit.PAD });
  }

  enqueueMany(indexes) {
    return this.queue.addBulk(indexes.map((i) => ({ name: "noop", data: { i, pad: kit.PAD } })));
  }

  enqueueHeld(index) {
    return this.queue.add("hold", { i: index });
  }

  pending() {
    return this.queue.getJobCountByTypes("waiting", "active", "delayed", "prioritized", "paused", "failed");
  }

  finished() {
    return this.queue.getJobCountByTypes("completed");
  }

  close() {
    return this.queue.close();
  }
}

const handlers = { noop: kit.ran, hold: kit.hold };

async function work() {
  const worker = new Worker(QUEUE, async (job) => handlers[job.name](job.data.i), {
    connection: { url: kit.url(), maxRetriesPerRequest: null },
    ...SETTINGS[kit.profile()],
  });
  worker.on("error", (error) => console.error(error));
  kit.endWith(() => worker.close());
}

await kit.main(Control.open, work);
