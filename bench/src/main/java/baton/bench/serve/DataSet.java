package baton.bench.serve;

import baton.kv.ConfigException;
import java.io.IOException;
import java.util.List;

/** Requests to send. The options of a data set and their defaults are those of vLLM 0.32's {@code bench serve}. */
public interface DataSet {
    /**
     * Makes the requests, the same for the same seed, tokenizer and options.
     *
     * @param count wanted; a file's data set has fewer only if it may not repeat them
     * @throws ConfigException if the options do not fit the tokenizer or each other, or a file's content is not as it should be
     * @throws IOException if a file cannot be read
     */
    List<Sample> samples(BenchTokenizer tokens, int count, long seed) throws IOException;

    /** Whether answers are to go on to their full length, unless told otherwise. */
    default boolean ignoresEos() {
        return false;
    }
}
