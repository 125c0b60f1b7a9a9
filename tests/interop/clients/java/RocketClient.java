import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

/** Drives org.apache.rocketmq:rocketmq-client, 4.9 and 5.x alike. */
final class RocketClient extends Driver {
    private final Map<String, DefaultMQProducer> producers = new HashMap<>();

    public static void main(String[] args) throws Exception {
        new RocketClient().run(args[0]);
    }

    /** Signs requests if the command has an access key; the class is not in 4.9's client, so it is called by name. */
    private static RPCHook hook(JsonObject command) throws Exception {
        if (!has(command, "access_key")) {
            return null;
        }
        Class<?> credentials = Class.forName("org.apache.rocketmq.acl.common.SessionCredentials");
        Object keys = credentials.getConstructor(String.class, String.class)
            .newInstance(text(command, "access_key", ""), text(command, "secret_key", ""));
        return (RPCHook) Class.forName("org.apache.rocketmq.acl.common.AclClientRPCHook")
            .getConstructor(credentials).newInstance(keys);
    }

    private static boolean says(JsonObject command, String name) {
        return text(command, name, "").equals("yes");
    }

    private synchronized DefaultMQProducer producer(String namesrv, String group, JsonObject command) throws Exception {
        DefaultMQProducer producer = producers.get(group);
        if (producer == null) {
            producer = new DefaultMQProducer(group, hook(command), says(command, "trace"), null);
            producer.setUseTLS(says(command, "tls"));
            producer.setNamesrvAddr(namesrv);
            producer.setSendMsgTimeout(10_000);
            producer.setHeartbeatBrokerInterval(5_000);
            producer.start();
            producers.put(group, producer);
        }
        return producer;
    }

    static Message message(JsonObject from) throws Exception {
        Message message = new Message(text(from, "topic", ""), text(from, "tag", ""), keys(from), body(from));
        for (Map.Entry<String, String> property : map(from, "properties").entrySet()) {
            message.putUserProperty(property.getKey(), property.getValue());
        }
        if (has(from, "flag")) {
            message.setFlag(number(from, "flag", 0));
        }
        if (has(from, "level")) {
            message.setDelayTimeLevel(number(from, "level", 0));
        }
        if (has(from, "start_deliver_ms")) {
            message.putUserProperty("__STARTDELIVERTIME", text(from, "start_deliver_ms", ""));
        }
        if (has(from, "timer_deliver_ms")) {
            timer(message, "setDeliverTimeMs", "TIMER_DELIVER_MS", from.get("timer_deliver_ms").getAsLong());
        }
        if (has(from, "timer_due_ms")) {
            long left = from.get("timer_due_ms").getAsLong() - System.currentTimeMillis();
            timer(message, "setDelayTimeMs", "TIMER_DELAY_MS", Math.max(0, left));
        }
        return message;
    }

    /** The timer setters came with 5.0, so they are called by name; 4.9 sets the property. */
    private static void timer(Message message, String setter, String property, long value) throws Exception {
        try {
            Message.class.getMethod(setter, long.class).invoke(message, value);
        } catch (NoSuchMethodException e) {
            message.putUserProperty(property, Long.toString(value));
        }
    }

    private static void sent(String id, int n, long began, String msgId, String offsetMsgId, SendResult result,
                             long queueOffset) {
        emit("sent", id, "n", n, "began_ms", began, "ended_ms", System.currentTimeMillis(),
            "status", result.getSendStatus().name(), "msg_id", msgId, "offset_msg_id", offsetMsgId,
            "queue_id", result.getMessageQueue().getQueueId(), "queue_offset", queueOffset,
            "broker_name", result.getMessageQueue().getBrokerName(), "region", result.getRegionId(),
            "recall_handle", recallHandle(result));
    }

    private static String recallHandle(SendResult result) {
        try {
            return (String) SendResult.class.getMethod("getRecallHandle").invoke(result);
        } catch (ReflectiveOperationException e) {
            return null; // 4.9
        }
    }

