// RocketMQ 5's Node client: ENDPOINTS SECONDS JOB..., see the README.
'use strict';
const { Producer, PushConsumer, SimpleConsumer, ConsumeResult } = require('rocketmq-client-nodejs');

const [ endpoints, seconds, ...names ] = process.argv.slice(2);
const until = Date.now() + Number(seconds) * 1000;
const COMMIT = 1;
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
    const shares = { transaction: Math.floor(this.count * 9 / 10), recall: this.count / 2, dead: this.count * 2 };
    return shares[this.kind] ?? this.count;
  }

  async run() {
    const common = { endpoints, namespace: '', requestTimeout: 10000, logger };
    const producer = new Producer({ ...common, topic: this.topic, checker: { check: async () => COMMIT } });
    await producer.startup();
    for (let i = 0; i < this.count; i++) await this.send(producer, i);
    const options = { ...common, consumerGroup: this.group, subscriptions: new Map().set(this.topic, '*') };
    if (this.consumer === 'push') {
      const listener = { consume: async view => {
        this.say('got', view.body.toString(), Date.now(), view.deliveryAttempt);
        this.done++;
        return this.kind === 'dead' ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
      } };
      const push = new PushConsumer({ ...options, messageListener: listener });
      await push.startup();
      while (this.done < this.wanted() && Date.now() < until) await pause(50);
      await pause(this.kind === 'dead' ? 6000 : 2000);
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
    } else if (this.kind === 'fifo') {
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
    let idle = 0;
    while (idle < 2 && Date.now() < until) {
      idle = this.done < this.wanted() ? 0 : idle + 1;
      for (const view of await simple.receive(32, 20000)) {
        const body = view.body.toString();
        this.say('got', body, Date.now(), view.deliveryAttempt);
        if (this.kind === 'dead' || this.kind === 'again' && view.deliveryAttempt === 1) {
          await simple.changeInvisibleDuration(view, 500);
          this.say('changed', body, Date.now(), 500);
          if (this.kind === 'dead') this.done++;
        } else {
          await simple.ack(view);
          this.done++;
        }
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
