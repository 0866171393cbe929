package baton.server.output;

import java.util.Optional;
import tools.jackson.databind.node.ObjectNode;

/**
 * A function that the model may call.
 *
 * @param field where the request has it
 * @param parameters the JSON schema of its arguments; empty if it has none
 * @param strict whether arguments always follow the schema
 */
public record Tool(String field, String name, Optional<ObjectNode> parameters, boolean strict) {}
