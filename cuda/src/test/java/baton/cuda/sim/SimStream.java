package baton.cuda.sim;

import baton.cuda.driver.CudaException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.Deque;
import java.util.List;
import java.util.Optional;

/** Work of a stream that has not been done. It is done when something waits for it, no earlier. */
final class SimStream {
    private final Deque<Runnable> queue = new ArrayDeque<>();
    private long done;
    private Optional<Capture> capture = Optional.empty();

    /** The work of the capture that is done before the stream's next one. */
    private BitSet before = new BitSet();

    /** Work that goes into a graph. */
    private static final class Capture {
        private final SimStream origin;
        private final List<SimStream> streams = new ArrayList<>();
        private final List<Runnable> work = new ArrayList<>();
        private boolean over;

        private Capture(SimStream origin) {
            this.origin = origin;
            streams.add(origin);
        }
    }

    /** A point in a stream. */
    static final class Event {
        private Optional<SimStream> stream = Optional.empty();
        private Optional<Capture> capture = Optional.empty();
        private BitSet before = new BitSet();
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

        void checkNotCaptured(String function) {
            if (capture.isPresent()) {
                throw captured(function);
            }
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
            before.set(capture.get().work.size());
            capture.get().work.add(work);
        } else {
            queue.add(work);
        }
    }

    boolean isCapturing() {
        return capture.isPresent();
    }

    void beginCapture() {
        capture = Optional.of(new Capture(this));
        before = new BitSet();
    }

    /** The work since {@link #beginCapture}. */
    List<Runnable> endCapture() {
        Capture ended = capture.orElseThrow();
        ended.over = true;
        ended.streams.forEach(stream -> stream.capture = Optional.empty());
        if (before.cardinality() < ended.work.size()) {
            throw new CudaException(
                    "cuStreamEndCapture",
                    904,
                    "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
                    "the stream that began the capture does not wait for all work of the others");
        }
        return List.copyOf(ended.work);
    }

    boolean isOriginOfCapture() {
        return capture.isPresent() && capture.get().origin == this;
    }

    void record(Event event, Clock clock) {
        event.stream = Optional.of(this);
        event.capture = capture;
        event.before = (BitSet) before.clone();
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
            // The graph executes its work in the order in which it was enqueued, so later work waits.
            Capture joined = event.capture.get();
            if (joined.over) {
                throw captured("cuStreamWaitEvent");
            }
            if (capture.isEmpty()) {
                joined.streams.add(this);
                capture = event.capture;
                before = new BitSet();
            }
            before.or(event.before);
            return;
        }
        if (capture.isPresent()) {
            throw new CudaException(
                    "cuStreamWaitEvent",
                    905,
                    "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
                    "the stream captures a graph, and the event was recorded outside of it");
        }
        SimStream other = event.stream.get();
        long position = event.position;
        enqueue(() -> other.runTo(position));
    }

    private static CudaException captured(String function) {
        return new CudaException(
                function, 907, "CUDA_ERROR_CAPTURED_EVENT", "the event was last recorded in a capture");
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
