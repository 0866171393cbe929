package baton.connectors.mooncake;

import baton.connectors.mooncake.XferReply.Status;
import baton.connectors.mooncake.XferReply.Written;
import baton.connectors.mooncake.XferRequest.Own;
import baton.connectors.mooncake.XferRequest.Wanted;
import baton.connectors.onesided.Arrival;
import baton.connectors.onesided.PromptPlan.Wish;
import baton.kv.InvalidFieldException;
import baton.messages.PeerAddress;
import baton.messages.mooncake.MooncakeExchange;
import baton.messages.mooncake.MooncakeExchange.Asking;
import baton.messages.mooncake.MooncakeExchange.Ending;
import baton.transfer.TransferAgent.Permit;
import baton.transfer.TransferAgent.Span;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.function.BiConsumer;
import java.util.function.Consumer;
import java.util.stream.IntStream;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/*
 * Mooncake cannot hold a peer's writes back. So the blocks of a load that fails, or is cancelled, are released only when no rank writes to
 * them any more: the rank has answered; or it has confirmed that it stopped; or nothing listens at its address, and the bytes that its
 * process had sent before it ended have arrived; or it must have stopped by its own time limits.
 *
 * The embedded agent, which instances with a secret have, rejects writes once the permit is closed. So there the blocks of such a load are
 * released at once, and each rank is asked once to stop, so that it frees the prompt. Then its connection is closed, which ends the write
 * at a prefill rank that has the question.
 */

/** A prompt that prefill ranks are asked to write. */
final class WrittenPrompt implements Arrival {
    private static final Logger log = LoggerFactory.getLogger(WrittenPrompt.class);
    /** The time after the end of a peer's process in which the bytes in this host's buffers arrive. */
    private static final Duration DRAIN = Duration.ofSeconds(1);

    private static final Duration BETWEEN_STOPS = Duration.ofSeconds(1);

    private final PromptReceiver receiver;
    private final LocalRank local;
    private final Wish wish;
    private final String attempt;
    private final Optional<Permit> permit;
    private final List<Writer> writers;
    private Optional<String> failure = Optional.empty();

    /** Asks the ranks. */
    WrittenPrompt(PromptReceiver receiver, Wish wish, String attempt, List<PeerAddress> ranks, long now) {
        this.receiver = receiver;
        this.local = receiver.local;
        this.wish = wish;
        this.attempt = attempt;
        this.permit = local.settings().isSealed() ? permit() : Optional.empty();
        this.writers = ranks.stream().map(rank -> new Writer(rank, now)).toList();
    }

    /** The permit to write to the load's blocks. */
    private Optional<Permit> permit() {
        long bytes = local.cache().layout().blockBytes();
        return local.agent()
                .permit(IntStream.of(wish.blocks())
                        .mapToObj(block -> new Span(local.cache().memory().address() + block * bytes, bytes))
                        .toList());
    }

    private void fail(String why) {
        failure = failure.or(() -> Optional.of(why));
    }

    /** @param withRegions whether the message has this rank's regions, or only the id by which the prefill rank remembers them */
    private Asking ask(
            PeerAddress rank,
            boolean stop,
            boolean withRegions,
            Consumer<byte[]> answered,
            BiConsumer<Ending, String> ended) {
        Wanted wanted = new Wanted(wish.source().key(), List.of(wish.blocks()));
        XferRequest request = new XferRequest(
                receiver.session.host(),
                receiver.session.port(),
                local.context().tensorParallelSize(),
                local.rank().tensor(),
                local.context().pipelineParallelSize(),
                stop ? Map.of() : Map.of(wish.requestId(), wanted),
                withRegions ? receiver.regions : List.of(),
                stop ? 0 : receiver.layoutId,
                Optional.of(new Own(
                        attempt,
                        wish.source().key(),
                        local.compatibility(),
                        local.agent().metadata(),
                        permit.map(Permit::token).orElse(0L),
                        stop)));
        Duration timeout = local.settings().timeouts().handshake();
        return receiver.exchange.ask(rank, request.encode(), timeout, new MooncakeExchange.Asker() {
            @Override
            public void answered(byte[] reply) {
                receiver.happened(() -> answered.accept(reply));
            }

            @Override
            public void ended(Ending how, String why) {
                receiver.happened(() -> ended.accept(how, why));
            }
        });
    }

    /** One prefill rank, which writes its part. */
    private final class Writer {
        private final PeerAddress rank;
        private long lastWrite;
        private boolean withRegions;
        private Asking asking;
        private Optional<Asking> stop = Optional.empty();
        /** When to try to stop it next, if that is to be tried. */
        private OptionalLong nextStop = OptionalLong.empty();

        private boolean answered;
        /** The time from which on the rank does not write. */
        private OptionalLong silentFrom = OptionalLong.empty();

        private Optional<Written> written = Optional.empty();

