package baton.connectors.mooncake;

import baton.connectors.onesided.LoadTable;
import baton.connectors.onesided.PromptPlan.Wish;
import baton.messages.PeerAddress;
import baton.messages.mooncake.MooncakeExchange;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.UUID;

/** The decode side of one rank: has prompts written into its blocks. The rank's thread owns it. */
final class PromptReceiver extends LoadTable<PromptLoad> {
    final LocalRank local;
    final MooncakeExchange exchange;
    final PeerAddress session;
    final List<MooncakeRegion> regions;
    final EngineDirectory engines;
    /** The id of {@link #regions}. It is random, so that no other rank can name them. */
    final long layoutId = UUID.randomUUID().getMostSignificantBits() >>> 1 | 1;
    /** Prefill ranks that remember the regions. */
    final Set<PeerAddress> layoutHolders = new HashSet<>();

    /**
     * Prompts of loads that are over, because their permits are closed: until each rank has answered, cannot be asked, or must have stopped
     * by its own time limits.
     */
    final List<WrittenPrompt> stopping = new ArrayList<>();

    private final String incarnation = UUID.randomUUID().toString();
    private long attempts;

    /** @param session of the transfer agent, by which vLLM's prefill ranks find it */
    PromptReceiver(LocalRank local, MooncakeExchange exchange, PeerAddress session) {
        super(local.context().wake());
        this.local = local;
        this.exchange = exchange;
        this.session = session;
        this.regions = MooncakeRegion.of(local.cache());
        this.engines = new EngineDirectory(local, exchange);
    }

    boolean isBusy() {
        return !isEmpty() || !stopping.isEmpty() || hasEvents();
    }

    /** Goes on as far as possible. */
    void work(long now) {
        advance(now);
        stopping.removeIf(prompt -> prompt.isSilent(now));
    }

    void start(Wish wish, long now) {
        String attempt =
                incarnation + "." + local.rank().pipeline() + "." + local.rank().tensor() + "." + ++attempts;
        // An id that ended without blocks may be used again.
        start(
                wish.isRelease() ? wish.requestId() + "/" + attempts : wish.requestId(),
                new PromptLoad(this, wish, attempt, now));
    }
}
