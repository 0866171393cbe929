package baton.jinja;

import java.math.BigInteger;
import java.time.Clock;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import tools.jackson.databind.JsonNode;

/**
 * A compiled Jinja2 template, in the environment that Hugging Face's transformers give chat templates: {@code trim_blocks},
 * {@code lstrip_blocks}, {@code break} and {@code continue}, {@code {% generation %}}, {@code raise_exception},
 * {@code strftime_now}, and {@code tojson} that keeps non-ASCII characters. Immutable; may be rendered by many threads.
 *
 * <p>There is no way to load, include or import anything, to call into Java or to change a value that was handed in.
 */
public final class Template {
    /** The limit of steps of any rendering. */
    public static final long MAX_STEPS = 10_000_000;

    private static final int MAX_CHARACTERS = 16 << 20;

    private final List<Ast.Statement> body;

    private Template(List<Ast.Statement> body) {
        this.body = body;
    }

    /** @throws JinjaException if the source is not well-formed */
    public static Template compile(String source) {
        return new Template(Parser.parse(source));
    }

    /** Whether it loops over the content of messages, and so reads contents in parts, as vLLM 0.32 finds out. */
    public boolean readsContentParts() {
        return ContentLoops.are(body);
    }

    /**
     * Renders with these variables; {@code strftime_now} reads {@code clock}.
     *
     * @throws JinjaException if the template fails, calls {@code raise_exception}, takes more than ten million steps or makes a
     *     text of more than 16 Mi characters
     */
    public String render(Map<String, JsonNode> variables, Clock clock) {
        return render(variables, clock, MAX_STEPS, () -> {});
    }

    /**
     * As {@link #render(Map, Clock)}.
     *
     * @param maxSteps one for each node, element and 16 characters
     * @param watch run now and then; its exception ends the rendering
     */
    public String render(Map<String, JsonNode> variables, Clock clock, long maxSteps, Runnable watch) {
        Map<String, Value> values = new HashMap<>();
        variables.forEach((name, node) -> values.put(name, value(node)));
        RenderBudget budget = new RenderBudget(maxSteps, MAX_CHARACTERS, watch);
        return new Interpreter(budget, clock).render(body, values);
    }

    private static Value value(JsonNode node) {
        return switch (node.getNodeType()) {
            case OBJECT -> {
                Map<Value, Value> entries = new LinkedHashMap<>();
                node.properties().forEach(entry -> entries.put(Value.of(entry.getKey()), value(entry.getValue())));
                yield new Value.Dict(entries);
            }
            case ARRAY -> {
                List<Value> items = new ArrayList<>(node.size());
                node.forEach(item -> items.add(value(item)));
                yield Value.list(items);
            }
            case STRING -> Value.of(node.asString());
            case BOOLEAN -> Value.of(node.asBoolean());
            case NUMBER ->
                node.isIntegralNumber()
                        ? new Value.Int(new BigInteger(node.asString()))
                        : new Value.Real(node.asDouble());
            case NULL, MISSING -> Value.NONE;
            case BINARY, POJO -> throw new IllegalArgumentException("not JSON: node=" + node.getNodeType());
        };
    }
}
