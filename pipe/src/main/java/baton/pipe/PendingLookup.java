package baton.pipe;

import baton.kv.Deadline;
import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;

/** A lookup in this process; its caller waits for the answer. Any thread completes it. */
final class PendingLookup<T> {
    private final CompletableFuture<T> answer = new CompletableFuture<>();

    void complete(T value) {
        answer.complete(value);
    }

    /** The buffer has ended. */
    void fail(String reason) {
        refuse(new PipeException("the lookup buffer has ended: " + reason));
    }

    void refuse(PipeException why) {
        answer.completeExceptionally(why);
    }

    /** Runs with the answer, now or later, if there is one. */
    void whenAnswered(Consumer<T> action) {
        CompletableFuture<?> _ = answer.thenAccept(action);
    }

    /** @return empty if there was no answer in time */
    Optional<T> await(Deadline deadline) throws PipeException {
        try {
            return Optional.of(deadline.get(answer));
        } catch (TimeoutException _) {
            return Optional.empty();
        } catch (ExecutionException e) {
            if (e.getCause() instanceof DamagedTensorException damaged) {
                throw new DamagedTensorException(String.valueOf(damaged.getMessage()), damaged);
            }
            if (e.getCause() instanceof PipeException cause) {
                throw new PipeException(String.valueOf(cause.getMessage()), cause);
            }
            throw new PipeException(e.toString(), e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new PipeException("interrupted while waiting for an entry", e);
        }
    }

    static PipeException late(int[] tokens, Duration timeout) {
        return new PipeException(
                "no entry for %d tokens came within %d ms".formatted(tokens.length, timeout.toMillis()));
    }
}
