package baton.pipe;

import java.lang.foreign.Arena;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.locks.ReentrantLock;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Lookup buffers: within a process, and over two pipes between a producer and a consumer as vLLM's {@code SimpleBuffer}, whose
 * signal pipe carries requests and whose data pipe carries answers. Here requests have numbers, so that many wait at once and
 * are answered as their entries come.
 */
public final class LookupBuffers {
    private static final Logger LOG = LoggerFactory.getLogger(LookupBuffers.class);
    private static final int MOST_WAITING = 4096;
    private static final long MOST_WAITING_TOKENS = 64 << 20;
    /** In which the other side's thread, which does nothing else, takes a part of an answer. */
    private static final Duration PART = Duration.ofMinutes(5);

    private static final Duration CANCELLATION = Duration.ofSeconds(1);

    private static final Duration LONGEST = WirePipe.LONGEST;

    private LookupBuffers() {}

    /** One that insertion and lookup use directly. */
    public static LookupBuffer inProcess(LookupBuffer.Settings settings) {
        return new InProcess(settings);
    }

    /**
     * The end that inserts. Both pipes belong to it.
     *
     * @param requests whose receiving end this has
     * @param answers whose sending end this has
     */
    public static LookupBuffer producer(Pipe requests, Pipe answers, LookupBuffer.Settings settings) {
        return new Producer(requests, answers, settings).started();
    }

    /**
     * The end that looks up. Both pipes belong to it.
     *
     * @param requests whose sending end this has
     * @param answers whose receiving end this has
     */
    public static LookupBuffer consumer(Pipe requests, Pipe answers) {
        return new Consumer(requests, answers).started();
    }

    /** Somebody in this process who waits for an answer. */
    private static final class Asker<T> {
        private final CompletableFuture<T> answer = new CompletableFuture<>();

        private void fail(String reason) {
            answer.completeExceptionally(new PipeException("the lookup buffer has ended: " + reason));
        }

        /** @return empty if it did not come in time */
        private Optional<T> await(Duration timeout) throws PipeException {
            try {
                return Optional.of(answer.get(nanos(timeout), TimeUnit.NANOSECONDS));
            } catch (TimeoutException _) {
                return Optional.empty();
            } catch (ExecutionException e) {
                if (e.getCause() instanceof PipeException cause) {
                    throw new PipeException(String.valueOf(cause.getMessage()), cause);
                }
                throw new PipeException(e.toString(), e);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                throw new PipeException("interrupted while waiting for an entry", e);
            }
        }
    }

    private static long nanos(Duration timeout) {
        return (timeout.compareTo(LONGEST) > 0 ? LONGEST : timeout).toNanos();
    }

    private static PipeException late(int[] tokens, Duration timeout) {
        return new PipeException(
                "no entry for %d tokens came within %d ms".formatted(tokens.length, timeout.toMillis()));
    }

    private static final class InProcess implements LookupBuffer {
        private final LookupStore store;

        InProcess(Settings settings) {
            store = new LookupStore(settings);
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
        public Optional<Taken> dropSelect(int[] tokens, boolean[] roi, Duration timeout) throws PipeException {
            Asker<LookupStore.Kept> asker = new Asker<>();
            LookupStore.Waiter waiter = new LookupStore.Waiter(tokens, roi) {
                @Override
                void matched(LookupStore.Kept kept) {
                    asker.answer.complete(kept);
                }

                @Override
                void ended(String reason) {
                    asker.fail(reason);
                }
            };
            store.await(waiter);
            Optional<LookupStore.Kept> matched;
            try {
                matched = asker.await(timeout);
            } catch (PipeException e) {
                if (!store.cancel(waiter)) {
                    // Matched just before.
                    CompletableFuture<?> _ = asker.answer.thenAccept(kept -> {
                        store.release(kept);
                        kept.content().ifPresent(Taken::close);
                    });
                }
                throw e;
            }
            if (matched.isEmpty() && !store.cancel(waiter)) {
                matched = asker.await(Duration.ZERO);
            }
            LookupStore.Kept kept = matched.orElseThrow(() -> late(tokens, timeout));
            store.release(kept);
            return kept.content();
        }

        @Override
        public void close() {
            store.end("it was closed");
        }
    }

    private static final class Producer implements LookupBuffer {
        private final Pipe requests;
        private final Pipe answers;
        private final LookupStore store;
        private final BlockingQueue<Answer> answered = new LinkedBlockingQueue<>();
        private final Map<Long, LookupStore.Waiter> waiting = new HashMap<>();
        private long waitingTokens;

        /** @param kept empty if it is refused, or the end */
        private record Answer(long number, Optional<LookupStore.Kept> kept, boolean last) {}

