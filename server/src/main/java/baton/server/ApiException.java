package baton.server;

import baton.engine.EngineUnavailableException;
import baton.engine.text.ChatTemplateException;
import baton.kv.ConfigException;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.function.UnaryOperator;

/** An error answer, in OpenAI's form with vLLM's type names. */
final class ApiException extends RuntimeException {
    private static final int MAX_MESSAGE = 1000;

    private final int status;
    private final String type;
    private final Optional<String> param;
    private final OptionalInt retryAfterSeconds;

    private ApiException(
            int status, String type, String message, Optional<String> param, OptionalInt retryAfterSeconds) {
        // Some messages quote input of any length.
        super(
                message.length() <= MAX_MESSAGE ? message : message.substring(0, MAX_MESSAGE) + "...",
                null,
                false,
                false);
        this.status = status;
        this.type = type;
        this.param = param;
        this.retryAfterSeconds = retryAfterSeconds;
    }

    private ApiException(int status, String type, String message) {
        this(status, type, message, Optional.empty(), OptionalInt.empty());
    }

    static ApiException badRequest(String message) {
        return new ApiException(400, "BadRequestError", message);
    }

    static ApiException badField(String field, String message) {
        return new ApiException(
                400, "BadRequestError", field + ": " + message, Optional.of(field), OptionalInt.empty());
    }

    static ApiException unauthorized(String message) {
        return new ApiException(401, "AuthenticationError", message);
    }

    static ApiException forbidden(String message) {
        return new ApiException(403, "PermissionDeniedError", message);
    }

    static ApiException notFound(String message, Optional<String> param) {
        return new ApiException(404, "NotFoundError", message, param, OptionalInt.empty());
    }

    static ApiException methodNotAllowed(String message) {
        return new ApiException(405, "MethodNotAllowedError", message);
    }

    static ApiException timeout(String message) {
        return new ApiException(408, "RequestTimeoutError", message);
    }

    static ApiException conflict(String message) {
        return new ApiException(409, "ConflictError", message);
    }

    static ApiException tooLarge(String message) {
        return new ApiException(413, "RequestEntityTooLargeError", message);
    }

    static ApiException unsupportedMediaType(String message) {
        return new ApiException(415, "UnsupportedMediaTypeError", message);
    }

    static ApiException internal(String message) {
        return new ApiException(500, "InternalServerError", message);
    }

    static ApiException notImplemented(String message) {
        return new ApiException(501, "NotImplementedError", message);
    }

    static ApiException unavailable(String message) {
        return new ApiException(503, "ServiceUnavailableError", message, Optional.empty(), OptionalInt.of(1));
    }

    /** The error answer for a failure; an unexpected one becomes a 500. */
    static ApiException of(Throwable failure) {
        return switch (failure) {
            case ApiException api -> api;
            case ConfigException config ->
                new ApiException(
                        400,
                        "BadRequestError",
                        String.valueOf(config.getMessage()),
                        Optional.of(config.field()),
                        OptionalInt.empty());
            case ChatTemplateException template -> badRequest(String.valueOf(template.getMessage()));
            case EngineUnavailableException unavailable -> unavailable(String.valueOf(unavailable.getMessage()));
            default -> internal("internal error: " + failure);
        };
    }

    /** The same of a field of another name. */
    ApiException at(UnaryOperator<String> name) {
        String field = param.orElse("");
        String message = message();
        return message.startsWith(field + ": ")
                ? new ApiException(
                        status,
                        type,
                        name.apply(field) + message.substring(field.length()),
                        param.map(name),
                        retryAfterSeconds)
                : this;
    }

    int status() {
        return status;
    }

    String type() {
        return type;
    }

    Optional<String> param() {
        return param;
    }

    OptionalInt retryAfterSeconds() {
        return retryAfterSeconds;
    }

    String message() {
        return String.valueOf(getMessage());
    }
}
