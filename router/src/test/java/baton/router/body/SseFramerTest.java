package baton.router.body;

import static org.assertj.core.api.Assertions.assertThat;

import io.vertx.core.buffer.Buffer;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.Test;

class SseFramerTest {

    private static List<String> accept(SseFramer framer, String chunk) {
        return framer.accept(Buffer.buffer(chunk)).stream()
                .map(Buffer::toString)
                .toList();
    }

    @Test
    void sseEventsThatArriveTogetherAreSeparated() {
        SseFramer framer = new SseFramer();
        assertThat(accept(framer, "data: 1\n\ndata: 2\r\n\r\n: 3\n\n"))
                .containsExactly("data: 1\n\n", "data: 2\r\n\r\n", ": 3\n\n");
        assertThat(framer.rest().length()).isZero();
    }

    @Test
    void aPartOfAnSseEventIsHeldUntilItIsComplete() {
        SseFramer framer = new SseFramer();
        assertThat(accept(framer, "data: 1\n\ndata:")).containsExactly("data: 1\n\n");
        assertThat(accept(framer, " 2\n")).isEmpty();
        assertThat(accept(framer, "\ndata: 3\r\n\r")).containsExactly("data: 2\n\n");
        assertThat(accept(framer, "\ndata")).containsExactly("data: 3\r\n\r\n");
        assertThat(framer.rest().toString()).isEqualTo("data");
        assertThat(framer.insideEvent()).isFalse();
    }

    @Test
    void aVeryLongSseEventPassesInPieces() {
        SseFramer framer = new SseFramer();
        String piece = "x".repeat(800_000);
        assertThat(accept(framer, piece)).isEmpty();
        assertThat(accept(framer, piece)).isEmpty();
        assertThat(accept(framer, piece)).containsExactly(piece.repeat(3));
        assertThat(framer.insideEvent()).isTrue();
        assertThat(accept(framer, "y\n\n")).containsExactly("y\n\n");
        assertThat(framer.insideEvent()).isFalse();
    }

    @Test
    void anySplitOfAnSseStreamGivesTheSameText() {
        String text = "data: {\"a\":1}\n\n: comment\n\ndata: two\r\ndata: lines\r\n\r\ndata: [DONE]\n\n";
        for (int seed = 0; seed < 500; seed++) {
            Random random = new Random(seed);
            SseFramer framer = new SseFramer();
            StringBuilder passed = new StringBuilder();
            int at = 0;
            while (at < text.length()) {
                int next = Math.min(text.length(), at + 1 + random.nextInt(20));
                for (String event : accept(framer, text.substring(at, next))) {
                    assertThat(event.replace("\r", "").indexOf("\n\n"))
                            .as("seed %d", seed)
                            .isEqualTo(event.replace("\r", "").length() - 2);
                    passed.append(event);
                }
                at = next;
            }
            assertThat(passed.append(framer.rest())).as("seed %d", seed).hasToString(text);
        }
    }
}
