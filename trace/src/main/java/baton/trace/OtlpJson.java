package baton.trace;

import baton.trace.Span.Value;
import java.io.ByteArrayOutputStream;
import java.util.List;
import java.util.Map;
import tools.jackson.core.JsonGenerator;
import tools.jackson.core.ObjectWriteContext;
import tools.jackson.core.json.JsonFactory;

/**
 * The body of an OTLP/HTTP export in JSON (opentelemetry-proto, {@code ExportTraceServiceRequest}): lower camel case, ids in hexadecimal,
 * 64-bit numbers as strings, enums as numbers.
 */
final class OtlpJson {
    private static final JsonFactory FACTORY = new JsonFactory();
    private static final int STATUS_ERROR = 2;
    private static final int BYTES_PER_SPAN = 1024;

    private OtlpJson() {}

    /** @param resource attributes of the process */
    static byte[] encode(Map<String, Value> resource, String scope, List<Span> spans) {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream(BYTES_PER_SPAN * (1 + spans.size()));
        try (JsonGenerator out = FACTORY.createGenerator(ObjectWriteContext.empty(), bytes)) {
            out.writeStartObject();
            out.writeArrayPropertyStart("resourceSpans");
            out.writeStartObject();
            out.writeObjectPropertyStart("resource");
            attributes(out, resource);
            out.writeEndObject();
            out.writeArrayPropertyStart("scopeSpans");
            out.writeStartObject();
            out.writeObjectPropertyStart("scope");
            out.writeStringProperty("name", scope);
            out.writeEndObject();
            out.writeArrayPropertyStart("spans");
            spans.forEach(span -> span(out, span));
            out.writeEndArray();
            out.writeEndObject();
            out.writeEndArray();
            out.writeEndObject();
            out.writeEndArray();
            out.writeEndObject();
        }
        return bytes.toByteArray();
    }

    private static void span(JsonGenerator out, Span span) {
        out.writeStartObject();
        out.writeStringProperty("traceId", span.traceId());
        out.writeStringProperty("spanId", span.id());
        span.parentId().ifPresent(parent -> out.writeStringProperty("parentSpanId", parent));
        out.writeStringProperty("name", span.name());
        out.writeNumberProperty("kind", span.kind().code());
        out.writeStringProperty("startTimeUnixNano", Long.toString(span.startNanos()));
        out.writeStringProperty("endTimeUnixNano", Long.toString(span.endNanos()));
        attributes(out, span.attributes());
        out.writeArrayPropertyStart("events");
        for (Span.Event event : span.events()) {
            out.writeStartObject();
            out.writeStringProperty("timeUnixNano", Long.toString(event.nanos()));
            out.writeStringProperty("name", event.name());
            out.writeEndObject();
        }
        out.writeEndArray();
        out.writeObjectPropertyStart("status");
        span.error().ifPresent(message -> {
            out.writeNumberProperty("code", STATUS_ERROR);
            out.writeStringProperty("message", message);
        });
        out.writeEndObject();
        out.writeEndObject();
    }

    private static void attributes(JsonGenerator out, Map<String, Value> attributes) {
        out.writeArrayPropertyStart("attributes");
        attributes.forEach((name, value) -> {
            out.writeStartObject();
            out.writeStringProperty("key", name);
            out.writeObjectPropertyStart("value");
            switch (value) {
                case Value.Text(String text) -> out.writeStringProperty("stringValue", text);
                case Value.Int(long number) -> out.writeStringProperty("intValue", Long.toString(number));
                case Value.Real(double number) -> out.writeNumberProperty("doubleValue", number);
                case Value.Bool(boolean bool) -> out.writeBooleanProperty("boolValue", bool);
            }
            out.writeEndObject();
            out.writeEndObject();
        });
        out.writeEndArray();
    }
}
