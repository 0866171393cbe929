package baton.grammar.schema;

import baton.grammar.regex.Regexes;
import baton.grammar.rule.CharSet;
import baton.grammar.rule.Expression;
import baton.kv.ConfigException;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.function.Supplier;
import tools.jackson.databind.JsonNode;

/** Grammars of schemas, such as those of a request's tools, with common rules. One thread at a time. */
public final class SchemaRules {
    private static final int MOST_RULES = 10_000;
    private static final int MOST_BLANKS = 24;

    final SchemaOptions options;
    final Work work = new Work();
    final Expression blanks;
    final Expression comma;
    final Expression colon;
    final JsonStrings strings = new JsonStrings(CharSet.ALL, work);
    final JsonStrings otherNames = new JsonStrings(JsonStrings.NOT_PRINTABLE, work);
    final JsonStrings constrainedNames = new JsonStrings(JsonStrings.ESCAPED, work);
    final Map<String, Expression> rules = new HashMap<>();

    /** Numbers and strings that are written. */
    final Map<Object, Expression> shapes = new HashMap<>();

    /** Rules of scalars and of names of properties, so that equal ones are one. */
    private final Map<Object, Expression> shared = new HashMap<>();

    private final Map<String, StringPattern> patterns = new HashMap<>();
    private int made;

    public SchemaRules(SchemaOptions options) {
        this.options = options;
        Expression space = blanks(options);
        this.blanks = space.equals(Expression.empty()) ? space : share(space, () -> space);
        this.comma = around(",");
        this.colon = around(":");
    }

    /**
     * The documents of a schema of draft 2020-12, without white space around them.
     *
     * @throws ConfigException if a keyword cannot be decided token by token; its field begins with {@code schema}
     */
    public Expression add(JsonNode schema) {
        work.allowSchema();
        SchemaDocument document = new SchemaDocument(schema, work);
        SchemaReader reader = new SchemaReader(document, options, work, patterns);
        return new GrammarWriter(reader, this).write(Conjunction.of(document.root()));
    }

    /** The rules of all schemas until now. Their names begin with {@code json}. */
    public Map<String, Expression> rules() {
        return Collections.unmodifiableMap(rules);
    }

    Expression share(Object key, Supplier<Expression> expression) {
        Expression known = shared.get(key);
        if (known == null) {
            Expression.Rule rule = newRule(0);
            rules.put(rule.name(), expression.get());
            shared.put(key, rule);
            known = rule;
        }
        return known;
    }

    /** @param conditions of the schema that have rules */
    Expression.Rule newRule(int conditions) {
        if (conditions >= MOST_RULES) {
            throw new ConfigException(SchemaDocument.ROOT, "combines more than " + MOST_RULES + " different values");
        }
        return new Expression.Rule("json" + made++);
    }

    private Expression around(String sign) {
        return Expression.sequence(blanks, Expression.text(sign), blanks);
    }

    private static Expression blanks(SchemaOptions options) {
        if (options.disableAnyWhitespace()) {
            return Expression.empty();
        }
        try {
            // Any white space of JSON, but not without an end.
            return options.whitespacePattern()
                    .map(Regexes::expression)
                    .orElseGet(() -> Expression.repeat(new Expression.Chars(CharSet.of(" \t\r\n")), 0, MOST_BLANKS));
        } catch (ConfigException e) {
            throw e.at("whitespace_pattern");
        }
    }
}
