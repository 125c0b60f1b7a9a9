import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Request-reply: sends requests and tells what came back; answers requests that a consumer has received. */
final class Requests {
    private Requests() {
    }

    /** Sends each message as a request, one after the other ("mode" sync) or all at once ("mode" async). */
    static AutoCloseable run(String id, String namesrv, JsonObject command) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(command.get("group").getAsString());
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName(id + "-" + System.nanoTime());
        producer.setSendMsgTimeout(10_000);
        producer.start();
        long timeout = Driver.number(command, "timeout_ms", 10_000);
        for (JsonElement element : command.getAsJsonArray("messages")) {
            JsonObject from = element.getAsJsonObject();
            Message message = RocketClient.message(from);
            if (Driver.text(command, "mode", "sync").equals("async")) {
                producer.request(message, new RequestCallback() {
                    @Override
                    public void onSuccess(Message reply) {
                        replied(id, from, reply);
                    }

                    @Override
                    public void onException(Throwable e) {
                        Driver.emit("unanswered", id, "n", from.get("n"), "error", e.toString());
                    }
                }, timeout);
                continue;
            }
            try {
                replied(id, from, producer.request(message, timeout));
            } catch (Exception e) {
                Driver.emit("unanswered", id, "n", from.get("n"), "error", e.toString());
            }
        }
        Driver.emit("requested", id);
        return producer::shutdown;
    }

    private static void replied(String id, JsonObject from, Message reply) {
        JsonObject line = reply instanceof MessageExt ? RocketClient.describe((MessageExt) reply) : new JsonObject();
        line.addProperty("event", "replied");
        line.addProperty("id", id);
        line.add("n", from.get("n"));
        line.addProperty("body", new String(reply.getBody(), StandardCharsets.UTF_8));
        Driver.emit(line);
    }

    /** Answers a request with a prefix and the request's own body. */
    static void reply(String id, DefaultMQProducer producer, MessageExt request, String prefix) {
        byte[] own = (prefix + new String(request.getBody(), StandardCharsets.UTF_8)).getBytes(StandardCharsets.UTF_8);
        try {
            Message reply = MessageUtil.createReplyMessage(request, own);
            SendResult result = producer.send(reply, 5_000);
            Driver.emit("answered", id, "n", request.getUserProperty("it_n"), "msg_id", result.getMsgId(),
                "status", result.getSendStatus().name(), "topic", reply.getTopic());
        } catch (Exception e) {
            Driver.emit("unanswered", id, "n", request.getUserProperty("it_n"), "error", e + ": " + e.getCause());
        }
    }
}
