package baton.kv;

import static org.assertj.core.api.Assertions.assertThatCode;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

class OwnerThreadTest {
    @Test
    void theOwnerPassesTheCheckAndAnotherThreadDoesNot() {
        OwnerThread owner = OwnerThread.of(Thread.currentThread());
        assertThatCode(owner::check).doesNotThrowAnyException();
        assertFailsElsewhere(owner);
    }

    @Test
    void theFirstThreadToCheckIsTheOwner() {
        OwnerThread owner = OwnerThread.firstToCheck();
        owner.check();
        assertThatCode(owner::check).doesNotThrowAnyException();
        assertFailsElsewhere(owner);
    }

    private static void assertFailsElsewhere(OwnerThread owner) {
        assertThatThrownBy(() -> CompletableFuture.runAsync(owner::check).get(30, TimeUnit.SECONDS))
                .isInstanceOf(ExecutionException.class)
                .cause()
                .isInstanceOf(AssertionError.class)
                .hasMessageContaining("uses the state of the thread");
    }
}
