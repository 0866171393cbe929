package baton.router;

import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpServerResponse;
import java.util.Optional;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/**
 * An error in the form of OpenAI's API and vLLM: {@code {"error":{"message","type","param","code"}}}.
 *
 * @param status HTTP status, and the field {@code code}
 * @param param the request field at fault
 */
record ApiError(int status, String type, Optional<String> param, String message) {
    private static final JsonMapper MAPPER = JsonMapper.builder().build();

    static ApiError badRequest(String param, String message) {
        return new ApiError(400, "BadRequestError", Optional.of(param), message);
    }

    static ApiError of(int status, String type, String message) {
        return new ApiError(status, type, Optional.empty(), message);
    }

    /** An error of an instance. */
    static ApiError upstream(int status, String message) {
        return of(status, status == 503 ? "ServiceUnavailableError" : "BadGatewayError", message);
    }

    Buffer toJson() {
        ObjectNode root = MAPPER.createObjectNode();
        ObjectNode error = root.putObject("error").put("message", message).put("type", type);
        param.ifPresentOrElse(name -> error.put("param", name), () -> error.putNull("param"));
        error.put("code", status);
        return Buffer.buffer(MAPPER.writeValueAsBytes(root));
    }

    /** The error as a server-sent event. */
    Buffer toEvent() {
        return Buffer.buffer("data: ").appendBuffer(toJson()).appendString("\n\n");
    }

    void send(Answer answer) {
        answer.status(status);
        answer.headers().set("Content-Type", "application/json");
        answer.end(toJson());
    }

    void send(HttpServerResponse response) {
        response.setStatusCode(status)
                .putHeader("Content-Type", "application/json")
                .end(toJson());
    }
}
