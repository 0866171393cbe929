package baton.server.grpc;

import baton.kv.ConfigException;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/**
 * {@code google.protobuf.Struct} as JSON. A Struct's numbers are {@code double}s: whole ones below 2^53 become JSON integers, as in vLLM,
 * so that ports and block ids are integers again.
 */
public final class ProtoStruct {
    private static final JsonNodeFactory NODES = JsonNodeFactory.instance;
    private static final double MOST_EXACT = (1L << 53) - 1;

    private static final int FIELDS = 1;
    private static final int KEY = 1;
    private static final int VALUE = 2;
    private static final int VALUES = 1;

    private static final int NULL = 1;
    private static final int NUMBER = 2;
    private static final int STRING = 3;
    private static final int BOOL = 4;
    private static final int STRUCT = 5;
    private static final int LIST = 6;

    private ProtoStruct() {}

    /** @param path of the Struct, in errors */
    public static ObjectNode read(String path, ProtoReader in) {
        ObjectNode object = NODES.objectNode();
        while (in.next()) {
            if (in.field() != FIELDS) {
                in.skip();
                continue;
            }
            String key = "";
            JsonNode value = NODES.nullNode();
            ProtoReader entry = in.message(path);
            while (entry.next()) {
                switch (entry.field()) {
                    case KEY -> key = entry.string();
                    case VALUE -> value = value(path, entry.message(path));
                    default -> entry.skip();
                }
            }
            object.set(key, value);
        }
        return object;
    }

    private static JsonNode value(String path, ProtoReader in) {
        JsonNode value = NODES.nullNode();
        while (in.next()) {
            switch (in.field()) {
                case NUMBER -> value = number(path, in.doubleNumber());
                case STRING -> value = NODES.stringNode(in.string());
                case BOOL -> value = NODES.booleanNode(in.bool());
                case STRUCT -> value = read(path, in.message(path));
                case LIST -> value = list(path, in.message(path));
                default -> {
                    value = NODES.nullNode();
                    in.skip();
                }
            }
        }
        return value;
    }

    private static ArrayNode list(String path, ProtoReader in) {
        ArrayNode list = NODES.arrayNode();
        while (in.next()) {
            if (in.field() == VALUES) {
                list.add(value(path, in.message(path)));
            } else {
                in.skip();
            }
        }
        return list;
    }

    private static JsonNode number(String path, double number) {
        if (!Double.isFinite(number)) {
            throw new ConfigException(path, "has the number " + number + ", must have finite ones");
        }
        return number == Math.rint(number) && Math.abs(number) <= MOST_EXACT
                ? NODES.numberNode((long) number)
                : NODES.numberNode(number);
    }

    /** The Struct with the fields of a JSON object. */
    public static ProtoWriter of(ObjectNode object) {
        ProtoWriter struct = new ProtoWriter();
        object.properties()
                .forEach(property -> struct.message(
                        FIELDS,
                        new ProtoWriter().string(KEY, property.getKey()).message(VALUE, value(property.getValue()))));
        return struct;
    }

    private static ProtoWriter value(JsonNode node) {
        ProtoWriter value = new ProtoWriter();
        return switch (node.getNodeType()) {
            case NUMBER -> value.number(NUMBER, node.asDouble());
            case BOOLEAN -> value.bool(BOOL, node.asBoolean());
            case STRING -> value.string(STRING, node.asString());
            case OBJECT -> value.message(STRUCT, of(node.asObject()));
            case ARRAY -> {
                ProtoWriter list = new ProtoWriter();
                node.forEach(element -> list.message(VALUES, value(element)));
                yield value.message(LIST, list);
            }
            case NULL, MISSING, BINARY, POJO -> value.integer(NULL, 0);
        };
    }
}
