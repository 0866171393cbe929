package baton.pipe;

import baton.kv.Ticker;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import org.jspecify.annotations.Nullable;

/**
 * The inserting end of a lookup buffer over two pipes.
 *
 * <p>One thread reads requests and registers them with the store; another one sends the answers in the order in which their
 * entries were matched. Either thread's failure ends both pipes.
 */
final class LookupProducer implements LookupBuffer {
    private static final int MOST_WAITING = 4096;
    private static final long MOST_WAITING_TOKENS = 64 << 20;

    private final Pipe requests;
    private final Pipe answers;
    private final LookupStore store;
    private final BlockingQueue<Answer> answered = new LinkedBlockingQueue<>();

    /** The waiting requests by number; guards itself and the field below. */
    @GuardedBy("waiting")
    private final Map<Long, LookupStore.Waiter> waiting = new HashMap<>();

    @GuardedBy("waiting")
    private long waitingTokens;

    /**
     * An answer to be sent.
     *
     * @param kept empty if the request is refused, or this is the last one
     * @param last ends the sending thread; nothing is sent
     */
    private record Answer(long number, Optional<LookupStore.Kept> kept, boolean last) {}

    LookupProducer(Pipe requests, Pipe answers, Settings settings, Ticker ticker) {
        this.requests = requests;
        this.answers = answers;
        this.store = new LookupStore(settings, ticker);
    }

    LookupProducer started() {
        Thread.ofPlatform()
                .daemon()
                .name("lookup-requests")
                .start(() -> LookupBuffers.runUntilFailure(this::takeRequests, this::end));
        Thread.ofPlatform().daemon().name("lookup-answers").start(() -> {
            LookupBuffers.runUntilFailure(this::sendAnswers, this::end);
            dropAnswers();
        });
        return this;
    }

    @Override
    public void insert(Entry entry, Duration timeout) throws PipeException {
        store.insert(entry, timeout);
    }

    @Override
    public void insertNever(int[] tokens, boolean[] roi, Duration timeout) throws PipeException {
        store.insertNever(tokens, roi, timeout);
    }

    @Override
    public Optional<Entry> dropSelect(int[] tokens, boolean[] roi, Duration timeout) {
        throw new UnsupportedOperationException("this end of the lookup buffer only inserts");
    }

    private void takeRequests() throws PipeException {
        long last = -1;
        while (true) {
            LookupMessage request = LookupMessage.receive(requests);
            switch (request.what()) {
                case SELECT -> {
                    if (request.number() <= last) {
                        throw new PipeException("request %d came after %d".formatted(request.number(), last));
                    }
                    last = request.number();
                    select(request);
                }
                case CANCEL -> cancel(request.number());
                case FOUND, NEVER, REFUSED -> throw new PipeException("the consumer answers");
            }
        }
    }

    private void select(LookupMessage request) {
        long number = request.number();
        LookupStore.Waiter waiter = new LookupStore.Waiter(request.tokens(), request.roi()) {
            @Override
            void matched(LookupStore.Kept kept) {
                answered.add(new Answer(number, Optional.of(kept), false));
            }

            @Override
            void ended(String reason) {
                // The end of the pipes notifies the consumer.
            }
        };
        synchronized (waiting) {
            if (waiting.size() >= MOST_WAITING || waitingTokens + request.tokens().length > MOST_WAITING_TOKENS) {
                answered.add(new Answer(number, Optional.empty(), false));
                return;
            }
            waiting.put(number, waiter);
            waitingTokens += request.tokens().length;
        }
        store.await(waiter);
    }

    private void cancel(long number) {
        LookupStore.Waiter waiter = forget(number);
        if (waiter != null) {
            boolean _ = store.cancel(waiter);
        }
    }

    private LookupStore.@Nullable Waiter forget(long number) {
        synchronized (waiting) {
            LookupStore.Waiter waiter = waiting.remove(number);
            if (waiter != null) {
                waitingTokens -= waiter.tokens.length;
            }
            return waiter;
        }
    }

    private void sendAnswers() throws PipeException, InterruptedException {
        // Without a timeout: end() adds the last answer.
        for (Answer answer = answered.take(); !answer.last(); answer = answered.take()) {
            LookupStore.Waiter _ = forget(answer.number());
            if (answer.kept().isEmpty()) {
                send(LookupMessage.of(LookupMessage.What.REFUSED, answer.number()));
            } else {
                send(answer.number(), answer.kept().get());
            }
        }
    }

    /** Frees entries that were matched and not sent. */
    private void dropAnswers() {
        // First, so that no more entries are matched.
        store.end("its answers have ended");
        for (Answer answer = answered.poll(); answer != null; answer = answered.poll()) {
            answer.kept().flatMap(LookupStore.Kept::content).ifPresent(Entry::close);
            answer.kept().ifPresent(store::release);
        }
    }

    private void send(long number, LookupStore.Kept kept) throws PipeException {
        Deque<Tensor> parts = new ArrayDeque<>(kept.content().map(Entry::parts).orElse(List.of()));
        try {
            if (parts.isEmpty()) {
                send(LookupMessage.of(LookupMessage.What.NEVER, number));
                return;
            }
            send(new LookupMessage(LookupMessage.What.FOUND, number, kept.tokens(), kept.roi()));
            while (!parts.isEmpty()) {
                answers.send(parts.remove(), LookupBuffers.PART);
            }
        } finally {
            parts.forEach(Tensor::close);
            store.release(kept);
        }
    }

    private void send(LookupMessage message) throws PipeException {
        answers.send(message.encode(), LookupBuffers.PART);
    }

    private void end(String reason) {
        store.end(reason);
        answered.add(new Answer(0, Optional.empty(), true));
        requests.close();
        answers.close();
    }

    @Override
    public void close() {
        end("it was closed on this side");
    }
}
