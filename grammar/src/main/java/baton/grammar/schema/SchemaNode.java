package baton.grammar.schema;

import java.net.URI;
import tools.jackson.databind.JsonNode;

/**
 * A schema within a document. Its path identifies it.
 *
 * @param path names of the fields on the way to it
 * @param base URI that references in it are relative to
 */
record SchemaNode(String path, JsonNode json, URI base) {
    @Override
    public boolean equals(Object other) {
        return other instanceof SchemaNode node && path.equals(node.path);
    }

    @Override
    public int hashCode() {
        return path.hashCode();
    }
}
