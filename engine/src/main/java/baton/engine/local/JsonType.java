package baton.engine.local;

import baton.engine.FinishReason;
import baton.engine.RequestOutput.Completion;
import baton.engine.SamplingParams;
import baton.engine.SamplingParamsBuilder;
import baton.grammar.OutputFormat;
import baton.grammar.schema.SchemaOptions;
import baton.kv.ConfigException;
import com.fasterxml.jackson.annotation.JsonTypeInfo;
import java.lang.reflect.RecordComponent;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.OffsetDateTime;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalDouble;
import java.util.OptionalInt;
import java.util.OptionalLong;
import java.util.UUID;
import java.util.function.Function;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;
import tools.jackson.databind.DeserializationConfig;
import tools.jackson.databind.JavaType;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.cfg.MapperConfig;
import tools.jackson.databind.introspect.Annotated;
import tools.jackson.databind.introspect.BeanPropertyDefinition;
import tools.jackson.databind.introspect.ClassIntrospector;
import tools.jackson.databind.introspect.JacksonAnnotationIntrospector;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.jsontype.NamedType;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/**
 * A Java type as the format of an output: its JSON schema, and the value that such an output is. Types are records, sealed interfaces of
 * records, which the property {@value #KIND} tells apart by their simple names, enums, lists, sets, arrays, maps with keys of strings,
 * optional values, which may be left out, numbers, booleans, strings, {@link UUID} and those of {@code java.time}. Annotations of
 * Jackson rename the components of records.
 */
public final class JsonType<T> {
    /** The property of a record that has the name of its class, where an interface is asked for. */
    static final String KIND = "type";

    private static final String DATE = "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])"
            + "|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))";
    private static final String TIME = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?";
    private static final String ZONE = "(Z|[+-](0[0-9]|1[0-7]):[0-5][0-9])";
    private static final String DURATION =
            "PT([0-9]{1,6}H([0-9]{1,6}M)?([0-9]{1,6}S)?|[0-9]{1,6}M([0-9]{1,6}S)?|[0-9]{1,6}S)";

    private static final Map<Class<?>, ObjectNode> SIMPLE = Map.ofEntries(
            Map.entry(String.class, type("string")),
            Map.entry(Boolean.class, type("boolean")),
            Map.entry(boolean.class, type("boolean")),
            Map.entry(Byte.class, integer(Byte.MIN_VALUE, Byte.MAX_VALUE)),
            Map.entry(byte.class, integer(Byte.MIN_VALUE, Byte.MAX_VALUE)),
            Map.entry(Short.class, integer(Short.MIN_VALUE, Short.MAX_VALUE)),
            Map.entry(short.class, integer(Short.MIN_VALUE, Short.MAX_VALUE)),
            Map.entry(Integer.class, integer(Integer.MIN_VALUE, Integer.MAX_VALUE)),
            Map.entry(int.class, integer(Integer.MIN_VALUE, Integer.MAX_VALUE)),
            Map.entry(OptionalInt.class, integer(Integer.MIN_VALUE, Integer.MAX_VALUE)),
            Map.entry(Long.class, integer(Long.MIN_VALUE, Long.MAX_VALUE)),
            Map.entry(long.class, integer(Long.MIN_VALUE, Long.MAX_VALUE)),
            Map.entry(OptionalLong.class, integer(Long.MIN_VALUE, Long.MAX_VALUE)),
            Map.entry(BigInteger.class, type("integer")),
            Map.entry(Float.class, type("number")),
            Map.entry(float.class, type("number")),
            Map.entry(Double.class, type("number")),
            Map.entry(double.class, type("number")),
            Map.entry(OptionalDouble.class, type("number")),
            Map.entry(BigDecimal.class, type("number")),
            Map.entry(UUID.class, type("string").put("format", "uuid")),
            Map.entry(LocalDate.class, pattern(DATE)),
            Map.entry(Instant.class, pattern(DATE + "T" + TIME + ZONE)),
            Map.entry(OffsetDateTime.class, pattern(DATE + "T" + TIME + ZONE)),
            Map.entry(LocalTime.class, pattern(TIME)),
            Map.entry(LocalDateTime.class, pattern(DATE + "T" + TIME)),
            Map.entry(Duration.class, pattern(DURATION)));

