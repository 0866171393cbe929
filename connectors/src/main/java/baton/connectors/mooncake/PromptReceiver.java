package baton.connectors.mooncake;

import baton.connectors.mooncake.MooncakeConnectorMetadata.Load;
import baton.connectors.mooncake.WritePlan.Misfit;
import baton.connectors.mooncake.XferReply.Written;
import baton.connectors.mooncake.XferRequest.Own;
import baton.connectors.mooncake.XferRequest.Wanted;
import baton.connectors.onesided.Rejection;
import baton.kv.Deadline;
import baton.kv.InvalidFieldException;
import baton.kv.connector.Rank;
import baton.messages.PeerAddress;
import baton.messages.mooncake.EngineTable;
import baton.messages.mooncake.EngineTable.Engine;
import baton.messages.mooncake.MooncakeExchange;
import baton.messages.mooncake.MooncakeExchange.Asking;
import baton.messages.mooncake.MooncakeExchange.Ending;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.Queue;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeoutException;
import java.util.stream.IntStream;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/*
 * A load asks the registry where the prefill instance's ranks are, then asks those that have its heads and layers, and then checks what
 * they have written.
 *
 * Mooncake cannot hold a peer's writes back. So the blocks of a load that fails, or is not wanted any more, are given back only when no
 * rank writes to them any more: it has answered; or it has answered that it has stopped; or nothing listens at its address, and what its
 * process had sent before it ended has arrived; or it must have stopped by its own time limits.
 */

/** The decode side of one rank: has prompts written into its blocks. The rank's thread owns it. */
final class PromptReceiver {
    private static final Logger log = LoggerFactory.getLogger(PromptReceiver.class);
    private static final Duration CLOSE = Duration.ofSeconds(10);
    /** After the end of a peer's process, for what is left in this host's buffers. */
    private static final Duration DRAIN = Duration.ofSeconds(1);

    private static final Duration BETWEEN_STOPS = Duration.ofSeconds(1);
    private static final int MOST_ENGINES = 4096;

    private final LocalRank local;
    private final MooncakeExchange exchange;
    private final PeerAddress session;
    private final List<Region> regions;
    private final String incarnation = UUID.randomUUID().toString();
    private final Map<String, Loading> loads = new LinkedHashMap<>();
    /** By engine id. */
    private final Map<String, Engine> engines = new LinkedHashMap<>();
    /** By the registry's address. */
    private final Map<String, Lookup> lookups = new LinkedHashMap<>();
    /** Events of other threads. */
    private final Queue<Runnable> events = new ConcurrentLinkedQueue<>();

    private long attempts;

    /** @param session of the transfer agent, by which vLLM's prefill ranks find it */
    PromptReceiver(LocalRank local, MooncakeExchange exchange, PeerAddress session) {
        this.local = local;
        this.exchange = exchange;
        this.session = session;
        this.regions = Region.of(local.cache());
    }

    /**
     * Results of loads since the last report.
     *
     * @param received requests of which the loads are over
     * @param invalid their blocks that do not have what was wanted
     */
    record Finished(Set<String> received, Set<Integer> invalid) {}

    /** A question to a registry, for all loads that wait for its answer. */
    private static final class Lookup {
        private final CompletableFuture<EngineTable> answer;
        /** When its end was first seen. */
        private OptionalLong ended = OptionalLong.empty();

        private Lookup(CompletableFuture<EngineTable> answer) {
            this.answer = answer;
        }

        private boolean isOf(long since, long now) {
            if (answer.isDone() && ended.isEmpty()) {
                ended = OptionalLong.of(now);
            }
            return ended.isEmpty() || ended.getAsLong() - since >= 0;
        }
    }

    private final class Loading {
        private final Load load;
        private final long begun;
        private final String attempt;
        private final List<Leg> legs = new ArrayList<>();
        private boolean asked;
        private Optional<String> failure = Optional.empty();
        private Optional<CompletableFuture<Set<Integer>>> check = Optional.empty();
        private Set<Integer> invalid = Set.of();
        private boolean over;

        private Loading(Load load, long now) {
            this.load = load;
            this.begun = now;
            this.attempt = incarnation + "." + local.rank().pipeline() + "."
                    + local.rank().tensor() + "." + ++attempts;
        }

        private void fail(String why) {
            failure = failure.or(() -> Optional.of(why));
        }

