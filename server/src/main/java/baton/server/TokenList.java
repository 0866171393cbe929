package baton.server;

import baton.engine.Engine;
import io.vertx.core.buffer.Buffer;

/**
 * The answer of {@code /tokenize}.
 *
 * @param withTexts whether the tokens' texts are in it
 */
record TokenList(int[] ids, boolean withTexts) {
    /** Memory for each token of a list of ids. */
    private static final int BYTES_PER_ID = 32;

    /** Memory for each token of a list of ids and texts. */
    private static final int BYTES_PER_TEXT = 128;

    /** Memory for the answer. */
    long bytes() {
        return (long) ids.length * (withTexts ? BYTES_PER_TEXT : BYTES_PER_ID);
    }

    /** The answer's document. The answer's document. To be called beside the event loop, as the list may be long. */
    Buffer document(Engine engine) {
        return new Json().document(out -> {
            out.writeStartObject();
            out.writeNumberProperty("count", ids.length);
            out.writeNumberProperty("max_model_len", engine.maxModelLen());
            out.writeName("tokens");
            out.writeArray(ids, 0, ids.length);
            if (withTexts) {
                out.writeArrayPropertyStart("token_strs");
                for (int id : ids) {
                    out.writeString(engine.tokenizer().token(id));
                }
                out.writeEndArray();
            } else {
                out.writeNullProperty("token_strs");
            }
            out.writeEndObject();
        });
    }
}