        Producer(Pipe requests, Pipe answers, Settings settings) {
            this.requests = requests;
            this.answers = answers;
            this.store = new LookupStore(settings);
        }

        private Producer started() {
            Thread.ofPlatform()
                    .daemon()
                    .name("lookup-requests")
                    .start(() -> untilItEnds(this::takeRequests, this::end));
            Thread.ofPlatform().daemon().name("lookup-answers").start(() -> {
                untilItEnds(this::sendAnswers, this::end);
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
        public Optional<Taken> dropSelect(int[] tokens, boolean[] roi, Duration timeout) {
            throw new UnsupportedOperationException("this end of the lookup buffer only inserts");
        }

        private void takeRequests() throws PipeException {
            long last = -1;
            while (true) {
                LookupMessage request;
                try (Arena arena = Arena.ofConfined()) {
                    request = LookupMessage.decode(requests.receive(arena, LONGEST));
                }
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
                    // The pipes' end tells the consumer.
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
            for (Answer answer = answered.take(); !answer.last(); answer = answered.take()) {
                LookupStore.Waiter _ = forget(answer.number());
                if (answer.kept().isEmpty()) {
                    send(LookupMessage.of(LookupMessage.What.REFUSED, answer.number()));
                } else {
                    send(answer.number(), answer.kept().get());
                }
            }
        }

        /** What was matched is on its way to nobody. */
        private void dropAnswers() {
            // After that nothing is matched any more.
            store.end("its answers have ended");
            for (Answer answer = answered.poll(); answer != null; answer = answered.poll()) {
                answer.kept().flatMap(LookupStore.Kept::content).ifPresent(Taken::close);
                answer.kept().ifPresent(store::release);
            }
        }

        private void send(long number, LookupStore.Kept kept) throws PipeException {
            try {
                if (kept.content().isEmpty()) {
                    send(LookupMessage.of(LookupMessage.What.NEVER, number));
                    return;
                }
                try (Taken content = kept.content().get()) {
                    Entry entry = content.entry();
                    send(new LookupMessage(LookupMessage.What.FOUND, number, kept.tokens(), kept.roi()));
                    answers.send(Optional.of(entry.key()), PART);
                    answers.send(Optional.of(entry.value()), PART);
                    answers.send(Optional.of(entry.hidden()), PART);
                }
            } finally {
                store.release(kept);
            }
        }

        private void send(LookupMessage message) throws PipeException {
            try (Arena arena = Arena.ofConfined()) {
                answers.send(Optional.of(message.encode(arena)), PART);
            }
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

    private static final class Consumer implements LookupBuffer {
        private final Pipe requests;
        private final Pipe answers;

        /** Held by who sends a request: their numbers are in order. */
        private final ReentrantLock order = new ReentrantLock(true);

        /** Guards what follows. */
        private final Object monitor = new Object();

        private final Map<Long, Asked> waiting = new HashMap<>();
        private long numbers;
        private @Nullable String ended;

        private record Asked(LookupMessage request, Asker<Optional<Taken>> asker) {}

        Consumer(Pipe requests, Pipe answers) {
            this.requests = requests;
            this.answers = answers;
        }

        private Consumer started() {
            Thread.ofPlatform().daemon().name("lookup-taken").start(() -> untilItEnds(this::takeAnswers, this::end));
            return this;
        }

        @Override
        public void insert(Entry entry, Duration timeout) {
            throw new UnsupportedOperationException("this end of the lookup buffer only looks up");
        }

        @Override
        public void insertNever(int[] tokens, boolean[] roi, Duration timeout) {
            throw new UnsupportedOperationException("this end of the lookup buffer only looks up");
        }

        @Override
        public Optional<Taken> dropSelect(int[] tokens, boolean[] roi, Duration timeout) throws PipeException {
            if (tokens.length != roi.length) {
                throw new IllegalArgumentException(
                        "tokens.length=%d roi.length=%d must be equal".formatted(tokens.length, roi.length));
            }
            long begun = System.nanoTime();
            Asked asked = ask(tokens, roi, timeout);
            Optional<Optional<Taken>> answer;
            try {
                answer = asked.asker().await(timeout.minusNanos(System.nanoTime() - begun));
            } catch (PipeException e) {
                if (!withdraw(asked)) {
                    CompletableFuture<?> _ =
                            asked.asker().answer.thenAccept(content -> content.ifPresent(Taken::close));
                }
                throw e;
            }
            if (answer.isEmpty() && !withdraw(asked)) {
                // Answered just before.
                answer = asked.asker().await(Duration.ZERO);
            }
            return answer.orElseThrow(() -> late(tokens, timeout));
        }

        private Asked ask(int[] tokens, boolean[] roi, Duration timeout) throws PipeException {
            try {
                if (!order.tryLock(nanos(timeout), TimeUnit.NANOSECONDS)) {
                    throw late(tokens, timeout);
                }
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                throw new PipeException("interrupted before asking for an entry", e);
            }
            try {
                Asked asked;
                synchronized (monitor) {
                    if (ended != null) {
                        throw new PipeException("the lookup buffer has ended: " + ended);
                    }
                    LookupMessage request =
                            new LookupMessage(LookupMessage.What.SELECT, numbers++, tokens.clone(), roi.clone());
                    asked = new Asked(request, new Asker<>());
                    waiting.put(request.number(), asked);
                }
                try {
                    send(asked.request(), timeout);
                } catch (PipeException | RuntimeException e) {
                    synchronized (monitor) {
                        waiting.remove(asked.request().number());
                    }
                    throw e;
                }
                return asked;
            } finally {
                order.unlock();
            }
        }

        /** @return false if it was answered before */
        private boolean withdraw(Asked asked) {
            synchronized (monitor) {
                if (waiting.remove(asked.request().number()) == null) {
                    return false;
                }
            }
            boolean interrupted = Thread.interrupted();
            try {
                send(LookupMessage.of(LookupMessage.What.CANCEL, asked.request().number()), CANCELLATION);
            } catch (PipeException e) {
                LOG.debug("a lookup that is not waited for any more: {}", e.getMessage());
            } finally {
                if (interrupted) {
                    Thread.currentThread().interrupt();
                }
            }
            return true;
        }

        private void send(LookupMessage message, Duration timeout) throws PipeException {
            try (Arena arena = Arena.ofConfined()) {
                requests.send(Optional.of(message.encode(arena)), timeout);
            }
        }

        private void takeAnswers() throws PipeException {
            while (true) {
                LookupMessage answer;
                try (Arena arena = Arena.ofConfined()) {
                    answer = LookupMessage.decode(answers.receive(arena, LONGEST));
                }
                Optional<Taken> content = switch (answer.what()) {
                    case FOUND -> Optional.of(takeEntry(answer));
                    case NEVER, REFUSED -> Optional.empty();
                    case SELECT, CANCEL -> throw new PipeException("the producer asks");
                };
                boolean given = false;
                try {
                    given = give(answer, content);
                } finally {
                    if (!given) {
                        content.ifPresent(Taken::close);
                    }
                }
                if (!given && content.isPresent()) {
                    LOG.info("an entry of {} tokens came too late for who looked it up", answer.tokens().length);
                }
            }
        }

        private Taken takeEntry(LookupMessage answer) throws PipeException {
            Arena arena = Arena.ofShared();
            try {
                Tensor key = takePart(arena);
                Tensor value = takePart(arena);
                Tensor hidden = takePart(arena);
                return new Taken(new Entry(answer.tokens(), answer.roi(), key, value, hidden), arena);
            } catch (PipeException | RuntimeException | Error e) {
                arena.close();
                throw e;
            }
        }

        private Tensor takePart(Arena arena) throws PipeException {
            return answers.receive(arena, PART).orElseThrow(() -> new PipeException("a part of an entry is nothing"));
        }

        /** @return whether somebody has it now */
        private boolean give(LookupMessage answer, Optional<Taken> content) throws PipeException {
            Asked asked;
            synchronized (monitor) {
                if (answer.number() < 0 || answer.number() >= numbers) {
                    throw new PipeException("an answer to request %d of %d".formatted(answer.number(), numbers));
                }
                asked = waiting.remove(answer.number());
                if (asked == null) {
                    return false;
                }
                LookupMessage request = asked.request();
                if (answer.what() == LookupMessage.What.REFUSED) {
                    asked.asker().answer.completeExceptionally(new PipeException("too many wait for entries"));
                } else if (content.isPresent()
                        && !LookupStore.matches(request.tokens(), request.roi(), answer.tokens(), answer.roi())) {
                    asked.asker().fail("an entry does not match what was asked for");
                    throw new PipeException("an entry does not match what was asked for");
                } else {
                    asked.asker().answer.complete(content);
                }
                return true;
            }
        }

        private void end(String reason) {
            synchronized (monitor) {
                if (ended == null) {
                    ended = reason;
                }
                waiting.values().forEach(each -> each.asker().fail(reason));
                waiting.clear();
            }
            requests.close();
            answers.close();
        }

        @Override
        public void close() {
            end("it was closed on this side");
        }
    }

    private interface Loop {
        void run() throws PipeException, InterruptedException;
    }

    private static void untilItEnds(Loop loop, java.util.function.Consumer<String> end) {
        try {
            loop.run();
        } catch (PipeException e) {
            end.accept(String.valueOf(e.getMessage()));
        } catch (InterruptedException | RuntimeException | Error e) {
            end.accept(e.toString());
        }
    }
}