        private byte[] message(boolean stop) {
            Wanted wanted = new Wanted(load.source().transferId(), List.of(load.blocks()));
            return new XferRequest(
                            session.host(),
                            session.port(),
                            local.context().tensorParallelSize(),
                            local.rank().tensor(),
                            local.context().pipelineParallelSize(),
                            stop ? Map.of() : Map.of(load.requestId(), wanted),
                            stop ? List.of() : regions,
                            Optional.of(new Own(
                                    attempt,
                                    load.source().transferId(),
                                    local.compatibility(),
                                    local.agent().metadata(),
                                    stop)))
                    .encode();
        }
    }

    /** One prefill rank's part of a load. */
    private final class Leg {
        private final Loading loading;
        private final PeerAddress rank;
        private final long lastWrite;
        private Asking asking;
        private Optional<Asking> stop = Optional.empty();
        /** When to try to stop it next, if that is to be tried. */
        private OptionalLong nextStop = OptionalLong.empty();

        private boolean answered;
        /** From then on the rank does not write. */
        private OptionalLong silentFrom = OptionalLong.empty();

        private Optional<Written> written = Optional.empty();

        private Leg(Loading loading, PeerAddress rank, long now) {
            this.loading = loading;
            this.rank = rank;
            this.lastWrite = now + local.settings().timeouts().lastWrite().toNanos();
            this.asking = exchange.ask(
                    rank,
                    loading.message(false),
                    local.settings().timeouts().handshake(),
                    asker(this::onAnswer, this::onEnd));
        }

        private MooncakeExchange.Asker asker(
                java.util.function.Consumer<byte[]> answered, java.util.function.BiConsumer<Ending, String> ended) {
            return new MooncakeExchange.Asker() {
                @Override
                public void answered(byte[] reply) {
                    happened(() -> answered.accept(reply));
                }

                @Override
                public void ended(Ending how, String why) {
                    happened(() -> ended.accept(how, why));
                }
            };
        }

        private void onAnswer(byte[] message) {
            if (answered) {
                return;
            }
            try {
                XferReply reply = XferReply.decode(message);
                if (reply.ok().contains(loading.load.requestId())) {
                    written = reply.written();
                } else if (reply.failed().contains(loading.load.requestId()) || reply.isLast()) {
                    loading.fail(rank + ": " + PeerAddress.shown(reply.error().orElse("the blocks are not written")));
                } else {
                    return;
                }
                silent(local.now());
            } catch (InvalidFieldException e) {
                local.stats().count("baton:mooncake_bad_messages");
                loading.fail(rank + " answers what is no answer: " + e.getMessage());
            }
        }

        private void onEnd(Ending how, String why) {
            if (answered) {
                return;
            }
            loading.fail(why);
            switch (how) {
                case REFUSED, UNREACHED -> {
                    engines.remove(loading.load.source().engineId());
                    silent(local.now());
                }
                case BROKEN -> {}
            }
        }

        private void silent(long from) {
            answered = true;
            silentFrom = OptionalLong.of(from);
            asking.close();
            stop.ifPresent(Asking::close);
            stop = Optional.empty();
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
                stop = Optional.of(exchange.ask(
                        rank,
                        loading.message(true),
                        local.settings().timeouts().handshake(),
                        asker(this::onStopped, this::onStopEnd)));
            }
        }

