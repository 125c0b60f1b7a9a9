import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Sends messages in transactions; each message says its "outcome", and in "checks" what each check-back is told. */
final class Transactions implements TransactionListener {
    private static final String NUMBER = "it_n";
    private final String id;
    private final Map<String, JsonObject> wanted = new ConcurrentHashMap<>();
    private final Map<String, Integer> asked = new ConcurrentHashMap<>();

    private Transactions(String id) {
        this.id = id;
    }

    /** A producer that goes on answering check-backs until it is closed. */
    static AutoCloseable run(String id, String namesrv, JsonObject command) throws Exception {
        Transactions listener = new Transactions(id);
        TransactionMQProducer producer = new TransactionMQProducer(command.get("group").getAsString());
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName(id + "-" + System.nanoTime());
        producer.setSendMsgTimeout(10_000);
        producer.setHeartbeatBrokerInterval(1_000);
        producer.setTransactionListener(listener);
        JsonArray messages = command.getAsJsonArray("messages");
        for (JsonElement element : messages) {
            listener.wanted.put(element.getAsJsonObject().get("n").getAsString(), element.getAsJsonObject());
        }
        producer.start();
        for (JsonElement element : messages) {
            JsonObject from = element.getAsJsonObject();
            if (Driver.text(from, "only_checked", "no").equals("yes")) {
                continue;
            }
            try {
                TransactionSendResult result = producer.sendMessageInTransaction(RocketClient.message(from), null);
                Driver.emit("transacted", id, "n", from.get("n"), "status", result.getSendStatus().name(),
                    "state", result.getLocalTransactionState().name(), "msg_id", result.getMsgId(),
                    "transaction_id", result.getTransactionId(), "queue_offset", result.getQueueOffset(),
                    "queue_id", result.getMessageQueue().getQueueId(), "offset_msg_id", result.getOffsetMsgId());
            } catch (Exception e) {
                Driver.emit("send_failed", id, "n", from.get("n"), "error", e + ": " + e.getCause());
            }
        }
        Driver.emit("transactions", id);
        return producer::shutdown;
    }

    @Override
    public LocalTransactionState executeLocalTransaction(Message message, Object ignored) {
        return state(Driver.text(wanted.get(message.getUserProperty(NUMBER)), "outcome", "UNKNOW"));
    }

    @Override
    public LocalTransactionState checkLocalTransaction(MessageExt message) {
        String n = message.getUserProperty(NUMBER);
        int times = asked.merge(n, 1, Integer::sum);
        JsonObject line = RocketClient.describe(message);
        line.addProperty("event", "checked");
        line.addProperty("id", id);
        line.addProperty("transaction_id", message.getTransactionId());
        Driver.emit(line);
        JsonObject from = wanted.get(n);
        JsonArray answers = from == null || !from.has("checks") ? new JsonArray() : from.getAsJsonArray("checks");
        return answers.size() == 0 ? LocalTransactionState.UNKNOW
            : state(answers.get(Math.min(times, answers.size()) - 1).getAsString());
    }

    private static LocalTransactionState state(String text) {
        if (text.equals("THROW")) {
            throw new IllegalStateException("the local transaction fails, as it was told to");
        }
        return LocalTransactionState.valueOf(text);
    }
}