    /** These options allow single spaces, so that a model need not leave them out and cannot repeat them. */
    private static final SchemaOptions OPTIONS = new SchemaOptions(false, false, Optional.of("[ \\n]?"), false);

    private static final JsonMapper MAPPER =
            JsonMapper.builder().annotationIntrospector(new SealedTypes()).build();

    private final JavaType type;
    private final OutputFormat format;

    private JsonType(JavaType type, OutputFormat format) {
        this.type = type;
        this.format = format;
    }

    /** @throws ConfigException naming the part of the type that has no schema */
    public static <T> JsonType<T> of(Class<T> type) {
        JavaType javaType = MAPPER.constructType(type);
        return new JsonType<>(
                javaType, new OutputFormat.JsonSchema(schema(javaType).toString(), OPTIONS));
    }

    /** The format of outputs that are values of this type. */
    public OutputFormat format() {
        return format;
    }

    /** The same parameters, for outputs that are values of this type. */
    public SamplingParams sampling(SamplingParams params) {
        return SamplingParamsBuilder.builder(params).format(format).build();
    }

    /**
     * The value of an output that has the format.
     *
     * @throws IllegalStateException if the output failed, or ended before the value was complete
     */
    public T value(Completion completion) {
        boolean whole = completion.reason() == FinishReason.STOP
                && completion.stopReason().filter(String.class::isInstance).isEmpty();
        if (!whole) {
            throw new IllegalStateException("the output ended (%s) before its value was complete: %s"
                    .formatted(completion.error().orElse(completion.reason().wireName()), completion.text()));
        }
        return MAPPER.readValue(completion.text(), type);
    }

    /** The JSON schema of a type. */
    static ObjectNode schema(JavaType type) {
        Schemas schemas = new Schemas();
        ObjectNode schema = schemas.of(type, type.getRawClass().getSimpleName());
        return schemas.definitions.isEmpty() ? schema : schema.set("$defs", schemas.definitions);
    }

    private static final class Schemas {
        private final DeserializationConfig config = MAPPER.deserializationConfig();
        private final ClassIntrospector introspector = config.classIntrospectorInstance();
        private final ObjectNode definitions = node();
        private final Map<JavaType, String> names = new HashMap<>();

        /** @param path of the type, for errors */
        ObjectNode of(JavaType type, String path) {
            Class<?> raw = type.getRawClass();
            ObjectNode simple = SIMPLE.get(raw);
            if (simple != null) {
                return simple.deepCopy();
            }
            if (type.isReferenceType()) {
                return of(type.getReferencedType(), path);
            }
            if (type.isEnumType()) {
                ObjectNode values = node();
                Stream.of(raw.getEnumConstants())
                        .forEach(each -> values.withArray("enum").add(MAPPER.<JsonNode>valueToTree(each)));
                return values;
            }
            if (type.isCollectionLikeType() || type.isArrayType()) {
                return type("array").set("items", of(type.getContentType(), path + "[]"));
            }
            if (type.isMapLikeType() && type.getKeyType().hasRawClass(String.class)) {
                return type("object").set("additionalProperties", of(type.getContentType(), path + "{}"));
            }
            if (raw.isRecord() || raw.isSealed()) {
                return node().put("$ref", "#/$defs/" + define(type, path));
            }
            throw new ConfigException(
                    path,
                    "is of %s, must be of a record, a sealed interface, an enum, a list, a set, an array, a map with keys of strings, Optional, a number, a boolean, a string, UUID or java.time"
                            .formatted(type.toCanonical()));
        }