        private void onStopped(byte[] message) {
            if (answered) {
                return;
            }
            try {
                if (XferReply.decode(message).failed().contains(loading.attempt)) {
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
            switch (how) {
                case REFUSED -> silent(local.now() + DRAIN.toNanos());
                case UNREACHED, BROKEN -> nextStop = OptionalLong.of(local.now() + BETWEEN_STOPS.toNanos());
            }
        }
    }

    private void happened(Runnable event) {
        events.add(event);
        local.context().wake().run();
    }

    boolean isBusy() {
        return !loads.isEmpty();
    }

    void start(Load load, long now) {
        // An id that ended without blocks may be used again by what tells so.
        loads.put(load.isRelease() ? load.requestId() + "/" + attempts : load.requestId(), new Loading(load, now));
    }

    /** The load is not wanted any more. */
    void cancel(String requestId) {
        Loading loading = loads.get(requestId);
        if (loading != null) {
            loading.fail("cancelled");
        }
    }

    /** Goes on as far as possible. */
    void advance(long now) {
        for (Runnable event = events.poll(); event != null; event = events.poll()) {
            event.run();
        }
        for (Loading loading : loads.values()) {
            if (!loading.over) {
                advance(loading, now);
            }
        }
    }

    private void advance(Loading loading, long now) {
        if (loading.failure.isEmpty()
                && loading.check.isEmpty()
                && now - loading.begun >= local.settings().timeouts().load().toNanos()) {
            loading.fail("the prompt has not come within "
                    + local.settings().timeouts().load().toSeconds() + " s");
        }
        if (!loading.asked && loading.failure.isEmpty()) {
            resolve(loading, now);
        }
        if (loading.failure.isPresent()) {
            loading.legs.forEach(leg -> leg.stop(now));
        }
        if ((loading.asked || loading.failure.isPresent())
                && loading.legs.stream().allMatch(leg -> leg.isSilent(now))) {
            settle(loading, now);
        }
    }

    /** Finds the ranks, and asks them. */
    private void resolve(Loading loading, long now) {
        MooncakeConnectorMetadata.Source source = loading.load.source();
        Engine known = engines.get(source.engineId());
        if (known == null) {
            CompletableFuture<EngineTable> query = lookup(source.bootstrap(), loading.load.waitsSince(), now).answer;
            if (!query.isDone()) {
                return;
            }
            if (query.isCompletedExceptionally()) {
                loading.fail("bootstrap server: " + query.exceptionNow().getMessage());
                return;
            }
            for (Engine engine : query.resultNow().engines().values()) {
                if (engines.size() >= MOST_ENGINES) {
                    engines.clear();
                }
                engines.put(engine.id(), engine);
            }
            known = engines.get(source.engineId());
        }
        if (known == null) {
            loading.fail("remote engine_id %s not found from bootstrap server %s"
                    .formatted(PeerAddress.shown(source.engineId()), PeerAddress.shown(source.bootstrap())));
            return;
        }
        try {
            List<PeerAddress> ranks = ranks(known);
            loading.asked = true;
            local.stats().handover("handshake", Duration.ofNanos(now - loading.begun));
            ranks.forEach(rank -> loading.legs.add(new Leg(loading, rank, now)));
        } catch (Misfit e) {
            loading.fail(String.valueOf(e.getMessage()));
        }
    }

    /** The question to a registry that is under way, or that has ended since then; else a new one. */
    private Lookup lookup(String bootstrap, long since, long now) {
        Lookup known = lookups.get(bootstrap);
        if (known != null && known.isOf(since, now)) {
            return known;
        }
        if (lookups.size() >= MOST_ENGINES) {
            lookups.clear();
        }
        Lookup begun =
                new Lookup(exchange.query(bootstrap, local.settings().timeouts().handshake()));
        CompletableFuture<?> _ =
                begun.answer.whenComplete((_, _) -> local.context().wake().run());
        lookups.put(bootstrap, begun);
        return begun;
    }

    /** The prefill ranks that have this rank's heads and layers, or may have. */
    private List<PeerAddress> ranks(Engine engine) throws Misfit {
        List<PeerAddress> ranks = new ArrayList<>();
        int stages = local.context().pipelineParallelSize();
        for (int tensor : WritePlan.paired(
                local.rank().tensor(),
                local.context().tensorParallelSize(),
                Math.max(1, engine.workers().size()))) {
            Map<Integer, PeerAddress> byStage = engine.workers().getOrDefault(tensor, Map.of());
            PeerAddress same = byStage.get(local.rank().pipeline());
            if (byStage.isEmpty()) {
                throw new Misfit("the registry has no rank " + tensor + " of engine " + engine.id());
            }
            ranks.addAll(byStage.size() == stages && same != null ? List.of(same) : byStage.values());
        }
        return ranks;
    }

    /** No rank writes any more. */
    private void settle(Loading loading, long now) {
        Load load = loading.load;
        if (loading.failure.isPresent()) {
            if (!load.isRelease()) {
                if (!loading.failure.get().equals("cancelled")) {
                    log.warn("pulling kv_caches for {} failed: {}", load.requestId(), loading.failure.get());
                    local.stats().count("vllm:mooncake_num_failed_recvs");
                }
                loading.invalid = blocks(load);
            }
            loading.over = true;
        } else if (load.isRelease()) {
            loading.over = true;
        } else if (loading.check.isEmpty()) {
            local.stats().handover("blocks", Duration.ofNanos(now - loading.begun));
            check(loading);
        } else if (loading.check.get().isDone()) {
            CompletableFuture<Set<Integer>> check = loading.check.get();
            loading.invalid = check.isCompletedExceptionally() ? blocks(load) : check.resultNow();
            if (!loading.invalid.isEmpty()) {
                log.warn(
                        "request {}: {} of {} blocks that came do not have the checksums of the prefill instance",
                        load.requestId(),
                        loading.invalid.size(),
                        load.blocks().length);
                local.stats().add(Rejection.CORRUPT.measurement(loading.invalid.size()));
            }
            loading.over = true;
        }
    }

    private static Set<Integer> blocks(Load load) {
        Set<Integer> blocks = new LinkedHashSet<>();
        IntStream.of(load.blocks()).forEach(blocks::add);
        return blocks;
    }

    /** Compares what has come with what the prefill ranks say that they have written, if they say it. */
    private void check(Loading loading) {
        Load load = loading.load;
        List<Written> parts =
                loading.legs.stream().flatMap(leg -> leg.written.stream()).toList();
        if (parts.isEmpty()) {
            // All ranks load from the same instance: one of them counts.
            if (local.rank().equals(Rank.FIRST)) {
                local.stats().count("baton:kv_unverified_loads");
            }
            loading.check = Optional.of(CompletableFuture.completedFuture(Set.of()));
            return;
        }
        long covered = 0;
        for (Written part : parts) {
            boolean fits = part.prompt().equals(load.prompt())
                    && part.checksums().length == load.blocks().length
                    && IntStream.of(part.regions())
                            .allMatch(index -> index < regions.size()
                                    && part.offset() >= 0
                                    && part.bytes() >= 0
                                    && part.bytes() <= regions.get(index).bytes() - part.offset());
            if (!fits) {
                local.stats().add(Rejection.MISMATCH.measurement(1));
                loading.fail("the blocks that came are of another prompt, or are other blocks");
                return;
            }
            covered += part.regions().length * part.bytes();
        }
        if (covered != local.cache().layout().blockBytes() || parts.size() != loading.legs.size()) {
            local.stats().add(Rejection.TRUNCATED.measurement(1));
            loading.fail("%d of %d bytes of each block came"
                    .formatted(covered, local.cache().layout().blockBytes()));
            return;
        }
        loading.check = Optional.of(local.background().run(() -> wrong(load, parts)));
    }

    private Set<Integer> wrong(Load load, List<Written> parts) {
        Set<Integer> wrong = new LinkedHashSet<>();
        for (Written part : parts) {
            List<Region> covered =
                    IntStream.of(part.regions()).mapToObj(regions::get).toList();
            if (covered.isEmpty() || part.bytes() == 0) {
                continue;
            }
            int[] checksums =
                    WritePlan.checksums(local.cache().host(), covered, part.offset(), part.bytes(), load.blocks());
            for (int i = 0; i < checksums.length; i++) {
                if (checksums[i] != part.checksums()[i]) {
                    wrong.add(load.blocks()[i]);
                }
            }
        }
        return wrong;
    }

    /** Takes out the loads that are over. */
    Finished takeFinished() {
        Set<String> received = new LinkedHashSet<>();
        Set<Integer> invalid = new LinkedHashSet<>();
        loads.values().removeIf(loading -> {
            if (loading.over && !loading.load.isRelease()) {
                received.add(loading.load.requestId());
                invalid.addAll(loading.invalid);
            }
            return loading.over;
        });
        return new Finished(received, invalid);
    }

    /** Returns when nothing reads the pool any more. */
    void close() {
        Deadline deadline = Deadline.after(local.context().ticker(), CLOSE);
        for (Loading loading : loads.values()) {
            loading.legs.forEach(leg -> leg.asking.close());
            loading.legs.forEach(leg -> leg.stop.ifPresent(Asking::close));
            try {
                if (loading.check.isPresent()) {
                    Set<Integer> _ = deadline.get(loading.check.get());
                }
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                return;
            } catch (ExecutionException | TimeoutException e) {
                log.warn("the check of a prompt did not end: {}", e.toString());
            }
        }
        loads.clear();
    }
}
