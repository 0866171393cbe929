package baton.memory;

import static org.assertj.core.api.Assertions.assertThat;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

class GateTest {
    private static final class Ends extends Gate<String> {
        private final List<String> ends = Collections.synchronizedList(new ArrayList<>());

        @Override
        protected void over(String end) {
            ends.add(end);
        }
    }

    @Test
    void aGateThatNoThreadIsInIsOverWhenItIsEnded() {
        Ends gate = new Ends();
        assertThat(gate.enter()).isTrue();
        gate.exit();
        assertThat(gate.isEnded()).isFalse();
        gate.end("done");
        gate.end("too late");
        assertThat(gate.isEnded()).isTrue();
        assertThat(gate.enter()).isFalse();
        assertThat(gate.ends).containsExactly("done");
        gate.awaitEmpty();
    }

    @Test
    void anEndedGateIsOverWhenTheLastThreadHasLeftIt() throws Exception {
        Ends gate = new Ends();
        assertThat(gate.enter()).isTrue();
        assertThat(gate.enter()).isTrue();
        CompletableFuture<Void> waiter = CompletableFuture.runAsync(() -> {
            gate.end("cancelled");
            gate.awaitEmpty();
        });
        gate.exit();
        assertThat(waiter).isNotDone();
        assertThat(gate.ends).isEmpty();
        gate.exit();
        waiter.get(30, TimeUnit.SECONDS);
        assertThat(gate.ends).containsExactly("cancelled");
    }

    @Test
    void awaitEmptyWaitsForTheCallOfOver() throws Exception {
        CountDownLatch begun = new CountDownLatch(1);
        CountDownLatch allowed = new CountDownLatch(1);
        Gate<String> gate = new Gate<>() {
            @Override
            protected void over(String end) {
                begun.countDown();
                try {
                    assertThat(allowed.await(30, TimeUnit.SECONDS)).isTrue();
                } catch (InterruptedException e) {
                    throw new AssertionError(e);
                }
            }
        };
        CompletableFuture<Void> ending = CompletableFuture.runAsync(() -> gate.end("done"));
        assertThat(begun.await(30, TimeUnit.SECONDS)).isTrue();
        Thread waiter = Thread.ofPlatform().start(gate::awaitEmpty);
        assertThat(waiter.join(Duration.ofMillis(100))).isFalse();
        allowed.countDown();
        assertThat(waiter.join(Duration.ofSeconds(30))).isTrue();
        ending.get(30, TimeUnit.SECONDS);
    }
}
