package baton.server;

import baton.kv.JsonFields;
import io.vertx.core.buffer.Buffer;
import java.util.List;
import java.util.Optional;

/** The form of the answer to one request that generates. Confined to the event loop. */
interface AnswerForm {
    /**
     * A part of a stream: output of one choice.
     *
     * @param usage if the part has it
     * @param kvTransferParams of a choice that ends with this part, if any
     */
    Buffer part(ReplyWriter.Output output, Optional<ReplyWriter.Tokens> usage, Optional<JsonFields> kvTransferParams);

    /** The part after all output, of a request for usage in the stream. */
    Buffer last(ReplyWriter.Tokens usage, Optional<JsonFields> kvTransferParams);

    /** The mark of a stream's end. */
    Buffer done();

    /** The whole answer of a request that is not streamed. */
    Buffer whole(List<ReplyWriter.Output> outputs, ReplyWriter.Tokens usage, Optional<JsonFields> kvTransferParams);

    /** The last part of a stream that cannot be completed. */
    Buffer failure(ApiException error);
}
