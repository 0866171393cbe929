package baton.grammar.text;

import baton.grammar.regex.Regexes;
import baton.grammar.rule.CharSet;
import baton.grammar.rule.Expression;
import baton.grammar.rule.GrammarSource;
import baton.grammar.rule.RuleCollector;
import baton.grammar.schema.JsonSchemas;
import baton.grammar.schema.SchemaOptions;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.function.Function;
import java.util.function.Supplier;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/**
 * Reads structural tags as xgrammar has them: {@code {"format": ...}}, or the older {@code {"structures": ..., "triggers": ...}}. Free text
 * has no special tokens in it, but those that the tag names.
 */
public final class StructuralTags {
    private static final int MOST_NESTING = 64;

    private static final String TYPES =
            "const_string, json_schema, grammar, regex, any_text, token, any_tokens, sequence,"
                    + " or, optional, plus, star, repeat, tag, triggered_tags, token_triggered_tags, tags_with_separator, dispatch,"
                    + " token_dispatch";

    private final RuleCollector collector = new RuleCollector();
    private int nesting;

    private StructuralTags() {}

    /**
     * The grammar of a structural tag.
     *
     * @throws ConfigException naming a field within {@code structural_tag}
     */
    public static GrammarSource source(String json) {
        JsonFields tag = JsonFields.parse("structural_tag", json);
        StructuralTags tags = new StructuralTags();
        Expression start = tag.value("structures").isPresent()
                ? tags.structures(tag)
                : tags.format(object(tag, "format"), List.of());
        return tags.collector.source(start);
    }

    /** @param ends texts of the tag around, which end free text */
    private Expression format(JsonFields format, List<String> ends) {
        String type = string(format, "type");
        if (++nesting > MOST_NESTING) {
            throw new ConfigException(format.field("type"), "formats are nested deeper than " + MOST_NESTING);
        }
        Expression expression = switch (type) {
            case "const_string" -> Expression.text(string(format, "value"));
            case "json_schema" -> schema(format);
            case "regex" -> at(format.field("pattern"), () -> Regexes.expression(string(format, "pattern")));
            case "grammar" ->
                at(format.field("grammar"), () -> collector.add(Grammars.source(string(format, "grammar"))));
            case "any_text" -> anyText(format, ends);
            case "token" -> token(format, "token");
            case "any_tokens" -> {
                refuse(format, "max_tokens");
                yield Expression.without(ends);
            }
            case "sequence" -> new Expression.Sequence(formats(format, "elements", ends));
            case "or" -> new Expression.Choice(formats(format, "elements", ends));
            case "optional" -> Expression.optional(content(format, ends));
            case "star" -> Expression.repeat(content(format, ends), 0, Expression.Repeat.UNBOUNDED);
            case "plus" -> Expression.repeat(content(format, ends), 1, Expression.Repeat.UNBOUNDED);
            case "repeat" -> repeat(format, ends);
            case "tag" -> tag(format, "");
            case "triggered_tags" -> triggeredTags(format, ends);
            case "token_triggered_tags" -> tokenTriggeredTags(format);
            case "tags_with_separator" -> tagsWithSeparator(format);
            case "dispatch" -> dispatch(format);
            case "token_dispatch" -> tokenDispatch(format);
            default -> throw ConfigException.unsupported(format.field("type"), type, TYPES);
        };
        nesting--;
        return expression;
    }

    private List<Expression> formats(JsonFields format, String name, List<String> ends) {
        return objects(format, name).stream().map(each -> format(each, ends)).toList();
    }

    private Expression content(JsonFields format, List<String> ends) {
        return format(object(format, "content"), ends);
    }

    private Expression schema(JsonFields format) {
        String style = format.string("style").orElse("json");
        if (!style.equals("json")) {
            throw ConfigException.unsupported(format.field("style"), style, "json");
        }
        refuse(format, "max_whitespace_cnt");
        refuse(format, "excludes");
        boolean anyOrder = format.bool("any_order").orElse(false);
        return schema(format, "json_schema", anyOrder ? SchemaOptions.DEFAULT.withAnyOrder() : SchemaOptions.DEFAULT);
    }

    private Expression schema(JsonFields format, String name, SchemaOptions options) {
        JsonNode schema = format.value(name).orElseGet(() -> JsonNodeFactory.instance.objectNode());
        return at(format.field(name), () -> collector.add(JsonSchemas.source(schema, options)));
    }

