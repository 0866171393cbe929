package baton.server;

import baton.engine.Engine;
import tools.jackson.core.JsonGenerator;

/**
 * The answers of {@code /v1/models}.
 *
 * @param created seconds since 1970, of all models
 */
record ModelList(ServerConfig config, Engine engine, long created) {
    /** Writes all names of the model. */
    void write(JsonGenerator out) {
        out.writeStartObject();
        out.writeStringProperty("object", "list");
        out.writeArrayPropertyStart("data");
        config.servedModelNames().forEach(name -> write(out, name));
        out.writeEndArray();
        out.writeEndObject();
    }

    void write(JsonGenerator out, String name) {
        out.writeStartObject();
        out.writeStringProperty("id", name);
        out.writeStringProperty("object", "model");
        out.writeNumberProperty("created", created);
        out.writeStringProperty("owned_by", "baton");
        out.writeStringProperty("root", engine.config().model().toString());
        out.writeNullProperty("parent");
        out.writeNumberProperty("max_model_len", engine.maxModelLen());
        out.writeArrayPropertyStart("permission");
        out.writeEndArray();
        out.writeEndObject();
    }
}
