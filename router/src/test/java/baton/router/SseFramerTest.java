package baton.router;

import static org.assertj.core.api.Assertions.assertThat;

import io.vertx.core.buffer.Buffer;
import java.util.Random;
import org.junit.jupiter.api.Test;

class SseFramerTest {

    @Test
    void wholeEventsPassAsTheyCome() {
        SseFramer framer = new SseFramer();
        Buffer event = Buffer.buffer("data: 1\n\ndata: 2\r\n\r\n");
        assertThat(framer.accept(event)).isSameAs(event);
        assertThat(framer.rest().length()).isZero();
    }

    @Test
    void aPieceIsHeldUntilItsEventIsWhole() {
        SseFramer framer = new SseFramer();
        assertThat(framer.accept(Buffer.buffer("data: 1\n\ndata:")).toString()).isEqualTo("data: 1\n\n");
        assertThat(framer.accept(Buffer.buffer(" 2\n")).length()).isZero();
        assertThat(framer.accept(Buffer.buffer("\ndata")).toString()).isEqualTo("data: 2\n\n");
        assertThat(framer.rest().toString()).isEqualTo("data");
        assertThat(framer.insideEvent()).isFalse();
    }

    @Test
    void aVeryLongEventPassesInPieces() {
        SseFramer framer = new SseFramer();
        Buffer piece = Buffer.buffer("x".repeat(100_000));
        assertThat(framer.accept(piece).length()).isZero();
        assertThat(framer.accept(piece).length()).isZero();
        assertThat(framer.accept(piece).length()).isEqualTo(300_000);
        assertThat(framer.insideEvent()).isTrue();
        assertThat(framer.accept(Buffer.buffer("y\n\n")).toString()).isEqualTo("y\n\n");
        assertThat(framer.insideEvent()).isFalse();
    }

    @Test
    void anySplitGivesTheSameText() {
        String text = "data: {\"a\":1}\n\n: comment\n\ndata: two\r\ndata: lines\r\n\r\ndata: [DONE]\n\n";
        for (int seed = 0; seed < 500; seed++) {
            Random random = new Random(seed);
            SseFramer framer = new SseFramer();
            StringBuilder passed = new StringBuilder();
            int at = 0;
            while (at < text.length()) {
                int next = Math.min(text.length(), at + 1 + random.nextInt(20));
                passed.append(framer.accept(Buffer.buffer(text.substring(at, next))));
                assertThat(passed.isEmpty() || passed.toString().endsWith("\n"))
                        .as("seed %d", seed)
                        .isTrue();
                at = next;
            }
            assertThat(passed.append(framer.rest())).as("seed %d", seed).hasToString(text);
        }
    }
}
