import com.aliyun.openservices.ons.api.Action;
import com.aliyun.openservices.ons.api.Consumer;
import com.aliyun.openservices.ons.api.Message;
import com.aliyun.openservices.ons.api.MessageAccessor;
import com.aliyun.openservices.ons.api.ONSFactory;
import com.aliyun.openservices.ons.api.Producer;
import com.aliyun.openservices.ons.api.PropertyKeyConst;
import com.aliyun.openservices.ons.api.SendResult;
import com.google.gson.JsonObject;
import java.util.Map;
import java.util.Properties;

/** Drives com.aliyun.openservices:ons-client, whose timed send is Message.setStartDeliverTime. */
final class OnsClient extends Driver {
    public static void main(String[] args) throws Exception {
        new OnsClient().run(args[0]);
    }

    private static Properties settings(String namesrv, JsonObject command) {
        Properties settings = new Properties();
        settings.setProperty(PropertyKeyConst.NAMESRV_ADDR, namesrv);
        settings.setProperty(PropertyKeyConst.GROUP_ID, command.get("group").getAsString());
        settings.setProperty(PropertyKeyConst.AccessKey, text(command, "access_key", "any"));
        settings.setProperty(PropertyKeyConst.SecretKey, text(command, "secret_key", "any"));
        settings.setProperty(PropertyKeyConst.SendMsgTimeoutMillis, "10000");
        settings.setProperty(PropertyKeyConst.InstanceName, "ons-" + System.nanoTime());
        return settings;
    }

    private static Message message(JsonObject from) {
        Message message = new Message(text(from, "topic", ""), text(from, "tag", ""), keys(from), body(from));
        map(from, "properties").forEach(message::putUserProperties);
        if (has(from, "start_deliver_ms")) {
            message.setStartDeliverTime(from.get("start_deliver_ms").getAsLong());
        }
        if (has(from, "timer_deliver_ms")) {
            message.putUserProperties("TIMER_DELIVER_MS", text(from, "timer_deliver_ms", ""));
        }
        return message;
    }

    @Override
    Sender sender(String id, String namesrv, JsonObject command) {
        Producer producer = ONSFactory.createProducer(settings(namesrv, command));
        producer.start();
        boolean oneway = text(command, "mode", "sync").equals("oneway");
        return parts -> {
            Message message = message(parts.get(0));
            int n = parts.get(0).get("n").getAsInt();
            long began = System.currentTimeMillis();
            String msgId;
            if (oneway) {
                producer.sendOneway(message);
                msgId = message.getMsgID();
            } else {
                SendResult result = producer.send(message);
                msgId = result.getMessageId();
            }
            emit("sent", id, "n", n, "began_ms", began, "ended_ms", System.currentTimeMillis(),
                "status", oneway ? "ONEWAY" : "SEND_OK", "msg_id", msgId);
        };
    }

    @Override
    AutoCloseable consumer(String id, String namesrv, JsonObject command) {
        Properties settings = settings(namesrv, command);
        settings.setProperty(PropertyKeyConst.ConsumeThreadNums, "4");
        Consumer consumer = ONSFactory.createConsumer(settings);
        Map<String, String> retries = map(command, "retries");
        for (Map.Entry<String, String> topic : map(command, "topics").entrySet()) {
            consumer.subscribe(topic.getKey(), topic.getValue(), (message, context) -> {
                long now = System.currentTimeMillis();
                received(id, message, now);
                int wanted = Integer.parseInt(retries.getOrDefault(message.getTopic(), "0"));
                return message.getReconsumeTimes() < wanted ? Action.ReconsumeLater : Action.CommitMessage;
            });
        }
        consumer.start();
        return consumer::shutdown;
    }

    private static void received(String id, Message message, long now) {
        JsonObject line = new JsonObject();
        line.addProperty("event", "received");
        line.addProperty("id", id);
        line.addProperty("received_ms", now);
        line.addProperty("topic", message.getTopic());
        line.addProperty("msg_id", message.getMsgID());
        line.addProperty("body_sha256", sha256(message.getBody()));
        line.addProperty("body_bytes", message.getBody() == null ? 0 : message.getBody().length);
        line.addProperty("tags", message.getTag());
        line.addProperty("keys", message.getKey());
        JsonObject properties = new JsonObject();
        message.getUserProperties().forEach((k, v) -> properties.addProperty("" + k, "" + v));
        line.add("properties", properties);
        JsonObject system = new JsonObject();
        MessageAccessor.getSystemProperties(message).forEach((k, v) -> system.addProperty("" + k, "" + v));
        line.add("system_properties", system);
        line.addProperty("born_ms", message.getBornTimestamp());
        line.addProperty("born_host", message.getBornHost());
        line.addProperty("start_deliver_ms", message.getStartDeliverTime());
        line.addProperty("queue_offset", message.getOffset());
        line.addProperty("partition", message.getTopicPartition().getPartition());
        line.addProperty("reconsume_times", message.getReconsumeTimes());
        emit(line);
    }
}
