package baton.connectors.onesided;

import baton.kv.Ticker;
import baton.transfer.Range;
import baton.transfer.Transfer;
import baton.transfer.TransferAgent;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.function.Supplier;

/** Transfers of one purpose, which are over together: when one has failed, the others are cancelled. */
public final class TransferGroup {
    private static final int MOST_RANGES = 1 << 15;

    private final Ticker ticker;
    private final List<Started> started = new ArrayList<>();
    private Optional<String> failure = Optional.empty();

    private record Started(Transfer transfer, int ranges, Duration post) {}

    public TransferGroup(Ticker ticker) {
        this.ticker = ticker;
    }

    /** @param ranges how many it moves */
    public Transfer start(int ranges, Supplier<Transfer> start) {
        long before = ticker.nanos();
        Transfer transfer = start.get();
        started.add(new Started(transfer, ranges, Duration.ofNanos(ticker.nanos() - before)));
        return transfer;
    }

    /**
     * Starts writes of all ranges to a peer, in transfers of at most {@value #MOST_RANGES}.
     *
     * @param permit token that the peer gave, 0 for none
     */
    public void write(TransferAgent agent, TransferAgent.Peer peer, long permit, List<Range> ranges, Duration timeout) {
        for (int i = 0; i < ranges.size(); i += MOST_RANGES) {
            List<Range> some = ranges.subList(i, Math.min(i + MOST_RANGES, ranges.size()));
            start(some.size(), () -> agent.write(peer, permit, some, Optional.empty(), timeout));
        }
    }

    public void cancel() {
        started.forEach(each -> each.transfer().cancel());
    }

    /** True if none is under way. */
    public boolean isOver() {
        boolean underWay = false;
        for (Started each : started) {
            switch (each.transfer().state()) {
                case Transfer.State.UnderWay() -> underWay = true;
                case Transfer.State.Done _ -> {}
                case Transfer.State.Failed(Transfer.Cause cause, String message) ->
                    failure = failure.or(() -> Optional.of(cause + ": " + message));
            }
        }
        if (underWay && failure.isPresent()) {
            cancel();
        }
        return !underWay;
    }

    /** The failure of the first transfer that has failed. */
    public Optional<String> failure() {
        return failure;
    }

    /** Counts them as one transfer, if there are any. All are done. */
    public void count(TransferStats stats) {
        long bytes = 0;
        int ranges = 0;
        Duration longest = Duration.ZERO;
        Duration post = Duration.ZERO;
        for (Started each : started) {
            if (each.transfer().state() instanceof Transfer.State.Done(long moved, Duration elapsed)) {
                bytes += moved;
                ranges += each.ranges();
                longest = elapsed.compareTo(longest) > 0 ? elapsed : longest;
                post = post.plus(each.post());
            }
        }
        if (ranges > 0) {
            stats.transferred(longest, post, bytes, ranges);
        }
    }
}
