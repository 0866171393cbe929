package baton.bench.serve;

import java.io.IOException;

/** The tokenizer that prompts are made with: of a directory, or of the server. */
public interface BenchTokenizer extends AutoCloseable {
    /** Ids of ordinary tokens, which random prompts are drawn from; at least one. */
    int[] ids();

    /** How many tokens the server puts around a prompt, such as a BOS token. */
    int around() throws IOException;

    /** @param around whether the tokens around a prompt are added */
    int[] encode(String text, boolean around) throws IOException;

    String decode(int[] ids) throws IOException;

    /**
     * The prompt of a conversation with one message.
     *
     * @throws baton.kv.ConfigException if the model has no chat template
     */
    String chat(String message) throws IOException;

    @Override
    default void close() {}
}
