import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * RocketMQ 5's client: ENDPOINTS SECONDS FILE KIND/CONSUMER/COUNT/TOPIC/GROUP ... Prints a line for each event of a job.
 */
public class ProxyClient {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static final int ATTEMPTS = 3;

    final ClientConfiguration config;
    final String job, kind, consumer, topic, group;
    final int count;
    final long untilMs;
    final Path allDead;
    final AtomicInteger done = new AtomicInteger();

    ProxyClient(String endpoints, String job, long untilMs, Path allDead) {
        String[] words = job.split("/");
        this.config = ClientConfiguration.newBuilder().setEndpoints(endpoints).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(10)).build();
        this.job = job;
        this.kind = words[0];
        this.consumer = words[1];
        this.count = Integer.parseInt(words[2]);
        this.topic = words[3];
        this.group = words[4];
        this.untilMs = untilMs;
        this.allDead = allDead;
    }

    void say(String what, String body, long atMs, int attempt) {
        synchronized (System.out) {
            System.out.println(job + " " + what + " " + body + " " + atMs + " " + attempt);
        }
    }

    static String text(MessageView view) {
        ByteBuffer body = view.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }

    public static void main(String[] args) throws Exception {
        long untilMs = System.currentTimeMillis() + Long.parseLong(args[1]) * 1000;
        List<Thread> threads = new ArrayList<>();
        for (int i = 3; i < args.length; i++) {
            ProxyClient client = new ProxyClient(args[0], args[i], untilMs, Paths.get(args[2]));
            Thread thread = new Thread(() -> {
                try {
                    client.run();
                } catch (Throwable failure) {
                    client.say("failed", String.valueOf(failure).replaceAll("\\s+", "_"), 0, 0);
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        System.exit(0);
    }

    void run() throws Exception {
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(config).setTopics(topic)
            .setTransactionChecker(view -> TransactionResolution.COMMIT).build();
        for (int i = 0; i < count; i++) {
            send(producer, i);
        }
        if (consumer.equals("push")) {
            push();
        } else {
            simple();
        }
        producer.close();
    }

    FilterExpression wanted() {
        switch (kind) {
            case "tag": return new FilterExpression("tag-0 || tag-2", FilterExpressionType.TAG);
            case "sql": return new FilterExpression("n > 4 AND name IS NOT NULL", FilterExpressionType.SQL92);
            default: return FilterExpression.SUB_ALL;
        }
    }

    /** How many deliveries end a job. */
    int goal() {
        switch (kind) {
            case "tag": return (count + 2) / 3 + count / 3;
            case "sql": return count / 2;
            case "transaction": return count * 9 / 10;
            case "dead":
            case "deadfifo": return count / 10 * 9 + count / 10 * ATTEMPTS;
            default: return count;
        }
    }

    /** Whether it is a message that its consumer never takes. */
    boolean fails(String body) {
        return kind.startsWith("dead") && Integer.parseInt(body) % 10 == 0;
    }

    /**
     * Whether to go on consuming for the sake of dead letters: the proxy makes one when its message is asked for after
     * its last time. The parent creates the file when all are there.
     */
    boolean awaitsDead() {
        return kind.startsWith("dead") && !Files.exists(allDead);
    }

    void push() throws Exception {
        PushConsumer push = PROVIDER.newPushConsumerBuilder().setClientConfiguration(config).setConsumerGroup(group)
            .setSubscriptionExpressions(Collections.singletonMap(topic, wanted())).setMessageListener(view -> {
                String body = text(view);
                say("got", body, System.currentTimeMillis(), view.getDeliveryAttempt());
                done.incrementAndGet();
                return fails(body) ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            }).build();
        while (done.get() < goal() && System.currentTimeMillis() < untilMs) {
            Thread.sleep(50);
        }
        while (awaitsDead() && System.currentTimeMillis() < untilMs) {
            Thread.sleep(50);
        }
        Thread.sleep(2000); // what comes twice would come now
        push.close();
    }

    void send(Producer producer, int i) throws Exception {
        MessageBuilder builder = PROVIDER.newMessageBuilder().setTopic(topic).setTag("tag-" + i % 3)
            .addProperty("n", String.valueOf(i % 10)).addProperty("name", "a \u00fc\u4e2d " + i)
            .setBody(String.valueOf(i).getBytes(StandardCharsets.UTF_8));
        long dueMs = 0;
        if (kind.equals("delay")) {
            dueMs = System.currentTimeMillis() + 2000 + (i * 7919L) % 3000;
            builder.setDeliveryTimestamp(dueMs);
        } else if (kind.endsWith("fifo")) {
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

    void simple() throws Exception {
        SimpleConsumer simple = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(config)
            .setConsumerGroup(group).setAwaitDuration(Duration.ofSeconds(2))
            .setSubscriptionExpressions(Collections.singletonMap(topic, wanted())).build();
        boolean again = consumer.equals("again");
        int most = kind.equals("deadfifo") ? 1 : 32; // behind one that fails, nothing of its group may be here already
        int idle = 0;
        while ((idle < 2 || awaitsDead()) && System.currentTimeMillis() < untilMs) {
            idle = done.get() < goal() ? 0 : idle + 1;
            for (MessageView view : simple.receive(most, Duration.ofSeconds(20))) {
                String body = text(view);
                say("got", body, System.currentTimeMillis(), view.getDeliveryAttempt());
                if (fails(body) || again && view.getDeliveryAttempt() == 1) {
                    simple.changeInvisibleDuration(view, Duration.ofMillis(500));
                    say("changed", body, System.currentTimeMillis(), view.getDeliveryAttempt());
                } else {
                    simple.ack(view);
                }
                if (!again || view.getDeliveryAttempt() > 1) {
                    done.incrementAndGet();
                }
            }
        }
        simple.close();
    }
}