    private static Expression anyText(JsonFields format, List<String> ends) {
        refuse(format, "max_tokens");
        List<String> excluded = excluded(format, ends);
        Expression text = Expression.without(excluded);
        Optional<Integer> most = format.integerAtLeast("max_chars", 0);
        if (most.isEmpty()) {
            return text;
        }
        if (most.get() > Regexes.MAX_SIZE) {
            throw new ConfigException(
                    format.field("max_chars"), "is " + most.get() + ", must be at most " + Regexes.MAX_SIZE);
        }
        Expression few = Expression.repeat(new Expression.Chars(CharSet.ALL), 0, most.get());
        return excluded.isEmpty() ? few : new Expression.And(List.of(text, few));
    }

    private static List<String> excluded(JsonFields format, List<String> ends) {
        List<String> excluded = new ArrayList<>(ends);
        excluded.addAll(format.strings("excludes").orElse(List.of()));
        return excluded;
    }

    private Expression repeat(JsonFields format, List<String> ends) {
        int least = format.integerAtLeast("min", 0).orElseThrow(() -> missing(format, "min"));
        int most = format.integerAtLeast("max", -1).orElseThrow(() -> missing(format, "max"));
        most = most < 0 ? Expression.Repeat.UNBOUNDED : most;
        if (most < least) {
            throw new ConfigException(format.field("max"), "is " + most + ", must be at least min, which is " + least);
        }
        Expression repeated = Expression.repeat(content(format, ends), least, most);
        if (repeated.size() > Regexes.MAX_SIZE) {
            throw new ConfigException(
                    format.field("max"), "repeats more than " + Regexes.MAX_SIZE + " characters if it is written out");
        }
        return repeated;
    }

    /**
     * The texts of a tag.
     *
     * @param trigger the beginning of the tag that is left out
     */
    private Expression tag(JsonFields tag, String trigger) {
        Expression begin = isString(tag, "begin")
                ? Expression.text(string(tag, "begin").substring(trigger.length()))
                : token(object(tag, "begin"), "token");
        return Expression.sequence(begin, contentAndEnd(tag));
    }

    private Expression contentAndEnd(JsonFields tag) {
        if (!isString(tag, "end") && tag.value("end").filter(JsonNode::isArray).isEmpty()) {
            return Expression.sequence(content(tag, List.of()), token(object(tag, "end"), "token"));
        }
        List<String> ends = isString(tag, "end")
                ? List.of(string(tag, "end"))
                : tag.strings("end").orElse(List.of());
        if (ends.isEmpty()) {
            throw new ConfigException(tag.field("end"), "is empty, must have an end");
        }
        List<String> stops = ends.stream().filter(end -> !end.isEmpty()).toList();
        return Expression.sequence(
                content(tag, stops),
                new Expression.Choice(ends.stream().map(Expression::text).toList()));
    }

    private Expression triggeredTags(JsonFields format, List<String> ends) {
        List<String> triggers = format.strings("triggers").orElseThrow(() -> missing(format, "triggers"));
        List<Expression> whole = new ArrayList<>();
        List<Dispatch.Case> cases = new ArrayList<>();
        for (JsonFields tag : objects(format, "tags")) {
            String begin = string(tag, "begin");
            List<String> its = triggers.stream().filter(begin::startsWith).toList();
            if (its.size() != 1) {
                throw new ConfigException(
                        tag.field("begin"),
                        "'" + begin + "' begins with " + its.size() + " of the triggers, must begin with one of them");
            }
            Expression rest = tag(tag, its.getFirst());
            cases.add(new Dispatch.Case(its.getFirst(), rest));
            whole.add(Expression.sequence(Expression.text(its.getFirst()), rest));
        }
        List<String> excluded = excluded(format, ends);
        return dispatched(format, new Expression.Choice(whole), loops -> Dispatch.cases(cases, excluded, loops));
    }

    /** The first case at once where one is wanted, and others after it unless it is to be the only one. */
    private static Expression dispatched(JsonFields format, Expression one, Function<Boolean, Expression> free) {
        boolean once = format.bool("stop_after_first").orElse(false);
        if (!format.bool("at_least_one").orElse(false)) {
            return free.apply(!once);
        }
        return once ? one : Expression.sequence(one, free.apply(true));
    }

    private Expression tokenTriggeredTags(JsonFields format) {
        Expression one = anyTag(format);
        return dispatched(format, one, loops -> freeText(one, loops));
    }

    private Expression anyTag(JsonFields format) {
        return new Expression.Choice(
                objects(format, "tags").stream().map(tag -> tag(tag, "")).toList());
    }

    /** Free text, in which a special token begins something. */
    private static Expression freeText(Expression one, boolean loops) {
        Expression each = Expression.sequence(Expression.any(), one);
        return loops
                ? Expression.sequence(Expression.repeat(each, 0, Expression.Repeat.UNBOUNDED), Expression.any())
                : Expression.choice(each, Expression.any());
    }

