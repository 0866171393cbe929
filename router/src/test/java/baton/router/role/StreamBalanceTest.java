package baton.router.role;

import static org.assertj.core.api.Assertions.assertThat;

import baton.router.upstream.Instance;
import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class StreamBalanceTest {
    private static final List<Instance> INSTANCES =
            List.of(decode("http://a:1"), decode("http://b:1"), decode("http://c:1"));

    private static Instance decode(String url) {
        return new Instance(Instance.Role.DECODE, URI.create(url));
    }

    private static StreamBalance.Use use(int instance, double share, int streams) {
        return new StreamBalance.Use(INSTANCES.get(instance), share, streams);
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                // shares of KV blocks in use at a, b and c, streams at each, the move
                "0.90 | 0.10 | 0.50 | 40 | a to b: 8",
                "0.10 | 0.50 | 0.90 | 40 | c to a: 8",
                "0.90 | 0.65 | 0.65 | 40 | none",
                "0.90 | 0.55 | 0.60 | 40 | a to b: 3",
                "0.45 | 0.00 | 0.00 | 40 | none",
                "1.00 | 0.00 | 0.00 |  2 | a to b: 1",
                "1.00 | 0.00 | 0.00 |  1 | none",
                "1.00 | 0.00 | 0.00 | 900 | a to b: 16",
            })
    void theFullestGivesAPartOfTheDifferenceToTheEmptiest(double a, double b, double c, int streams, String expected) {
        Optional<StreamBalance.Move> move =
                StreamBalance.move(List.of(use(0, a, streams), use(1, b, streams), use(2, c, streams)));
        assertThat(move.map(StreamBalanceTest::words).orElse("none")).isEqualTo(expected);
    }

    private static String words(StreamBalance.Move move) {
        return move.from().host() + " to " + move.to().host() + ": " + move.streams();
    }

    @Test
    void oneInstanceKeepsItsStreams() {
        assertThat(StreamBalance.move(List.of())).isEmpty();
        assertThat(StreamBalance.move(List.of(use(0, 1, 40)))).isEmpty();
    }

    /** Streams of one size; a pool has so many of them as blocks. */
    @ParameterizedTest
    @CsvSource({"100, 100, 96, 0", "100, 30, 96, 0", "30, 100, 28, 0", "100, 20, 60, 18"})
    void streamsDoNotGoBack(int poolOfA, int poolOfB, int atA, int atB) {
        int a = atA;
        int b = atB;
        List<String> senders = new ArrayList<>();
        for (int look = 0; look < 50; look++) {
            Optional<StreamBalance.Move> move =
                    StreamBalance.move(List.of(use(0, (double) a / poolOfA, a), use(1, (double) b / poolOfB, b)));
            if (move.isEmpty()) {
                break;
            }
            int streams = move.get().streams();
            boolean fromA = move.get().from() == INSTANCES.getFirst();
            senders.add(fromA ? "a" : "b");
            a += fromA ? -streams : streams;
            b += fromA ? streams : -streams;
        }
        assertThat(senders).as("a has %d, b has %d", a, b).hasSizeLessThan(50);
        assertThat(senders.stream().distinct()).hasSize(1);
    }
}
