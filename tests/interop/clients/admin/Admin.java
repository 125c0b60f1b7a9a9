import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs Apache's mqadmin commands in one JVM: a line of tab-separated words in, what the command prints out, then a line
 * with a single dot.
 *
 * A command ends by waiting up to three seconds for a thread of its network client that sleeps on an empty queue; that
 * thread is woken here, or most of a run would be this wait.
 */
final class Admin {
    public static void main(String[] args) throws Exception {
        System.setProperty("rocketmq.namesrv.addr", args[0]);
        Thread command = Thread.currentThread();
        Thread waker = new Thread(() -> wakeSleepers(command), "waker");
        waker.setDaemon(true);
        waker.start();
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ByteArrayOutputStream text = new ByteArrayOutputStream();
            PrintStream captured = new PrintStream(text, true, StandardCharsets.UTF_8);
            System.setOut(captured);
            System.setErr(captured);
            String[] words = line.split("\t");
            if (words[0].equals("resumeCheckHalfMessage")) {
                resume(words[1], words[2]);
            } else {
                MQAdminStartup.main0(words, null);
            }
            captured.flush();
            out.println(text.toString(StandardCharsets.UTF_8));
            out.println(".");
        }
        System.exit(0);
    }

    /** What MQAdminExt can do and no command of mqadmin does: asks again about a transaction that was given up. */
    private static void resume(String topic, String msgId) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setInstanceName(Long.toString(System.nanoTime()));
        admin.start();
        try {
            System.out.println(admin.resumeCheckHalfMessage(topic, msgId));
        } finally {
            admin.shutdown();
        }
    }

    private static void wakeSleepers(Thread command) {
        Thread[] threads = new Thread[4096];
        while (true) {
            if (isInShutdown(command)) {
                int count = Thread.enumerate(threads);
                for (int i = 0; i < count; i++) {
                    if (threads[i].getName().startsWith("NettyEventExecutor")) {
                        threads[i].interrupt();
                    }
                }
            }
            try {
                Thread.sleep(100);
            } catch (InterruptedException ignored) {
                return;
            }
        }
    }

    private static boolean isInShutdown(Thread command) {
        for (StackTraceElement element : command.getStackTrace()) {
            if (element.getClassName().endsWith("NettyRemotingClient") && element.getMethodName().equals("shutdown")) {
                return true;
            }
        }
        return false;
    }
}