        private Writer(PeerAddress rank, long now) {
            this.rank = rank;
            this.lastWrite = lastWrite(now);
            this.withRegions = !receiver.layoutHolders.contains(rank);
            this.asking = askToWrite(withRegions);
        }

        private Asking askToWrite(boolean regions) {
            // A connection that has been ended may have left events.
            return ask(
                    rank,
                    false,
                    regions,
                    message -> {
                        if (regions == withRegions) {
                            onAnswer(message);
                        }
                    },
                    (how, why) -> {
                        if (regions == withRegions) {
                            onEnd(how, why);
                        }
                    });
        }

        private long lastWrite(long now) {
            return now + local.settings().timeouts().lastWrite().toNanos();
        }

        private void onAnswer(byte[] message) {
            if (answered) {
                return;
            }
            try {
                XferReply reply = XferReply.decode(message);
                if (reply.status() == Status.LAYOUT_MISS) {
                    receiver.layoutHolders.remove(rank);
                    if (!withRegions && failure.isEmpty()) {
                        log.info("{} does not remember the regions of this rank, which are sent again", rank);
                        asking.close();
                        lastWrite = lastWrite(local.now());
                        withRegions = true;
                        asking = askToWrite(true);
                        return;
                    }
                } else if (reply.layoutId() == receiver.layoutId) {
                    receiver.layoutHolders.add(rank);
                }
                if (reply.failed().contains(wish.requestId())) {
                    fail(rank + ": " + PeerAddress.shown(reply.error().orElse("the blocks are not written")));
                } else if (reply.ok().contains(wish.requestId())) {
                    written = reply.written();
                } else if (reply.isLast()) {
                    fail(rank + ": "
                            + PeerAddress.shown(
                                    reply.error().orElse("the last answer does not report the result of the request")));
                } else {
                    return;
                }
                silent(local.now());
            } catch (InvalidFieldException e) {
                local.stats().count("baton:mooncake_bad_messages");
                fail(rank + " sends a malformed answer: " + e.getMessage());
            }
        }

        private void onEnd(Ending how, String why) {
            if (answered) {
                return;
            }
            fail(why);
            switch (how) {
                case REFUSED, UNREACHED -> {
                    receiver.engines.forget(wish.source());
                    receiver.layoutHolders.remove(rank);
                    silent(local.now());
                }
                case BROKEN -> {}
            }
        }

        private void silent(long from) {
            answered = true;
            silentFrom = OptionalLong.of(from);
            close();
        }

        private boolean isSilent(long now) {
            return silentFrom.isPresent() && now - silentFrom.getAsLong() >= 0;
        }

        /** The rank is to write no more. */
        private void stop(long now) {
            if (answered) {
                return;
            }
            if (now - lastWrite >= 0) {
                log.warn("{} has not said that it has stopped to write; by its own time limits it has", rank);
                local.stats().count("baton:mooncake_silent_peers");
                silent(now);
            } else if (stop.isEmpty() && (nextStop.isEmpty() || now - nextStop.getAsLong() >= 0)) {
                stop = Optional.of(ask(rank, true, false, this::onStopped, this::onStopEnd));
            }
        }

        private void onStopped(byte[] message) {
            if (answered) {
                return;
            }
            try {
                if (XferReply.decode(message).failed().contains(attempt)) {
                    silent(local.now());
                }
            } catch (InvalidFieldException e) {
                local.stats().count("baton:mooncake_bad_messages");
            }
        }

        private void onStopEnd(Ending how, String why) {
            if (answered) {
                return;
            }
            stop = Optional.empty();
            if (permit.isPresent()) {
                silent(local.now());
                return;
            }
            switch (how) {
                case REFUSED -> silent(local.now() + DRAIN.toNanos());
                case UNREACHED, BROKEN -> nextStop = OptionalLong.of(local.now() + BETWEEN_STOPS.toNanos());
            }
        }

        private void close() {
            asking.close();
            stop.ifPresent(Asking::close);
            stop = Optional.empty();
        }
    }

    @Override
    public boolean advance(Optional<String> stop, long now) {
        stop.ifPresent(this::fail);
        boolean silent = isSilent(now);
        boolean over = silent || (failure.isPresent() && permit.isPresent());
        if (over) {
            permit.ifPresent(Permit::close);
        }
        if (over && !silent) {
            receiver.stopping.add(this);
        }
        return over;
    }

    /** Whether nothing more is awaited of any rank. If it has failed, the ranks are asked to stop. */
    boolean isSilent(long now) {
        if (failure.isPresent()) {
            writers.forEach(writer -> writer.stop(now));
        }
        return writers.stream().allMatch(writer -> writer.isSilent(now));
    }

    @Override
    public Optional<String> failure() {
        return failure;
    }

    /** How many ranks were asked. */
    int writers() {
        return writers.size();
    }

    /** The ranks' reports of the bytes that they have written, if they send them. */
    List<Written> parts() {
        return writers.stream().flatMap(writer -> writer.written.stream()).toList();
    }

    @Override
    public void await() {
        writers.forEach(Writer::close);
    }
}
