'use strict';

// Drives ali-ons by the line protocol of the client drivers (see README.md beside this folder).

const crypto = require('crypto');
const os = require('os');
const path = require('path');
const readline = require('readline');
const { Consumer, Message, Producer } = require('ali-ons');

const namesrv = process.argv[2].split(';');
const quiet = { debug() {}, info() {}, warn() {}, error(...args) { console.error(...args); } };
const producers = new Map();
const consumers = new Map();

function emit(event, id, more) {
  process.stdout.write(JSON.stringify({ event, id, ...more }) + '\n');
}

// ali-ons asks an HTTP page for name servers unless nameSrv is set, but wants an HTTP client all the same.
const httpclient = { request() { throw new Error('no HTTP here'); } };

function settings(command, more) {
  return {
    httpclient,
    nameSrv: namesrv,
    accessKeyId: command.access_key || 'any',
    accessKeySecret: command.secret_key || 'any',
    logger: quiet,
    logDir: path.join(os.homedir(), 'ali-ons'),
    ...more,
  };
}

async function producer(command) {
  const group = command.group;
  if (!producers.has(group)) {
    const made = new Producer(settings(command, { producerGroup: group, sendMsgTimeout: 20000 }));
    made.on('error', err => console.error('producer:', err.message));
    producers.set(group, made.ready().then(() => made));
  }
  return producers.get(group);
}

function message(from) {
  const made = new Message(from.topic, from.tag || null, Buffer.from(from.body, 'base64'));
  if (!from.tag) delete made.properties.TAGS;
  if (from.keys && from.keys.length) made.keys = from.keys;
  Object.assign(made.properties, from.properties || {});
  if (from.flag) made.flag = from.flag;
  if (from.level) made.delayTimeLevel = from.level;
  if (from.start_deliver_ms) made.setStartDeliverTime(from.start_deliver_ms);
  if (from.timer_deliver_ms) made.properties.TIMER_DELIVER_MS = String(from.timer_deliver_ms);
  return made;
}

async function produce(command) {
  const sender = await producer(command);
  const work = command.messages.slice();
  async function worker() {
    for (let from = work.shift(); from; from = work.shift()) {
      const began = Date.now();
      try {
        const result = await sender.send(message(from));
        emit('sent', command.id, {
          n: from.n, began_ms: began, ended_ms: Date.now(), status: result.sendStatus, msg_id: result.msgId,
          offset_msg_id: result.msgId, queue_id: Number(result.messageQueue.queueId),
          queue_offset: Number(result.queueOffset), broker_name: result.messageQueue.brokerName,
        });
      } catch (err) {
        emit('send_failed', command.id, { n: from.n, error: String(err) });
      }
    }
  }
  await Promise.all(Array.from({ length: command.threads || 2 }, worker));
  emit('produced', command.id, {});
}

async function consume(command) {
  const made = new Consumer(settings(command, {
    consumerGroup: command.group,
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
    maxReconsumeTimes: command.max_reconsume === undefined ? 16 : command.max_reconsume,
    rebalanceInterval: 2000,
    pollNameServerInteval: 2000,
    heartbeatBrokerInterval: 5000,
    parallelConsumeLimit: 8,
  }));
  made.on('error', err => console.error('consumer:', err.message));
  for (const [ topic, expression ] of Object.entries(command.topics)) {
    made.subscribe(topic, expression, async msg => {
      const now = Date.now();
      const properties = Object.fromEntries(Object.entries(msg.properties).filter(([ k, v ]) => k && v !== null));
      emit('received', command.id, {
        received_ms: now, topic: msg.topic, msg_id: msg.msgId, offset_msg_id: msg.msgId,
        body_sha256: crypto.createHash('sha256').update(msg.body || Buffer.alloc(0)).digest('hex'),
        body_bytes: (msg.body || '').length, tags: msg.tags, keys: msg.keys, properties,
        born_ms: msg.bornTimestamp, born_host: msg.bornHost, store_ms: msg.storeTimestamp,
        store_host: msg.storeHost, queue_id: msg.queueId, queue_offset: msg.queueOffset,
        commit_log_offset: msg.commitLogOffset, reconsume_times: msg.reconsumeTimes, flag: msg.flag,
        sys_flag: msg.sysFlag, prepared_offset: msg.preparedTransactionOffset,
      });
      if (msg.reconsumeTimes < Number((command.retries || {})[topic] || 0)) return Consumer.ACTION_RETRY;
    });
  }
  await made.ready();
  consumers.set(command.id, made);
  emit('consuming', command.id, {});
}

const actions = {
  produce,
  consume,
  async close(command) {
    await consumers.get(command.id).close();
    emit('closed', command.id, {});
  },
};

readline.createInterface({ input: process.stdin }).on('line', line => {
  const command = JSON.parse(line);
  if (command.op === 'quit') {
    process.exit(0);
  }
  const action = actions[command.op] || (async () => { throw new Error('unknown op ' + command.op); });
  action(command).catch(err => emit('failed', command.id, { error: String(err && err.stack || err) }));
}).on('close', () => process.exit(0));