    @Override
    JsonObject other(String op, String namesrv, JsonObject command) throws Exception {
        if (!op.equals("recall")) {
            return super.other(op, namesrv, command);
        }
        DefaultMQProducer producer = producer(namesrv, "recall", command);
        JsonObject answer = new JsonObject();
        try {
            Object id = DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class)
                .invoke(producer, text(command, "topic", ""), text(command, "handle", ""));
            answer.addProperty("msg_id", (String) id);
        } catch (InvocationTargetException e) {
            answer.addProperty("error", e.getCause().toString());
        }
        return answer;
    }

    @Override
    Sender sender(String id, String namesrv, JsonObject command) throws Exception {
        DefaultMQProducer producer = producer(namesrv, command.get("group").getAsString(), command);
        boolean oneway = text(command, "mode", "sync").equals("oneway");
        boolean async = text(command, "mode", "sync").equals("async");
        boolean batch = has(command, "batch");
        return parts -> {
            List<Message> messages = new ArrayList<>();
            for (JsonObject part : parts) {
                messages.add(message(part));
            }
            long began = System.currentTimeMillis();
            if (batch) {
                SendResult result = producer.send(messages);
                String[] ids = result.getMsgId().split(",");
                String[] offsetIds = result.getOffsetMsgId().split(",");
                for (int i = 0; i < parts.size(); i++) {
                    sent(id, parts.get(i).get("n").getAsInt(), began, ids[i],
                        i < offsetIds.length ? offsetIds[i] : null, result, result.getQueueOffset() + i);
                }
                return;
            }
            Message message = messages.get(0);
            int n = parts.get(0).get("n").getAsInt();
            int queue = number(parts.get(0), "queue", -1);
            if (oneway) {
                producer.sendOneway(message);
                emit("sent", id, "n", n, "began_ms", began, "ended_ms", System.currentTimeMillis(),
                    "status", "ONEWAY", "msg_id", message.getProperty("UNIQ_KEY"));
                return;
            }
            if (async) {
                SendCallback callback = callback(id, n, began);
                if (queue < 0) {
                    producer.send(message, callback);
                } else {
                    producer.send(message, (queues, m, wanted) -> pick(queues, (Integer) wanted), queue, callback);
                }
                return;
            }
            SendResult result = queue < 0 ? producer.send(message)
                : producer.send(message, (queues, m, wanted) -> pick(queues, (Integer) wanted), queue);
            sent(id, n, began, result.getMsgId(), result.getOffsetMsgId(), result, result.getQueueOffset());
        };
    }

    private static SendCallback callback(String id, int n, long began) {
        return new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                sent(id, n, began, result.getMsgId(), result.getOffsetMsgId(), result, result.getQueueOffset());
            }

            @Override
            public void onException(Throwable e) {
                emit("send_failed", id, "n", n, "error", e.toString());
            }
        };
    }

    private static MessageQueue pick(List<MessageQueue> queues, int wanted) {
        return queues.stream().filter(queue -> queue.getQueueId() == wanted).findFirst().get();
    }

    private static String host(SocketAddress address) {
        InetSocketAddress inet = (InetSocketAddress) address;
        return inet.getAddress().getHostAddress() + ":" + inet.getPort();
    }

    static JsonObject describe(MessageExt message) {
        JsonObject seen = new JsonObject();
        seen.addProperty("topic", message.getTopic());
        seen.addProperty("msg_id", message.getMsgId());
        seen.addProperty("offset_msg_id",
            message instanceof MessageClientExt ? ((MessageClientExt) message).getOffsetMsgId() : null);
        seen.addProperty("body_sha256", sha256(message.getBody()));
        seen.addProperty("body_bytes", message.getBody() == null ? 0 : message.getBody().length);
        seen.addProperty("tags", message.getTags());
        seen.addProperty("keys", message.getKeys());
        JsonObject properties = new JsonObject();
        new HashMap<>(message.getProperties()).forEach(properties::addProperty);
        seen.add("properties", properties);
        seen.addProperty("born_ms", message.getBornTimestamp());
        seen.addProperty("born_host", host(message.getBornHost()));
        seen.addProperty("store_ms", message.getStoreTimestamp());
        seen.addProperty("store_host", host(message.getStoreHost()));
        seen.addProperty("queue_id", message.getQueueId());
        seen.addProperty("queue_offset", message.getQueueOffset());
        seen.addProperty("commit_log_offset", message.getCommitLogOffset());
        seen.addProperty("reconsume_times", message.getReconsumeTimes());
        seen.addProperty("flag", message.getFlag());
        seen.addProperty("sys_flag", message.getSysFlag());
        seen.addProperty("prepared_offset", message.getPreparedTransactionOffset());
        return seen;
    }

    /** The class of the argument has another package in 5.x than in 4.9. */
    private static void broadcasting(DefaultMQPushConsumer consumer) throws Exception {
        Method getter = DefaultMQPushConsumer.class.getMethod("getMessageModel");
        Class<?> model = getter.getReturnType();
        Object value = model.getField("BROADCASTING").get(null);
        DefaultMQPushConsumer.class.getMethod("setMessageModel", model).invoke(consumer, value);
    }

    private static MessageSelector selector(JsonObject command, String expression) {
        return says(command, "sql") ? MessageSelector.bySql(expression) : MessageSelector.byTag(expression);
    }

    private AutoCloseable litePull(String id, String namesrv, JsonObject command) throws Exception {
        DefaultLitePullConsumer consumer =
            new DefaultLitePullConsumer(command.get("group").getAsString(), hook(command));
        consumer.setUseTLS(says(command, "tls"));
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(id + "-" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        for (Map.Entry<String, String> topic : map(command, "topics").entrySet()) {
            consumer.subscribe(topic.getKey(), selector(command, topic.getValue()));
        }
        consumer.start();
        Thread poller = new Thread(() -> {
            while (consumer.isRunning()) {
                for (MessageExt message : consumer.poll(200)) {
                    received(id, message, System.currentTimeMillis());
                }
            }
        });
        poller.start();
        return () -> {
            consumer.shutdown();
            poller.join();
        };
    }

    /** The old pull consumer: the application itself asks queue after queue and keeps the offsets at the broker. */
    private AutoCloseable pull(String id, String namesrv, JsonObject command) throws Exception {
        DefaultMQPullConsumer consumer =
            new DefaultMQPullConsumer(command.get("group").getAsString(), hook(command));
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(id + "-" + System.nanoTime());
        consumer.start();
        AtomicBoolean running = new AtomicBoolean(true);
        Thread poller = new Thread(() -> {
            try {
                while (running.get()) {
                    for (Map.Entry<String, String> topic : map(command, "topics").entrySet()) {
                        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic.getKey())) {
                            pullOnce(id, consumer, queue, topic.getValue());
                        }
                    }
                    Thread.sleep(20);
                }
            } catch (Exception e) {
                emit("failed", id, "error", e.toString());
            }
        });
        poller.start();
        return () -> {
            running.set(false);
            poller.join();
            consumer.shutdown();
        };
    }

    private static void pullOnce(String id, DefaultMQPullConsumer consumer, MessageQueue queue, String tags)
        throws Exception {
        long offset = Math.max(0, consumer.fetchConsumeOffset(queue, false));
        PullResult result = consumer.pull(queue, tags, offset, 32);
        if (result.getMsgFoundList() != null) {
            result.getMsgFoundList().forEach(message -> received(id, message, System.currentTimeMillis()));
        }
        consumer.updateConsumeOffset(queue, result.getNextBeginOffset());
        consumer.getDefaultMQPullConsumerImpl().getOffsetStore().persist(queue);
    }

    @Override
    AutoCloseable consumer(String id, String namesrv, JsonObject command) throws Exception {
        if (text(command, "model", "").equals("lite-pull")) {
            return litePull(id, namesrv, command);
        }
        if (text(command, "model", "").equals("pull")) {
            return pull(id, namesrv, command);
        }
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(command.get("group").getAsString(), hook(command),
            new AllocateMessageQueueAveragely(), says(command, "trace"), null);
        consumer.setUseTLS(says(command, "tls"));
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(id + "-" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPollNameServerInterval(2_000);
        consumer.setHeartbeatBrokerInterval(5_000);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        consumer.setMaxReconsumeTimes(number(command, "max_reconsume", -1));
        if (text(command, "model", "").equals("broadcasting")) {
            broadcasting(consumer);
        }
        if (text(command, "client_rebalance", "").equals("no")) { // came with 5.0
            DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        }
        for (Map.Entry<String, String> topic : map(command, "topics").entrySet()) {
            consumer.subscribe(topic.getKey(), selector(command, topic.getValue()));
        }
        Map<String, String> retries = map(command, "retries");
        Map<String, String> forward = map(command, "forward");
        boolean brief = says(command, "brief");
        DefaultMQProducer again = forward.isEmpty() && !has(command, "reply") ? null
            : producer(namesrv, command.get("group").getAsString() + "-forward", command);
        if (text(command, "order", "no").equals("yes")) {
            consumer.setSuspendCurrentQueueTimeMillis(number(command, "suspend_ms", 1000));
            consumer.setMaxReconsumeTimes(number(command, "max_reconsume_times", -1));
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                long now = System.currentTimeMillis();
                messages.forEach(message -> received(id, message, now));
                MessageExt first = messages.get(0);
                boolean suspend = first.getReconsumeTimes() < Integer.parseInt(
                    retries.getOrDefault(first.getTopic() + "#" + first.getUserProperty("it_n"), "0"));
                return suspend ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                long now = System.currentTimeMillis();
                MessageExt message = messages.get(0);
                if (brief) {
                    briefly(id, message, now);
                } else {
                    received(id, message, now);
                }
                if (message.getReconsumeTimes() < Integer.parseInt(retries.getOrDefault(message.getTopic(), "0"))) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
                String target = forward.get(message.getTopic());
                if (target != null) {
                    forward(again, message, target);
                }
                if (has(command, "reply")) {
                    Requests.reply(id, again, message, text(command, "reply", ""));
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        try {
            consumer.start();
        } catch (Exception e) {
            consumer.shutdown();
            throw e;
        }
        return consumer::shutdown;
    }

    private static void received(String id, MessageExt message, long now) {
        JsonObject line = describe(message);
        line.addProperty("event", "received");
        line.addProperty("id", id);
        line.addProperty("received_ms", now);
        emit(line);
    }

    private static void briefly(String id, MessageExt message, long now) {
        emit("received", id, "received_ms", now, "store_ms", message.getStoreTimestamp(),
            "properties", new HashMap<>(message.getProperties()));
    }

    /** What many applications do: hand the received object itself to a producer, with all its properties. */
    private static void forward(DefaultMQProducer producer, MessageExt message, String target) {
        try {
            message.setTopic(target);
            producer.send(message);
        } catch (Exception e) {
            emit("failed", "forward", "error", e.toString());
        }
    }

    @Override
    AutoCloseable more(String op, String id, String namesrv, JsonObject command) throws Exception {
        switch (op) {
            case "transact":
                return Transactions.run(id, namesrv, command);
            case "request":
                return Requests.run(id, namesrv, command);
            default:
                return null;
        }
    }

    @Override
    JsonObject lookUp(String namesrv, JsonObject command) throws Exception {
        DefaultMQProducer producer = producer(namesrv, "look-up", command);
        String topic = command.get("topic").getAsString();
        JsonArray found = new JsonArray();
        if (has(command, "key")) {
            long until = System.currentTimeMillis() + 3_600_000;
            producer.queryMessage(topic, text(command, "key", ""), 32, 0, until).getMessageList()
                .forEach(message -> found.add(describe(message)));
        } else {
            found.add(describe(producer.viewMessage(topic, text(command, "msg_id", ""))));
        }
        JsonObject answer = new JsonObject();
        answer.add("messages", found);
        return answer;
    }
}
