package baton.grammar;

import static org.assertj.core.api.Assertions.assertThatCode;

import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

class FormatWarmUpTest {
    @Test
    void allFormatsAreCompiled() {
        AtomicInteger left = new AtomicInteger(24);
        assertThatCode(() -> FormatWarmUp.run(() -> left.decrementAndGet() == 0))
                .doesNotThrowAnyException();
    }
}
