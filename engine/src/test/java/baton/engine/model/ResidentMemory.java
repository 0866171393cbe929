package baton.engine.model;

import static org.assertj.core.api.Assertions.fail;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** The memory of this process, native and Java. */
public final class ResidentMemory {
    private static final int MOST_ROUNDS = 16;
    private static final int FLAT_ROUNDS = 2;

    private ResidentMemory() {}

    /** Some work. */
    public interface Round {
        void run() throws Exception;
    }

    /**
     * Fails if every round leaves something behind. The Java heap, compiled code and caches for new shapes grow now and then, so some
     * rounds may grow: a leak shows in all of them.
     *
     * @param bytes fewer than a leak would leave in a round
     */
    public static void assertStaysFlat(long bytes, Round round) throws Exception {
        round.run();
        List<Long> grown = new ArrayList<>();
        long before = bytes();
        while (grown.size() < MOST_ROUNDS) {
            round.run();
            long after = bytes();
            grown.add(after - before);
            before = after;
            if (grown.stream().filter(each -> each < bytes).count() == FLAT_ROUNDS) {
                System.out.println("resident memory: bytes more by round: " + grown);
                return;
            }
        }
        fail("bytes more by round: " + grown);
    }

    private static long bytes() throws IOException {
        System.gc();
        String statm = Files.readString(Path.of("/proc/self/statm"));
        return Long.parseLong(statm.split(" ")[1]) * 4096;
    }
}
