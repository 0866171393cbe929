package baton.pipe;

import baton.kv.Deadline;
import baton.kv.Ticker;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.locks.ReentrantLock;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The end of a lookup buffer over two pipes that looks entries up. One thread reads the answers and completes the lookups that
 * wait for them; its failure ends both pipes and fails all lookups.
 */
final class LookupConsumer implements LookupBuffer {
    private static final Logger LOG = LoggerFactory.getLogger(LookupConsumer.class);

    /** The limit for the message that a lookup is cancelled. */
    private static final Duration CANCELLATION = Duration.ofSeconds(1);

    /** The parts of an entry: keys, values, hidden states. */
    private static final int PARTS = 3;

    private static final int HIDDEN = 2;

    private final Pipe requests;
    private final Pipe answers;
    private final TensorMemory memory;
    private final Ticker ticker;

    /** Held while a request is sent, so that requests are sent in the order of their numbers. */
    private final ReentrantLock order = new ReentrantLock(true);

    @GuardedBy("this")
    private final Map<Long, Asked> waiting = new HashMap<>();

    @GuardedBy("this")
    private long numbers;

    @GuardedBy("this")
    private @Nullable String ended;

    private record Asked(LookupMessage request, PendingLookup<Optional<Entry>> lookup) {}

    LookupConsumer(Pipe requests, Pipe answers, TensorMemory memory, Ticker ticker) {
        this.requests = requests;
        this.answers = answers;
        this.memory = memory;
        this.ticker = ticker;
    }

    LookupConsumer started() {
        Thread.ofPlatform()
                .daemon()
                .name("lookup-taken")
                .start(() -> LookupBuffers.runUntilFailure(this::takeAnswers, this::end));
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
    public Optional<Entry> dropSelect(int[] tokens, boolean[] roi, Duration timeout) throws PipeException {
        if (tokens.length != roi.length) {
            throw new IllegalArgumentException(
                    "tokens.length=%d roi.length=%d must be equal".formatted(tokens.length, roi.length));
        }
        Deadline deadline = Deadline.after(ticker, timeout);
        Asked asked = ask(tokens, roi, deadline);
        Optional<Optional<Entry>> answer;
        try {
            answer = asked.lookup().await(deadline);
            if (answer.isEmpty() && !withdraw(asked)) {
                // Answered just before.
                answer = asked.lookup().await(Deadline.after(ticker, Duration.ZERO));
            }
        } catch (PipeException e) {
            if (!withdraw(asked)) {
                asked.lookup().whenAnswered(content -> content.ifPresent(Entry::close));
            }
            throw e;
        }
        return answer.orElseThrow(() -> PendingLookup.late(tokens, timeout));
    }

    private Asked ask(int[] tokens, boolean[] roi, Deadline deadline) throws PipeException {
        try {
            if (!deadline.tryLock(order)) {
                throw PendingLookup.late(tokens, deadline.timeout());
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new PipeException("interrupted before asking for an entry", e);
        }
        try {
            Asked asked;
            synchronized (this) {
                if (ended != null) {
                    throw new PipeException("the lookup buffer has ended: " + ended);
                }
                LookupMessage request =
                        new LookupMessage(LookupMessage.What.SELECT, numbers++, tokens.clone(), roi.clone());
                asked = new Asked(request, new PendingLookup<>());
                waiting.put(request.number(), asked);
            }
            try {
                send(asked.request(), deadline.remaining());
            } catch (PipeException | RuntimeException e) {
                synchronized (this) {
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
        synchronized (this) {
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
        requests.send(message.encode(), timeout);
    }

    private void takeAnswers() throws PipeException {
        while (true) {
            LookupMessage answer = LookupMessage.receive(answers);
            Optional<Entry> content;
            try {
                content = switch (answer.what()) {
                    case FOUND -> Optional.of(takeEntry(answer));
                    case NEVER, REFUSED -> Optional.empty();
                    case SELECT, CANCEL -> throw new PipeException("the producer asks");
                };
            } catch (DamagedTensorException e) {
                refuse(answer, e);
                continue;
            }
            boolean given = false;
            try {
                given = complete(answer, content);
            } finally {
                if (!given) {
                    content.ifPresent(Entry::close);
                }
            }
            if (!given && content.isPresent()) {
                LOG.info("an entry of {} tokens came after its lookup had ended", answer.tokens().length);
            }
        }
    }

    private Entry takeEntry(LookupMessage answer) throws PipeException {
        List<Tensor> parts = new ArrayList<>();
        try {
            Optional<DamagedTensorException> damaged = Optional.empty();
            for (int part = 0; part < PARTS; part++) {
                try {
                    parts.add(answers.receive(part == HIDDEN ? TensorMemory.HOST : memory, LookupBuffers.PART));
                } catch (DamagedTensorException e) {
                    // The other parts come all the same.
                    damaged = Optional.of(e);
                }
            }
            if (damaged.isPresent()) {
                throw damaged.get();
            }
            return new Entry(answer.tokens(), answer.roi(), parts.get(0), parts.get(1), parts.get(HIDDEN));
        } catch (PipeException | RuntimeException | Error e) {
            parts.forEach(Tensor::close);
            throw e;
        }
    }

    private synchronized void refuse(LookupMessage answer, PipeException why) {
        Optional.ofNullable(waiting.remove(answer.number()))
                .ifPresent(asked -> asked.lookup().refuse(why));
    }

    /** @return whether a lookup has taken it over */
    private boolean complete(LookupMessage answer, Optional<Entry> content) throws PipeException {
        Asked asked;
        synchronized (this) {
            if (answer.number() < 0 || answer.number() >= numbers) {
                throw new PipeException("an answer to request %d of %d".formatted(answer.number(), numbers));
            }
            asked = waiting.remove(answer.number());
            if (asked == null) {
                return false;
            }
            LookupMessage request = asked.request();
            if (answer.what() == LookupMessage.What.REFUSED) {
                asked.lookup().refuse(new PipeException("too many wait for entries"));
            } else if (content.isPresent()
                    && !LookupStore.matches(request.tokens(), request.roi(), answer.tokens(), answer.roi())) {
                asked.lookup().fail("an entry does not match its lookup");
                throw new PipeException("an entry does not match its lookup");
            } else {
                asked.lookup().complete(content);
            }
            return true;
        }
    }

    private void end(String reason) {
        synchronized (this) {
            if (ended == null) {
                ended = reason;
            }
            waiting.values().forEach(each -> each.lookup().fail(reason));
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
