package baton.engine.text;

/**
 * A conversation that the model's chat template cannot render: the template refuses it ({@code raise_exception}), fails on it,
 * or there is none. The message is fit for the client and names the template's line where there is one.
 */
public final class ChatTemplateException extends RuntimeException {
    ChatTemplateException(String message) {
        super(message);
    }

    ChatTemplateException(String message, Throwable cause) {
        super(message, cause);
    }
}
