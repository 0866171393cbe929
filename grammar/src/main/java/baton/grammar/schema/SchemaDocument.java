package baton.grammar.schema;

import baton.kv.ConfigException;
import java.net.URI;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Pattern;
import org.jspecify.annotations.Nullable;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.StringNode;

/** The schemas of a document, and the references between them. */
final class SchemaDocument {
    static final String ROOT = "schema";

    private static final int MOST_NESTED = 64;
    private static final Pattern NAME = Pattern.compile("[A-Za-z0-9_$-]+");
    private static final Set<String> HAS_SCHEMA = Set.of(
            "additionalItems",
            "additionalProperties",
            "contains",
            "else",
            "if",
            "items",
            "not",
            "propertyNames",
            "then",
            "unevaluatedItems",
            "unevaluatedProperties");
    private static final Set<String> HAS_LIST = Set.of("allOf", "anyOf", "items", "oneOf", "prefixItems");
    private static final Set<String> HAS_MAP =
            Set.of("$defs", "definitions", "dependentSchemas", "patternProperties", "properties");

    private final Work work;
    private final SchemaNode root;
    private final Map<String, SchemaNode> byPath = new HashMap<>();

    /** Documents within the document, by their URIs, and anchors, by their URIs with a fragment. */
    private final Map<String, SchemaNode> byUri = new HashMap<>();

    private final Set<String> repeatedAnchors = new HashSet<>();
    private final Set<String> dynamicAnchors = new HashSet<>();

    SchemaDocument(JsonNode json, Work work) {
        this.work = work;
        this.root = add(ROOT, json, URI.create(""), 0);
        byUri.putIfAbsent("", root);
    }

    SchemaNode root() {
        return root;
    }

    /** The schema in a field of a schema. */
    SchemaNode child(SchemaNode schema, String keyword) {
        return known(field(schema.path(), keyword), schema.json().get(keyword), schema.base());
    }

    /** The schema with a name in a field of a schema. */
    SchemaNode child(SchemaNode schema, String keyword, String name) {
        JsonNode json = schema.json().get(keyword).get(name);
        return known(field(field(schema.path(), keyword), name), json, schema.base());
    }

    /** The schema at a position in a field of a schema. */
    SchemaNode child(SchemaNode schema, String keyword, int position) {
        JsonNode json = schema.json().get(keyword).get(position);
        return known(field(schema.path(), keyword) + "[" + position + "]", json, schema.base());
    }

    static String field(String path, String name) {
        return NAME.matcher(name).matches() ? path + "." + name : path + "[" + StringNode.valueOf(name) + "]";
    }

    /** The schema that a reference names. */
    SchemaNode resolve(SchemaNode from, String keyword, String reference) {
        String path = field(from.path(), keyword);
        URI uri = resolved(path, from.base(), reference);
        String text = uri.toString();
        int hash = text.indexOf('#');
        String document = hash < 0 ? text : text.substring(0, hash);
        String fragment =
                hash < 0 ? "" : URLDecoder.decode(text.substring(hash + 1).replace("+", "%2B"), StandardCharsets.UTF_8);
        SchemaNode target = byUri.get(document);
        if (target == null) {
            throw new ConfigException(path, "refers to '" + reference + "', which is not in the schema");
        }
        if (fragment.isEmpty()) {
            return target;
        }
        SchemaNode found = fragment.startsWith("/") ? pointed(target, fragment) : byUri.get(document + "#" + fragment);
        if (found == null) {
            throw new ConfigException(path, "refers to '" + reference + "', which is not in the schema");
        }
        boolean isDynamic = keyword.equals("$dynamicRef") && dynamicAnchors.contains(fragment);
        if (isDynamic && repeatedAnchors.contains(fragment)) {
            throw new ConfigException(
                    path, "cannot be decided: '" + fragment + "' is a $dynamicAnchor in more than one place");
        }
        return found;
    }

    private @Nullable SchemaNode pointed(SchemaNode from, String pointer) {
        SchemaNode at = from;
        for (String token : pointer.substring(1).split("/", -1)) {
            String name = token.replace("~1", "/").replace("~0", "~");
            JsonNode json = at.json();
            if (json.isArray() && name.matches("\\d{1,6}") && json.has(Integer.parseInt(name))) {
                at = known(at.path() + "[" + Integer.parseInt(name) + "]", json.get(Integer.parseInt(name)), at.base());
            } else if (json.isObject() && json.has(name)) {
                at = known(field(at.path(), name), json.get(name), at.base());
            } else {
                return null;
            }
        }
        return at;
    }

    private SchemaNode known(String path, JsonNode json, URI base) {
        SchemaNode known = byPath.get(path);
        return known == null ? new SchemaNode(path, json, base) : known;
    }

    private SchemaNode add(String path, JsonNode json, URI parent, int depth) {
        if (depth > MOST_NESTED) {
            throw new ConfigException(path, "is nested too deeply: schemas may nest " + MOST_NESTED + " levels");
        }
        work.spend(1);
        JsonNode id = json.path("$id");
        URI base = id.isString() ? resolved(field(path, "$id"), parent, id.asString()) : parent;
        SchemaNode node = new SchemaNode(path, json, base);
        byPath.put(path, node);
        if (!json.isObject()) {
            return node;
        }
        String document = base.toString().split("#", 2)[0];
        if (id.isString() || depth == 0) {
            byUri.putIfAbsent(document, node);
        }
        for (String keyword : List.of("$anchor", "$dynamicAnchor")) {
            JsonNode anchor = json.path(keyword);
            if (anchor.isString()) {
                byUri.putIfAbsent(document + "#" + anchor.asString(), node);
                boolean isNew = !keyword.equals("$dynamicAnchor") || dynamicAnchors.add(anchor.asString());
                if (!isNew) {
                    repeatedAnchors.add(anchor.asString());
                }
            }
        }
        json.forEachEntry((keyword, value) -> {
            String field = field(path, keyword);
            if (value.isArray() && HAS_LIST.contains(keyword)) {
                for (int i = 0; i < value.size(); i++) {
                    add(field + "[" + i + "]", value.get(i), base, depth + 1);
                }
            } else if (value.isObject() && HAS_MAP.contains(keyword)) {
                value.forEachEntry((name, schema) -> add(field(field, name), schema, base, depth + 1));
            } else if (HAS_SCHEMA.contains(keyword)) {
                add(field, value, base, depth + 1);
            }
        });
        return node;
    }

    private static URI resolved(String path, URI base, String reference) {
        try {
            // A relative reference to an opaque URI, or an empty one, is not resolved by URI as RFC 3986 says.
            if (reference.startsWith("#") || reference.isEmpty()) {
                return URI.create(base.toString().split("#", 2)[0] + reference);
            }
            return base.resolve(URI.create(reference));
        } catch (IllegalArgumentException e) {
            throw new ConfigException(path, "is '" + reference + "', must be a URI reference", e);
        }
    }
}