    private Expression tagsWithSeparator(JsonFields format) {
        Expression one = anyTag(format);
        Expression next = Expression.sequence(Expression.text(string(format, "separator")), one);
        Expression all = format.bool("stop_after_first").orElse(false)
                ? one
                : Expression.sequence(one, Expression.repeat(next, 0, Expression.Repeat.UNBOUNDED));
        return format.bool("at_least_one").orElse(false) ? all : Expression.optional(all);
    }

    private Expression dispatch(JsonFields format) {
        List<Dispatch.Case> cases = new ArrayList<>();
        for (Pair pair : pairs(format)) {
            if (!pair.pattern().isString() || pair.pattern().asString().isEmpty()) {
                throw new ConfigException(pair.field(), "must be a text that is not empty, is " + pair.pattern());
            }
            cases.add(new Dispatch.Case(pair.pattern().asString(), format(pair.format(), List.of())));
        }
        return Dispatch.cases(
                cases,
                format.strings("excludes").orElse(List.of()),
                format.bool("loop").orElse(true));
    }

    private Expression tokenDispatch(JsonFields format) {
        List<Expression> cases = new ArrayList<>();
        for (Pair pair : pairs(format)) {
            cases.add(Expression.sequence(token(pair.field(), pair.pattern()), format(pair.format(), List.of())));
        }
        return freeText(new Expression.Choice(cases), format.bool("loop").orElse(true));
    }

    /** A pattern with the format that follows it. */
    private record Pair(String field, JsonNode pattern, JsonFields format) {}

    private static List<Pair> pairs(JsonFields format) {
        List<Pair> pairs = new ArrayList<>();
        for (JsonNode rule : format.value("rules").orElseThrow(() -> missing(format, "rules"))) {
            String field = format.field("rules[" + pairs.size() + "]");
            if (rule.size() != 2 || !(rule.get(1) instanceof ObjectNode its)) {
                throw new ConfigException(field, "must be a pattern and a format, is " + rule);
            }
            pairs.add(new Pair(field + "[0]", rule.get(0), JsonFields.of(field + "[1]", its)));
        }
        return pairs;
    }

    private Expression structures(JsonFields tag) {
        List<String> triggers = tag.strings("triggers").orElseThrow(() -> missing(tag, "triggers"));
        List<Dispatch.Case> cases = new ArrayList<>();
        for (JsonFields structure : objects(tag, "structures")) {
            String begin = string(structure, "begin");
            String trigger = triggers.stream()
                    .filter(begin::startsWith)
                    .findFirst()
                    .orElseThrow(() -> new ConfigException(
                            structure.field("begin"), "'" + begin + "' begins with none of the triggers"));
            cases.add(new Dispatch.Case(
                    trigger,
                    Expression.sequence(
                            Expression.text(begin.substring(trigger.length())),
                            schema(structure, "schema", SchemaOptions.DEFAULT),
                            Expression.text(string(structure, "end")))));
        }
        return Dispatch.cases(cases, List.of(), true);
    }

    private static Expression token(JsonFields fields, String name) {
        return token(fields.field(name), fields.value(name).orElseThrow(() -> missing(fields, name)));
    }

    private static Expression token(String field, JsonNode token) {
        if (!token.isString()) {
            throw new ConfigException(field, "must be the text of a special token, is " + token);
        }
        return new Expression.SpecialToken(token.asString());
    }

    private static void refuse(JsonFields format, String name) {
        format.value(name).filter(value -> !value.isArray() || !value.isEmpty()).ifPresent(value -> {
            throw new ConfigException(format.field(name), "is not supported, is " + value);
        });
    }

    private static boolean isString(JsonFields fields, String name) {
        return fields.value(name).filter(JsonNode::isString).isPresent();
    }

    private static String string(JsonFields fields, String name) {
        return fields.string(name).orElseThrow(() -> missing(fields, name));
    }

    private static JsonFields object(JsonFields fields, String name) {
        return fields.object(name).orElseThrow(() -> missing(fields, name));
    }

    private static List<JsonFields> objects(JsonFields fields, String name) {
        return fields.objects(name).filter(all -> !all.isEmpty()).orElseThrow(() -> missing(fields, name));
    }

    private static ConfigException missing(JsonFields fields, String name) {
        return new ConfigException(fields.field(name), "is missing");
    }

    private static <T> T at(String path, Supplier<T> value) {
        try {
            return value.get();
        } catch (ConfigException e) {
            throw e.at(path);
        }
    }
}
