package baton.engine.core;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.BooleanSupplier;

/**
 * Answers to requests that have ended, which the connector holds back: see {@link
 * baton.kv.connector.SchedulerConnector.Release#answerIsHeld}. Owned by the core's thread.
 */
final class HeldAnswers {
    private final Map<String, Held> held = new LinkedHashMap<>();

    private record Held(BooleanSupplier isHeld, Runnable answer) {}

    /** Gives the answer now, or after the step from which on it is not held. */
    void giveWhenReady(String id, BooleanSupplier isHeld, Runnable answer) {
        if (isHeld.getAsBoolean()) {
            held.put(id, new Held(isHeld, answer));
        } else {
            answer.run();
        }
    }

    boolean isEmpty() {
        return held.isEmpty();
    }

    boolean isHeld(String id) {
        return held.containsKey(id);
    }

    /** Gives the answers that are not held any more. */
    void releaseReady() {
        for (Map.Entry<String, Held> each : List.copyOf(held.entrySet())) {
            if (!each.getValue().isHeld.getAsBoolean()) {
                release(each.getKey());
            }
        }
    }

    /** Gives an answer, if it is held. */
    void release(String id) {
        Optional.ofNullable(held.remove(id)).map(Held::answer).ifPresent(Runnable::run);
    }

    void releaseAll() {
        List.copyOf(held.keySet()).forEach(this::release);
    }
}
