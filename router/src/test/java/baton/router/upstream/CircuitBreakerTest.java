package baton.router.upstream;

import static org.assertj.core.api.Assertions.assertThat;

import org.junit.jupiter.api.Test;

class CircuitBreakerTest {
    private final CircuitBreaker breaker = new CircuitBreaker();

    private void fail(int times) {
        for (int i = 0; i < times; i++) {
            assertThat(breaker.began()).isFalse();
            breaker.failed();
        }
    }

    private void probe(int times) {
        for (int i = 0; i < times; i++) {
            breaker.probed();
        }
    }

    @Test
    void itOpensAfterFailuresInARowOnly() {
        for (int i = 0; i < 10; i++) {
            fail(CircuitBreaker.FAILURES - 1);
            assertThat(breaker.allows()).isTrue();
            breaker.succeeded();
        }
        fail(CircuitBreaker.FAILURES);
        assertThat(breaker.allows()).isFalse();
        assertThat(breaker).hasToString("5 requests in a row failed");
    }

    @Test
    void oneTrialIsLetThroughAfterMoreProbesEachTime() {
        fail(CircuitBreaker.FAILURES);
        for (int probes : new int[] {1, 2, 4, 8, 16, 16}) {
            probe(probes - 1);
            assertThat(breaker.allows()).isFalse();
            probe(1);
            assertThat(breaker.allows()).isTrue();
            assertThat(breaker.began()).isTrue();
            assertThat(breaker.allows()).as("a second one").isFalse();
            assertThat(breaker.failed()).isTrue();
            breaker.trialEnded();
        }
        probe(16);
        breaker.began();
        breaker.answered();
        assertThat(breaker.allows()).as("a long answer is not waited for").isTrue();
        breaker.succeeded();
        breaker.trialEnded();
        assertThat(breaker.allows()).isTrue();
        assertThat(breaker).hasToString("");
        fail(CircuitBreaker.FAILURES);
        probe(1);
        assertThat(breaker.allows()).as("it begins anew").isTrue();
    }

    @Test
    void aTrialWithoutAResultMakesRoomForAnother() {
        fail(CircuitBreaker.FAILURES);
        probe(1);
        breaker.began();
        breaker.trialEnded();
        assertThat(breaker.allows()).isTrue();
    }

    @Test
    void answersThatBeginAndBreakOffAreFailures() {
        for (int i = 0; i < CircuitBreaker.FAILURES; i++) {
            assertThat(breaker.allows()).isTrue();
            breaker.began();
            breaker.answered();
            breaker.failed();
        }
        assertThat(breaker.allows()).isFalse();
    }

    @Test
    void failuresOfRequestsThatWereSentBeforeDoNotDelayTheTrial() {
        fail(CircuitBreaker.FAILURES);
        assertThat(breaker.failed()).isFalse();
        probe(1);
        assertThat(breaker.allows()).isTrue();
        breaker.reset();
        assertThat(breaker.allows()).isTrue();
    }
}
