// RocketMQ 5's Node client: ENDPOINTS SECONDS FILE JOB..., see the README.
'use strict';
const { existsSync } = require('node:fs');
const { Producer, PushConsumer, SimpleConsumer, ConsumeResult } = require('rocketmq-client-nodejs');

const [ endpoints, seconds, allDead, ...names ] = process.argv.slice(2);
const until = Date.now() + Number(seconds) * 1000;
const COMMIT = 1;
const ATTEMPTS = 3;
const logger = { info() {}, warn() {}, debug() {}, error: (...words) => console.error(...words) };
const pause = ms => new Promise(resolve => setTimeout(resolve, ms));

class Job {
  constructor(name) {
    this.name = name;
    [ this.kind, this.consumer, this.count, this.topic, this.group ] = name.split('/');
    this.count = Number(this.count);
    this.done = 0;
  }

  say(what, body, atMs, attempt) {
    process.stdout.write(`${this.name} ${what} ${body} ${atMs} ${attempt}\n`);
  }

  wanted() {
    if (this.kind.startsWith('dead')) return this.count / 10 * 9 + this.count / 10 * ATTEMPTS;
    const shares = { transaction: Math.floor(this.count * 9 / 10), recall: this.count / 2 };
    return shares[this.kind] ?? this.count;
  }

  /** Whether it is a message that its consumer never takes. */
  fails(body) {
    return this.kind.startsWith('dead') && Number(body) % 10 === 0;
  }

  /** Whether to go on asking, until the parent creates the file: all dead letters are there. */
  awaitsDead() {
    return this.kind.startsWith('dead') && !existsSync(allDead);
  }

  async run() {
    const common = { endpoints, namespace: '', requestTimeout: 10000, logger };
    const producer = new Producer({ ...common, topic: this.topic, checker: { check: async () => COMMIT } });
    await producer.startup();
    for (let i = 0; i < this.count; i++) await this.send(producer, i);
    const options = { ...common, consumerGroup: this.group, subscriptions: new Map().set(this.topic, '*') };
    if (this.consumer === 'push') {
      const listener = { consume: async view => {
        const body = view.body.toString();
        this.say('got', body, Date.now(), view.deliveryAttempt);
        this.done++;
        return this.fails(body) ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
      } };
      const push = new PushConsumer({ ...options, messageListener: listener });
      await push.startup();
      while ((this.done < this.wanted() || this.awaitsDead()) && Date.now() < until) await pause(50);
      await pause(2000);
      await push.shutdown();
    } else {
      await this.simple(options);
    }
    await producer.shutdown();
  }

  async send(producer, i) {
    const message = { topic: this.topic, body: Buffer.from(String(i)) };
    let dueMs = 0;
    if (this.kind === 'delay' || this.kind === 'recall') {
      dueMs = Date.now() + (this.kind === 'recall' ? 8000 : 2000 + i * 7919 % 3000);
      message.deliveryTimestamp = new Date(dueMs);
    } else if (this.kind.endsWith('fifo')) {
      message.messageGroup = `group-${i % 7}`;
    }
    if (this.kind === 'transaction') {
      const transaction = producer.beginTransaction();
      await producer.send(message, transaction);
      if (i % 10 === 0) {
        await transaction.rollback();
        this.say('rolledback', i, 0, 0);
        return;
      }
      await transaction.commit();
    } else {
      const receipt = await producer.send(message);
      if (this.kind === 'recall' && i % 2 === 0) {
        await producer.recallMessage(this.topic, receipt.recallHandle);
        this.say('recalled', i, 0, 0);
        return;
      }
    }
    this.say('sent', i, dueMs, 0);
  }

  async simple(options) {
    const simple = new SimpleConsumer({ ...options, awaitDuration: 2000 });
    await simple.startup();
    const most = this.kind === 'deadfifo' ? 1 : 32; // behind one that fails, nothing of its group may be here already
    let idle = 0;
    while ((idle < 2 || this.awaitsDead()) && Date.now() < until) {
      idle = this.done < this.wanted() ? 0 : idle + 1;
      for (const view of await simple.receive(most, 20000)) {
        const body = view.body.toString();
        this.say('got', body, Date.now(), view.deliveryAttempt);
        if (this.fails(body) || this.kind === 'again' && view.deliveryAttempt === 1) {
          await simple.changeInvisibleDuration(view, 500);
          this.say('changed', body, Date.now(), 500);
        } else {
          await simple.ack(view);
        }
        if (this.kind !== 'again' || view.deliveryAttempt > 1) this.done++;
      }
    }
    await simple.shutdown();
  }
}

Promise.all(names.map(name => {
  const job = new Job(name);
  return job.run().catch(error => {
    console.error(name, error);
    job.say('failed', error.constructor.name, 0, 0);
  });
})).then(() => process.stdout.write('', () => process.exit(0)));
