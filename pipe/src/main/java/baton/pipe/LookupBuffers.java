package baton.pipe;

import baton.kv.Ticker;
import java.time.Duration;
import java.util.function.Consumer;

/**
 * Lookup buffers over two pipes between a producer and a consumer: vLLM's {@code SimpleBuffer}. The signal pipe carries requests, and the
 * data pipe carries answers. Here requests have numbers, so that many can wait at once and are answered as their entries are inserted.
 */
public final class LookupBuffers {
    /** The limit for a part of an answer: the consumer's reading thread does nothing else. */
    static final Duration PART = Duration.ofMinutes(5);

    private LookupBuffers() {}

    /**
     * The end that inserts. It closes both pipes.
     *
     * @param requests its receiving end
     * @param answers its sending end
     * @param ticker for the age of entries
     */
    public static LookupBuffer producer(Pipe requests, Pipe answers, LookupBuffer.Settings settings, Ticker ticker) {
        return new LookupProducer(requests, answers, settings, ticker).started();
    }

    /**
     * The end that looks entries up. It closes both pipes.
     *
     * @param requests its sending end
     * @param answers its receiving end
     * @param memory of keys and values
     */
    public static LookupBuffer consumer(Pipe requests, Pipe answers, TensorMemory memory, Ticker ticker) {
        return new LookupConsumer(requests, answers, memory, ticker).started();
    }

    /** The loop of an end's thread. */
    interface Loop {
        void run() throws PipeException, InterruptedException;
    }

    /** @param end is given the reason */
    static void runUntilFailure(Loop loop, Consumer<String> end) {
        try {
            loop.run();
        } catch (PipeException e) {
            end.accept(String.valueOf(e.getMessage()));
        } catch (InterruptedException | RuntimeException | Error e) {
            end.accept(e.toString());
        }
    }
}