        private String define(JavaType type, String path) {
            String known = names.get(type);
            if (known != null) {
                return known;
            }
            String simple = type.getRawClass().getSimpleName();
            String name = definitions.has(simple) ? simple + names.size() : simple;
            names.put(type, name);
            // Before the definitions that it refers to.
            ObjectNode definition = definitions.putObject(name);
            definition.setAll(type.getRawClass().isRecord() ? object(type, path, Optional.empty()) : anyOf(type, path));
            return name;
        }

        private ObjectNode anyOf(JavaType type, String path) {
            ObjectNode any = node();
            SealedTypes.records(type.getRawClass())
                    .forEach(each -> any.withArray("anyOf")
                            .add(object(
                                    config.getTypeFactory().constructSpecializedType(type, each),
                                    path + "(" + each.getSimpleName() + ")",
                                    Optional.of(each.getSimpleName()))));
            return any;
        }

        private ObjectNode object(JavaType type, String path, Optional<String> kind) {
            ObjectNode object = type("object");
            ObjectNode properties = object.putObject("properties");
            kind.ifPresent(value -> {
                properties.putObject(KIND).put("const", value);
                object.withArray("required").add(KIND);
            });
            Map<String, BeanPropertyDefinition> found = introspector
                    .introspectForDeserialization(type, introspector.introspectClassAnnotations(type))
                    .findProperties()
                    .stream()
                    .collect(Collectors.toMap(BeanPropertyDefinition::getInternalName, Function.identity()));
            for (RecordComponent component : type.getRawClass().getRecordComponents()) {
                BeanPropertyDefinition property = found.get(component.getName());
                if (property == null) {
                    continue;
                }
                String name = property.getName();
                if (properties.has(name)) {
                    throw new ConfigException(
                            path + "." + name,
                            "has the name of the property that has the class's name; give it another by @JsonProperty");
                }
                JavaType value = property.getPrimaryType();
                properties.set(name, of(value, path + "." + name));
                if (!isOptional(value)) {
                    object.withArray("required").add(name);
                }
            }
            return object.put("additionalProperties", false);
        }

        private static boolean isOptional(JavaType type) {
            return List.of(Optional.class, OptionalInt.class, OptionalLong.class, OptionalDouble.class)
                    .contains(type.getRawClass());
        }
    }

    /** Values of sealed interfaces have the simple names of their classes. */
    private static final class SealedTypes extends JacksonAnnotationIntrospector {
        static Stream<Class<?>> records(Class<?> sealed) {
            return Arrays.stream(sealed.getPermittedSubclasses())
                    .flatMap(each -> each.isSealed() ? records(each) : Stream.of(each));
        }

        @Override
        public JsonTypeInfo.@Nullable Value findPolymorphicTypeInfo(MapperConfig<?> config, Annotated annotated) {
            return annotated.getRawType().isSealed()
                    ? JsonTypeInfo.Value.construct(
                            JsonTypeInfo.Id.NAME, JsonTypeInfo.As.PROPERTY, KIND, null, false, null)
                    : super.findPolymorphicTypeInfo(config, annotated);
        }

        @Override
        public @Nullable List<NamedType> findSubtypes(MapperConfig<?> config, Annotated annotated) {
            return annotated.getRawType().isSealed()
                    ? records(annotated.getRawType())
                            .map(each -> new NamedType(each, each.getSimpleName()))
                            .toList()
                    : super.findSubtypes(config, annotated);
        }
    }

    private static ObjectNode node() {
        return JsonNodeFactory.instance.objectNode();
    }

    private static ObjectNode type(String name) {
        return node().put("type", name);
    }

    private static ObjectNode integer(long least, long most) {
        return type("integer").put("minimum", least).put("maximum", most);
    }

    private static ObjectNode pattern(String pattern) {
        return type("string").put("pattern", "^" + pattern + "$");
    }
}
