package baton.connectors.nixl;

import baton.connectors.nixl.BlockMap.Heads;
import baton.connectors.nixl.BlockMap.Piece;
import baton.connectors.nixl.RemoteEngine.RemoteRank;
import baton.kv.KvCache;
import baton.kv.Ticker;
import baton.transfer.Range;
import baton.transfer.Transfer;
import baton.transfer.TransferAgent;
import baton.transfer.TransferAgent.Operation;
import baton.transfer.TransferException;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.zip.CRC32C;

/**
 * How the blocks of one load come: the blocks themselves, read or pushed; when these are here, their seals; then the comparison,
 * beside the step. A load from a peer without seals is over with the first. It is over only when none of its transfers can write
 * any more.
 */
final class LoadTransfers {
    /** How it ended. */
    sealed interface Result {
        record Good() implements Result {}

        /** Some of our blocks do not have what was promised. */
        record Bad(Map<Integer, Rejection> blocks) implements Result {}

        record Failed(String message) implements Result {}
    }

    private enum Phase {
        BLOCKS,
        SEALS,
        CHECK,
        OVER
    }

    private record Started(Transfer transfer, int ranges, Duration post) {}

    private final BlockMap map;
    private final List<RemoteRank> remotes;
    private final KvCache cache;
    private final TransferAgent agent;
    private final Fabric fabric;
    private final TransferStats stats;
    private final Ticker ticker;
    private final List<Started> started = new ArrayList<>();
    private final CompletableFuture<Map<Integer, Rejection>> check = new CompletableFuture<>();
    private Phase phase = Phase.BLOCKS;
    private Optional<Result> result = Optional.empty();
    private boolean cancelled;

    /** @param arrived the blocks are here, and only to be checked */
    LoadTransfers(
            BlockMap map,
            List<RemoteRank> remotes,
            KvCache cache,
            TransferAgent agent,
            Fabric fabric,
            TransferStats stats,
            Ticker ticker,
            boolean arrived,
            Duration timeout)
            throws TransferException {
        this.map = map;
        this.remotes = remotes;
        this.cache = cache;
        this.agent = agent;
        this.fabric = fabric;
        this.stats = stats;
        this.ticker = ticker;
        // Whatever may fail fails before the first transfer.
        if (isChecked()) {
            for (Heads heads : map.heads()) {
                remotes.get(heads.source()).needScratch(fabric, agent, map.sealSlots());
            }
        }
        if (!arrived) {
            for (Heads heads : map.heads()) {
                start(heads, map.ranges(heads), timeout);
            }
        }
    }

    Optional<Result> result() {
        return result;
    }

    void cancel() {
        cancelled = true;
        started.forEach(each -> each.transfer().cancel());
    }

    /** True if it has come further. */
    boolean advance(Duration timeout) {
        return switch (phase) {
            case BLOCKS -> {
                Optional<Boolean> all = over();
                if (all.isEmpty()) {
                    yield false;
                }
                if (all.get()) {
                    if (!isChecked()) {
                        end(new Result.Good());
                    } else {
                        phase = Phase.SEALS;
                        seals(timeout);
                    }
                }
                yield true;
            }
            case SEALS -> {
                Optional<Boolean> all = over();
                if (all.isEmpty()) {
                    yield false;
                }
                if (all.get()) {
                    phase = Phase.CHECK;
                    fabric.background().execute(() -> {
                        try {
                            check.complete(compare());
                        } catch (RuntimeException | Error e) {
                            check.completeExceptionally(e);
                        }
                    });
                }
                yield true;
            }
            case CHECK -> {
                if (!check.isDone()) {
                    yield false;
                }
                try {
                    Map<Integer, Rejection> bad = check.join();
                    end(bad.isEmpty() ? new Result.Good() : new Result.Bad(bad));
                } catch (CompletionException | CancellationException e) {
                    end(new Result.Failed("the blocks could not be checked: " + e.getMessage()));
                }
                yield true;
            }
            case OVER -> false;
        };
    }

    /** Returns when nothing reads or writes the pool any more. The agent is closed. */
    void awaitCheck() {
        if (phase == Phase.CHECK) {
            try {
                check.join();
            } catch (CompletionException | CancellationException e) {
                end(new Result.Failed("the blocks could not be checked: " + e.getMessage()));
            }
        }
    }

    private boolean isChecked() {
        return map.load().source().proof().isPresent();
    }

    private void start(Heads heads, List<Range> ranges, Duration timeout) {
        long before = ticker.nanos();
        Transfer transfer =
                agent.start(Operation.READ, remotes.get(heads.source()).peer(), ranges, Optional.empty(), timeout);
        started.add(new Started(transfer, ranges.size(), Duration.ofNanos(ticker.nanos() - before)));
    }

    private void seals(Duration timeout) {
        started.clear();
        if (cancelled) {
            end(new Result.Failed("cancelled"));
            return;
        }
        for (Heads heads : map.heads()) {
            RemoteRank remote = remotes.get(heads.source());
            long local = remote.scratch().memory().region().memory().address();
            start(heads, map.sealRanges(heads, local, remote.info().seals().orElseThrow()), timeout);
        }
    }

    /** Whether all have done what they should; empty while one is under way. */
    private Optional<Boolean> over() {
        Optional<String> failure = Optional.empty();
        boolean underWay = false;
        for (Started each : started) {
            switch (each.transfer().state()) {
                case Transfer.State.UnderWay() -> underWay = true;
                case Transfer.State.Done _ -> {}
                case Transfer.State.Failed(Transfer.Cause cause, String message) ->
                    failure = Optional.of(cause + ": " + message);
            }
        }
        if (underWay) {
            if (failure.isPresent()) {
                started.forEach(each -> each.transfer().cancel());
            }
            return Optional.empty();
        }
        if (failure.isPresent()) {
            end(new Result.Failed(failure.get()));
            return Optional.of(false);
        }
        if (phase == Phase.BLOCKS) {
            for (Started each : started) {
                if (each.transfer().state() instanceof Transfer.State.Done(long bytes, Duration elapsed)) {
                    stats.transferred(elapsed, each.post(), bytes, each.ranges());
                }
            }
        }
        return Optional.of(true);
    }

    private Map<Integer, Rejection> compare() {
        Map<Integer, Rejection> bad = new LinkedHashMap<>();
        long[] promised = map.load().source().proof().orElseThrow().generations();
        CRC32C crc = new CRC32C();
        for (Heads heads : map.heads()) {
            RemoteRank remote = remotes.get(heads.source());
            long entryBytes = Seals.entryBytes(remote.info().layout());
            MemorySegment entries = remote.scratch().memory().region().memory();
            for (Piece piece : map.pieces()) {
                MemorySegment entry = entries.asSlice(map.sealSlot(piece) * entryBytes, entryBytes);
                for (int head = 0; head < heads.count() && !bad.containsKey(piece.local()); head++) {
                    int digest = Seals.digest(
                            crc,
                            cache.memory(),
                            cache.layout(),
                            piece.local(),
                            heads.localHead() + head,
                            piece.localSlot(),
                            map.slots());
                    Seals.check(
                                    entry,
                                    remote.info().layout(),
                                    promised[piece.index()],
                                    heads.remoteHead() + head,
                                    piece.remoteSlot(),
                                    digest)
                            .ifPresent(wrong -> bad.put(piece.local(), wrong));
                }
            }
        }
        return bad;
    }

    private void end(Result how) {
        phase = Phase.OVER;
        result = Optional.of(how);
    }
}
