package baton.server.output;

import baton.grammar.OutputFormat;
import baton.grammar.rule.CharSet;
import baton.grammar.rule.Expression;
import baton.grammar.rule.Expression.Repeat;
import baton.grammar.rule.GrammarSource;
import baton.grammar.rule.RuleCollector;
import baton.grammar.schema.SchemaOptions;
import baton.grammar.schema.SchemaRules;
import baton.kv.ConfigException;
import java.util.List;
import java.util.Optional;
import java.util.function.Predicate;
import tools.jackson.databind.JsonNode;

/**
 * The grammar of answers that call tools in the model's own format. Arguments follow the schema of their tool, without properties that it does not
 * name. Where a schema has no grammar, those of a tool that is not strict are any object.
 */
public final class CallGrammar {
    private static final SchemaOptions OPTIONS = new SchemaOptions(false, false, Optional.of(" ?"), true);

    /** Their schemas take time. */
    private static final int MOST_TOOLS = 1000;

    /** White space, if any, before the first call. */
    private static final Expression SPACE = Expression.repeat(new Expression.Chars(CharSet.of(" \n")), 0, 2);

    private final Predicate<String> isSpecialToken;
    private final SchemaRules schemas = new SchemaRules(OPTIONS);
    private final boolean parallel;

    private CallGrammar(Predicate<String> isSpecialToken, boolean parallel) {
        this.isSpecialToken = isSpecialToken;
        this.parallel = parallel;
    }

    /**
     * The format of answers that may call these tools; empty if they are free: no call is required, no tool is strict, and the content has no format.
     *
     * @param required whether there is a call, and nothing else
     * @param parallel whether there may be several
     * @param isSpecialToken whether a text is a special token of the model
     * @param content the format of the text before calls that are not required
     * @throws ConfigException if there are too many tools; the format's grammar throws it if a strict tool's schema has no grammar
     */
    public static Optional<OutputFormat> of(
            ToolFormat format,
            List<Tool> tools,
            boolean required,
            boolean parallel,
            Predicate<String> isSpecialToken,
            Optional<OutputFormat> content) {
        if (!required && content.isEmpty() && tools.stream().noneMatch(Tool::strict)) {
            return content;
        }
        if (tools.size() > MOST_TOOLS) {
            throw new ConfigException(
                    "tools",
                    "has " + tools.size() + " tools, must have at most " + MOST_TOOLS
                            + " where calls are required, a tool is strict or the answer has a format");
        }
        List<Object> key = List.of(format, tools, required, parallel, content);
        return Optional.of(new OutputFormat.Keyed(
                key, () -> new CallGrammar(isSpecialToken, parallel).source(format, tools, required, content)));
    }

    private GrammarSource source(
            ToolFormat format, List<Tool> tools, boolean required, Optional<OutputFormat> content) {
        RuleCollector rules = new RuleCollector();
        Expression calls = format.calls(tools, this);
        Expression later = Expression.sequence(SPACE, calls);
        // White space before calls alone would decide for them, where a model writes it before all answers.
        Expression start = required
                ? later
                : content.map(other -> Expression.choice(rules.add(other.source()), calls))
                        .orElseGet(() -> Expression.sequence(format.text(this), Expression.optional(later)));
        schemas.rules().forEach(rules::add);
        return rules.source(start);
    }

    boolean isSpecialToken(String text) {
        return isSpecialToken.test(text);
    }

    /** A mark, as a token of its own where the model has it. */
    Expression mark(String mark) {
        return isSpecialToken(mark) ? new Expression.SpecialToken(mark) : Expression.text(mark);
    }

    /** Texts without a mark. */
    Expression without(String mark) {
        return isSpecialToken(mark) ? Expression.any() : Expression.without(List.of(mark));
    }

    /** Texts that do not begin with a character, nor with white space and the character. */
    static Expression notBeginningWith(char first) {
        CharSet space = CharSet.of(" \n\t\r");
        return Expression.sequence(
                Expression.repeat(new Expression.Chars(space), 0, Repeat.UNBOUNDED),
                Expression.optional(Expression.sequence(
                        new Expression.Chars(space.union(CharSet.of(first)).complement()), Expression.any())));
    }

    /** One call of any kind, or several where they may be parallel. */
    Expression calls(List<Expression> kinds, String separator) {
        Expression call = new Expression.Choice(kinds);
        return parallel
                ? Expression.sequence(
                        call,
                        Expression.repeat(Expression.sequence(Expression.text(separator), call), 0, Repeat.UNBOUNDED))
                : call;
    }

    /** A tool's arguments as a JSON object. */
    Expression arguments(Tool tool) {
        if (tool.parameters().isEmpty()) {
            return Expression.text("{}");
        }
        return value(tool, tool.parameters().get(), "")
                .orElseGet(() -> schemas.add(JsonTypes.emptyObject().put("type", "object")));
    }

    /** Any JSON value. */
    Expression anyValue() {
        return schemas.add(JsonTypes.emptyObject());
    }

    /**
     * JSON values of a schema in a tool's parameters; empty if it has no grammar and the tool is not strict.
     *
     * @param path of the schema within the parameters
     */
    Optional<Expression> value(Tool tool, JsonNode schema, String path) {
        try {
            return Optional.of(schemas.add(schema));
        } catch (ConfigException e) {
            if (tool.strict()) {
                throw e.at(tool.field() + ".parameters" + path);
            }
            return Optional.empty();
        }
    }
}
