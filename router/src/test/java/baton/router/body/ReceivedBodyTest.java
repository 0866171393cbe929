package baton.router.body;

import static org.assertj.core.api.Assertions.assertThat;

import io.vertx.core.buffer.Buffer;
import java.util.Random;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class ReceivedBodyTest {
    @ParameterizedTest
    @ValueSource(ints = {0, 1, 1000, 256 << 10, (256 << 10) + 1, 3 << 20})
    void chunksAreJoinedInOrder(int length) {
        byte[] bytes = new byte[length];
        Random random = new Random(length);
        random.nextBytes(bytes);
        ReceivedBody body = new ReceivedBody(100);
        for (int start = 0; start < length; ) {
            int end = Math.min(length, start + 1 + random.nextInt(100_000));
            body.append(Buffer.buffer(bytes).slice(start, end));
            start = end;
        }
        assertThat(body.length()).isEqualTo(length);
        assertThat(body.join().getBytes()).isEqualTo(bytes);
    }
}
