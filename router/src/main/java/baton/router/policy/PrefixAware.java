package baton.router.policy;

import baton.router.cache.HeldBlocks;
import baton.router.cache.TokenChain;
import baton.router.upstream.Instance;
import java.util.List;

/**
 * The instance that has most of the prompt among those that are not much busier than the least loaded one; where none has any of it, the
 * {@link LeastLoaded} one. An instance's part is known by its events, if they come and the prompt's tokens are known, else by the prompts
 * sent to it before.
 *
 * <p>Where events come, the tokens that an instance has to compute count: those that it lacks of the prompt, and for each request under way
 * the average of them. So a short prefix that many prompts have in common, as a system prompt, does not draw all of them to one instance.
 * Of instances that have as much to compute, the one that was sent more of the prompt is taken, as it may be computing that.
 */
final class PrefixAware implements InstanceChooser {
    static final String NAME = "prefix";

    /** The number of requests that an instance with the prefix may have more than the least loaded one, and the share of these. */
    private static final int MORE = 4;

    private static final double SHARE = 0.5;

    private static final double WEIGHT_OF_LAST = 0.05;

    private final PrefixRecord sent;
    private final HeldBlocks held;
    private final LeastLoaded without = new LeastLoaded();
    /** Bytes that prompts lacked where they were sent. Threads may overwrite each other's updates, of which each changes little. */
    private volatile double lacked;

    PrefixAware(PrefixRecord sent, HeldBlocks held) {
        this.sent = sent;
        this.held = held;
    }

    /**
     * The part of a prompt that an instance has.
     *
     * @param tokens by its events, or {@link HeldBlocks#NOT_KNOWN}
     * @param bytes by events, or of earlier prompts
     * @param sent bytes that it was sent
     */
    private record Known(int tokens, int bytes, int sent) {
        boolean isMoreThan(Known other) {
            return bytes > other.bytes || (bytes == other.bytes && sent > other.sent);
        }
    }

    /** Bytes that an instance has to compute, of this prompt and of those before. */
    private double work(Instance instance, Known known, RoutingRequest request) {
        return request.prefix().promptBytes() - known.bytes + lacked * instance.running() / instance.share();
    }

    @Override
    public Choice choose(List<Instance> usable, RoutingRequest request) {
        Choice least = without.choose(usable, request);
        int running = least.instance().running();
        int most = running + Math.max(MORE, (int) (running * SHARE));
        Instance best = least.instance();
        Known known = known(best, request);
        for (Instance other : usable) {
            if (other == best || other.running() > most) {
                continue;
            }
            Known has = known(other, request);
            if (request.tokens().isEmpty() ? has.isMoreThan(known) : isBetter(other, has, best, known, request)) {
                best = other;
                known = has;
            }
        }
        if (request.tokens().isPresent()) {
            double before = lacked;
            lacked = before + (request.prefix().promptBytes() - known.bytes - before) * WEIGHT_OF_LAST;
        }
        if (known.tokens > 0) {
            return new Choice(best, Choice.Why.EVENTS, known.bytes, known.tokens);
        }
        return known.sent > 0 ? new Choice(best, Choice.Why.PREFIX, known.sent, 0) : Choice.of(best, Choice.Why.LOAD);
    }

    private boolean isBetter(Instance other, Known has, Instance best, Known known, RoutingRequest request) {
        double less = work(best, known, request) - work(other, has, request);
        return less > 0 || (less == 0 && has.sent > known.sent);
    }

    private Known known(Instance instance, RoutingRequest request) {
        PromptPrefix prefix = request.prefix();
        int bytes = sent.known(instance, prefix) * PromptPrefix.CHUNK_BYTES;
        if (request.tokens().isEmpty()) {
            return new Known(HeldBlocks.NOT_KNOWN, bytes, bytes);
        }
        TokenChain prompt = request.tokens().get();
        int tokens = held.known(instance, prompt);
        if (tokens == HeldBlocks.NOT_KNOWN) {
            return new Known(tokens, bytes, bytes);
        }
        return new Known(tokens, (int) ((long) prefix.promptBytes() * tokens / Math.max(1, prompt.tokens())), bytes);
    }

    @Override
    public boolean needsPrefix() {
        return true;
    }

    @Override
    public void sent(Instance instance, RoutingRequest request) {
        sent.sent(instance, request.prefix());
    }
}
