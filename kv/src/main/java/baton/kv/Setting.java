package baton.kv;

import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.JsonNodeFactory;

/**
 * A key of a configuration in JSON. From a list of them unknown keys are reported, absent ones get their values ({@link
 * JsonFields#withDefaults}), and docs/configuration.md is written.
 *
 * @param name the key; of a key in an object in it, its path
 * @param value of an absent key; empty if it is not the same everywhere
 * @param byDefault the same in words
 * @param meaning in one sentence, in Markdown
 */
public record Setting(String name, Optional<JsonNode> value, String byDefault, String meaning) {
    public static Setting of(String name, String value, String meaning) {
        return of(name, JsonNodeFactory.instance.stringNode(value), meaning);
    }

    public static Setting of(String name, long value, String meaning) {
        return of(name, JsonNodeFactory.instance.numberNode(value), meaning);
    }

    public static Setting of(String name, boolean value, String meaning) {
        return of(name, JsonNodeFactory.instance.booleanNode(value), meaning);
    }

    private static Setting of(String name, JsonNode value, String meaning) {
        return new Setting(name, Optional.of(value), "`" + value + "`", meaning);
    }

    /** A key without a constant default: its absence is a value of its own, or something else decides, as {@code byDefault} says. */
    public static Setting absent(String name, String byDefault, String meaning) {
        return new Setting(name, Optional.empty(), byDefault, meaning);
    }

    /** The same as a key of an object at {@code path}. */
    public Setting within(String path) {
        return new Setting(path + "." + name, value, byDefault, meaning);
    }

    /** The keys of the outermost object, in order. */
    public static Set<String> names(Collection<Setting> settings) {
        return settings.stream()
                .map(setting -> setting.name.split("[.\\[]", 2)[0])
                .collect(Collectors.toCollection(LinkedHashSet::new));
    }

    /** Lists one after the other. */
    @SafeVarargs
    public static List<Setting> join(List<Setting>... lists) {
        List<Setting> all = new ArrayList<>();
        for (List<Setting> list : lists) {
            all.addAll(list);
        }
        return List.copyOf(all);
    }

    /** A list with other lists' settings as keys of objects in it. */
    public static List<Setting> within(String path, List<Setting> settings) {
        return settings.stream().map(setting -> setting.within(path)).toList();
    }
}
