package baton.cuda.sim;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Optional;

/** Work of a stream that has not been done. It is done when something waits for it, no earlier. */
final class SimStream {
    private final Deque<Runnable> queue = new ArrayDeque<>();
    private long done;
    private Optional<Capture> capture = Optional.empty();

    /** Work that goes into a graph. */
    record Capture(SimStream origin, List<SimStream> streams, List<Runnable> work) {}

    /** A point in a stream. */
    static final class Event {
        private Optional<SimStream> stream = Optional.empty();
        private Optional<Capture> capture = Optional.empty();
        private long position;
        private int polls;
        private long time;

        boolean isRecorded() {
            return stream.isPresent() && capture.isEmpty();
        }

        boolean isPassed() {
            return stream.isEmpty() || stream.get().done >= position;
        }

        long time() {
            return time;
        }

        /** Whether it is passed; it is once it was asked for often enough. */
        boolean poll(int times) {
            if (!isPassed() && ++polls >= times) {
                stream.orElseThrow().runTo(position);
            }
            return isPassed();
        }
    }

    /** Time that the simulated device has computed. */
    interface Clock {
        long nanos();
    }

    void enqueue(Runnable work) {
        if (capture.isPresent()) {
            capture.get().work.add(work);
        } else {
            queue.add(work);
        }
    }

    boolean isCapturing() {
        return capture.isPresent();
    }

    void beginCapture() {
        Capture begun = new Capture(this, new ArrayList<>(List.of(this)), new ArrayList<>());
        capture = Optional.of(begun);
    }

    /** The work since {@link #beginCapture}. */
    List<Runnable> endCapture() {
        Capture ended = capture.orElseThrow();
        ended.streams.forEach(stream -> stream.capture = Optional.empty());
        return List.copyOf(ended.work);
    }

    boolean isOriginOfCapture() {
        return capture.isPresent() && capture.get().origin == this;
    }

    void record(Event event, Clock clock) {
        event.stream = Optional.of(this);
        event.capture = capture;
        event.polls = 0;
        if (capture.isEmpty()) {
            queue.add(() -> event.time = clock.nanos());
            event.position = done + queue.size();
        }
    }

    void waitFor(Event event) {
        if (event.stream.isEmpty()) {
            return;
        }
        if (event.capture.isPresent()) {
            // The graph executes its work in the order in which it was enqueued, so what comes later waits.
            Capture joined = event.capture.get();
            if (capture.isEmpty()) {
                joined.streams.add(this);
                capture = event.capture;
            }
            return;
        }
        SimStream other = event.stream.get();
        long position = event.position;
        enqueue(() -> other.runTo(position));
    }

    void synchronize() {
        runTo(done + queue.size());
    }

    private void runTo(long position) {
        while (done < position) {
            Runnable work = queue.removeFirst();
            done++;
            work.run();
        }
    }
}
