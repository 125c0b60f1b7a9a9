import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** One run of RocketMQ 5's client: ENDPOINTS TOPIC GROUP KIND CONSUMER COUNT SECONDS. Prints a line for each event. */
public class ProxyClient {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    static synchronized void say(String what, String body, long atMs, int attempt) {
        System.out.println(what + " " + body + " " + atMs + " " + attempt);
    }

    static String text(MessageView view) {
        ByteBuffer body = view.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }

    public static void main(String[] args) throws Exception {
        String topic = args[1], group = args[2], kind = args[3];
        int count = Integer.parseInt(args[5]);
        long untilMs = System.currentTimeMillis() + Long.parseLong(args[6]) * 1000;
        ClientConfiguration config = ClientConfiguration.newBuilder().setEndpoints(args[0]).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(10)).build();
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(config).setTopics(topic)
            .setTransactionChecker(view -> TransactionResolution.COMMIT).build();
        for (int i = 0; i < count; i++) {
            send(producer, topic, kind, i);
        }
        AtomicInteger got = new AtomicInteger();
        Map<String, FilterExpression> all = Collections.singletonMap(topic, FilterExpression.SUB_ALL);
        if (args[4].equals("push")) {
            PushConsumer consumer = PROVIDER.newPushConsumerBuilder().setClientConfiguration(config)
                .setConsumerGroup(group).setSubscriptionExpressions(all).setMessageListener(view -> {
                    say("got", text(view), System.currentTimeMillis(), view.getDeliveryAttempt());
                    got.incrementAndGet();
                    return ConsumeResult.SUCCESS;
                }).build();
            while (got.get() < count && System.currentTimeMillis() < untilMs) {
                Thread.sleep(50);
            }
            Thread.sleep(2000); // what comes twice would come now
            consumer.close();
        } else {
            simple(config, group, all, args[4].equals("again"), count, untilMs);
        }
        producer.close();
        System.exit(0);
    }

    static void send(Producer producer, String topic, String kind, int i) throws Exception {
        MessageBuilder builder = PROVIDER.newMessageBuilder().setTopic(topic)
            .setBody(String.valueOf(i).getBytes(StandardCharsets.UTF_8));
        long dueMs = 0;
        if (kind.equals("delay")) {
            dueMs = System.currentTimeMillis() + 2000 + (i * 7919L) % 3000;
            builder.setDeliveryTimestamp(dueMs);
        } else if (kind.equals("fifo")) {
            builder.setMessageGroup("group-" + i % 7);
        }
        if (kind.equals("transaction")) {
            Transaction transaction = producer.beginTransaction();
            producer.send(builder.build(), transaction);
            if (i % 10 == 0) {
                transaction.rollback();
                say("rolledback", String.valueOf(i), 0, 0);
                return;
            }
            transaction.commit();
        } else {
            producer.send(builder.build());
        }
        say("sent", String.valueOf(i), dueMs, 0);
    }

    static void simple(ClientConfiguration config, String group, Map<String, FilterExpression> all, boolean again,
        int count, long untilMs) throws Exception {
        SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(config)
            .setConsumerGroup(group).setAwaitDuration(Duration.ofSeconds(2)).setSubscriptionExpressions(all).build();
        int acked = 0, idle = 0;
        while (idle < 2 && System.currentTimeMillis() < untilMs) {
            idle = acked < count ? 0 : idle + 1;
            for (MessageView view : consumer.receive(32, Duration.ofSeconds(20))) {
                say("got", text(view), System.currentTimeMillis(), view.getDeliveryAttempt());
                if (again && view.getDeliveryAttempt() == 1) {
                    consumer.changeInvisibleDuration(view, Duration.ofMillis(500));
                    say("changed", text(view), System.currentTimeMillis(), 1);
                } else {
                    consumer.ack(view);
                    acked++;
                }
            }
        }
        consumer.close();
    }
}
