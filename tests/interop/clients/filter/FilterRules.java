import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;

/**
 * Apache's own SQL92 evaluator: a line "E" + expression in, "ok" or "bad" out; a line "P" + property text in, what the last
 * expression makes of it out (true, false, null, or error).
 */
final class FilterRules {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        Expression expression = null;
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String text = line.substring(1);
            if (line.charAt(0) == 'E') {
                try {
                    expression = FilterFactory.INSTANCE.get("SQL92").compile(text);
                    out.println("ok");
                } catch (Exception e) {
                    expression = null;
                    out.println("bad");
                }
            } else {
                out.println(evaluate(expression, text));
            }
        }
        out.flush();
    }

    private static String evaluate(Expression expression, String text) {
        Map<String, String> properties = new HashMap<>();
        for (String pair : text.split("\u0002")) {
            int at = pair.indexOf('\u0001');
            if (at > 0) {
                properties.put(pair.substring(0, at), pair.substring(at + 1));
            }
        }
        try {
            return String.valueOf(expression.evaluate(new EvaluationContext() {
                @Override
                public Object get(String name) {
                    return properties.get(name);
                }

                @Override
                public Map<String, Object> keyValues() {
                    return null;
                }
            }));
        } catch (Throwable e) {
            return "error";
        }
    }
}
