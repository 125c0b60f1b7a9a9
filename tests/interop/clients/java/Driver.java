import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * The line protocol of the client drivers (README.md beside this folder): one JSON object a line, commands on
 * stdin, events on stdout. A subclass says how its client library produces, consumes and looks up.
 */
abstract class Driver {
    private static final Gson GSON = new Gson();
    private static final PrintStream OUT =
        new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);

    /** Sends one message, or one batch; emits a "sent" event for each. */
    interface Sender {
        void send(List<JsonObject> messages) throws Exception;
    }

    abstract Sender sender(String id, String namesrv, JsonObject command) throws Exception;

    abstract AutoCloseable consumer(String id, String namesrv, JsonObject command) throws Exception;

    JsonObject lookUp(String namesrv, JsonObject command) throws Exception {
        throw new UnsupportedOperationException("this client looks up no messages");
    }

    /** What takes longer than one answer; answers what "close" has to end, or null if the op is another one. */
    AutoCloseable more(String op, String id, String namesrv, JsonObject command) throws Exception {
        return null;
    }

    JsonObject other(String op, String namesrv, JsonObject command) throws Exception {
        throw new IllegalArgumentException("unknown op " + op);
    }

    static void emit(String event, String id, Object... pairs) {
        JsonObject line = new JsonObject();
        line.addProperty("event", event);
        line.addProperty("id", id);
        for (int i = 0; i < pairs.length; i += 2) {
            line.add((String) pairs[i], GSON.toJsonTree(pairs[i + 1]));
        }
        emit(line);
    }

    static void emit(JsonObject line) {
        String text = line.toString();
        synchronized (OUT) {
            OUT.println(text);
            OUT.flush();
        }
    }

    static byte[] body(JsonObject message) {
        return Base64.getDecoder().decode(message.get("body").getAsString());
    }

    static String text(JsonObject message, String name, String otherwise) {
        JsonElement value = message.get(name);
        return value == null || value.isJsonNull() ? otherwise : value.getAsString();
    }

    static int number(JsonObject message, String name, int otherwise) {
        JsonElement value = message.get(name);
        return value == null || value.isJsonNull() ? otherwise : value.getAsInt();
    }

    static boolean has(JsonObject message, String name) {
        return message.has(name) && !message.get(name).isJsonNull();
    }

    static Map<String, String> map(JsonObject owner, String name) {
        Map<String, String> values = new HashMap<>();
        if (has(owner, name)) {
            owner.getAsJsonObject(name).entrySet().forEach(e -> values.put(e.getKey(), e.getValue().getAsString()));
        }
        return values;
    }

    static String keys(JsonObject message) {
        List<String> words = new ArrayList<>();
        if (has(message, "keys")) {
            message.getAsJsonArray("keys").forEach(word -> words.add(word.getAsString()));
        }
        return String.join(" ", words);
    }

    static String sha256(byte[] body) {
        try {
            byte[] digest = MessageDigest.getInstance("SHA-256").digest(body == null ? new byte[0] : body);
            StringBuilder hex = new StringBuilder();
            for (byte b : digest) {
                hex.append(String.format("%02x", b));
            }
            return hex.toString();
        } catch (java.security.NoSuchAlgorithmException e) {
            throw new IllegalStateException(e);
        }
    }

    private void produce(String namesrv, JsonObject command) throws Exception {
        String id = command.get("id").getAsString();
        JsonArray messages = command.getAsJsonArray("messages");
        int batch = Math.max(1, number(command, "batch", 1));
        ConcurrentLinkedQueue<List<JsonObject>> work = new ConcurrentLinkedQueue<>();
        for (int i = 0; i < messages.size(); i += batch) {
            List<JsonObject> part = new ArrayList<>();
            for (int j = i; j < Math.min(i + batch, messages.size()); j++) {
                part.add(messages.get(j).getAsJsonObject());
            }
            work.add(part);
        }
        Sender sender = sender(id, namesrv, command);
        List<Thread> threads = new ArrayList<>();
        int rate = number(command, "rate", 0);
        long beganNs = System.nanoTime();
        AtomicInteger begun = new AtomicInteger();
        for (int i = 0; i < number(command, "threads", 2); i++) {
            Thread thread = new Thread(() -> {
                for (List<JsonObject> part = work.poll(); part != null; part = work.poll()) {
                    try {
                        paced(rate, begun.getAndIncrement(), beganNs);
                        routed(sender, part);
                    } catch (Throwable e) {
                        for (JsonObject message : part) {
                            String cause = e.getCause() == null ? "" : ", caused by " + e.getCause();
                            emit("send_failed", id, "n", message.get("n"), "error", e + cause);
                        }
                    }
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        emit("produced", id);
    }

    /** Waits until the time of a send has come, with so many a second; 0: at once. */
    private static void paced(int rate, int before, long beganNs) throws InterruptedException {
        if (rate > 0) {
            Thread.sleep(Math.max(0, before * 1000L / rate - (System.nanoTime() - beganNs) / 1_000_000));
        }
    }

    /** A send that could not ask for its route has sent nothing: on a machine that stood still, it asks again. */
    private static void routed(Sender sender, List<JsonObject> part) throws Exception {
        for (int left = 5; ; left--) {
            try {
                sender.send(part);
                return;
            } catch (IllegalStateException e) {  // what the client makes of a failed look-up of a route, and of it alone
                if (left == 0 || !unheard(e)) {
                    throw e;
                }
            }
        }
    }

    /** A consumer's start asks the name server once, for 3 s; on a machine that stood still, it asks again. */
    private AutoCloseable patiently(String id, String namesrv, JsonObject command) throws Exception {
        for (int left = 2; ; left--) {
            try {
                return consumer(id, namesrv, command);
            } catch (Exception e) {
                if (left == 0 || !unheard(e)) {
                    throw e;
                }
            }
        }
    }

    private static boolean unheard(Throwable e) {
        for (Throwable cause = e; cause != null; cause = cause.getCause()) {
            String name = cause.getClass().getSimpleName();
            if (name.equals("RemotingSendRequestException") || name.equals("RemotingTimeoutException")) {
                return true;
            }
        }
        return false;
    }

    void run(String namesrv) throws Exception {
        System.setOut(System.err);
        Map<String, AutoCloseable> consumers = new HashMap<>();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonObject command = JsonParser.parseString(line).getAsJsonObject();
            String op = command.get("op").getAsString();
            String id = text(command, "id", "");
            if (op.equals("quit")) {
                break;
            }
            Runnable action = () -> {
                try {
                    switch (op) {
                        case "consume":
                            AutoCloseable consumer = patiently(id, namesrv, command);
                            synchronized (consumers) {
                                consumers.put(id, consumer);
                            }
                            emit("consuming", id);
                            break;
                        case "close":
                            AutoCloseable old;
                            synchronized (consumers) {
                                old = consumers.remove(id);
                            }
                            old.close();
                            emit("closed", id);
                            break;
                        case "produce":
                            produce(namesrv, command);
                            break;
                        case "look_up":
                            JsonObject found = lookUp(namesrv, command);
                            found.addProperty("event", "looked_up");
                            found.addProperty("id", id);
                            emit(found);
                            break;
                        default:
                            AutoCloseable made = more(op, id, namesrv, command);
                            if (made != null) {
                                synchronized (consumers) {
                                    consumers.put(id, made);
                                }
                                break;
                            }
                            JsonObject answer = other(op, namesrv, command);
                            answer.addProperty("event", "done");
                            answer.addProperty("id", id);
                            emit(answer);
                    }
                } catch (Throwable e) {
                    emit("failed", id, "error", e.toString());
                }
            };
            new Thread(action, op + "-" + id).start();
        }
        for (AutoCloseable consumer : consumers.values()) {
            consumer.close();
        }
        emit("bye", "");
        System.exit(0);
    }
}
