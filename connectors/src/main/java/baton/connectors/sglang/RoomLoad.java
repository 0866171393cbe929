package baton.connectors.sglang;

import baton.connectors.onesided.Arrival;
import baton.connectors.onesided.Load;
import baton.connectors.onesided.LoadCheck;
import baton.connectors.onesided.PromptPlan.Wish;
import baton.connectors.onesided.Rejection;
import baton.connectors.onesided.TaskCheck;
import baton.connectors.sglang.SglangPages.Place;
import baton.messages.PeerAddress;
import baton.transfer.TransferException;
import java.util.Arrays;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Collectors;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * One prompt's load: finds the prefill rank, sends it free pages ({@link WrittenPages}), compares the written pages with their checksum, if
 * there is one, and copies them into the pool.
 */
final class RoomLoad extends Load {
    private static final Logger log = LoggerFactory.getLogger(RoomLoad.class);

    private final RoomReceiver receiver;
    private final SglangRank local;
    private final Wish wish;
    private Optional<WrittenPages> written = Optional.empty();

    RoomLoad(RoomReceiver receiver, Wish wish, long now) {
        super(
                wish.blocks(),
                receiver.local.rank(),
                receiver.local.stats(),
                now,
                receiver.local.settings().waiting());
        this.receiver = receiver;
        this.local = receiver.local;
        this.wish = wish;
    }

    @Override
    protected boolean isReported() {
        return !wish.isRelease();
    }

    @Override
    protected Optional<? extends Arrival> connect(long now) {
        try {
            Optional<PeerAddress> rank = receiver.prefills.find(wish.source(), since());
            if (rank.isPresent()) {
                // Without free pages the load waits for those of another one.
                written = local.pages()
                        .take(wish.blocks().length)
                        .map(place -> new WrittenPages(receiver, wish, rank.get(), place));
            }
        } catch (TransferException e) {
            fail(NO_HANDSHAKE, String.valueOf(e.getMessage()), now);
        }
        return written;
    }

    /** Notifies the prefill instance that the prompt is not needed; it keeps the prompt until then. */
    @Override
    protected void unwanted() {
        if (isReported()) {
            Wish release = Wish.release(wish.requestId(), wish.source(), wish.prefix(), local.now());
            receiver.happened(() -> receiver.start(release, local.now()));
        }
    }

    @Override
    protected Optional<? extends LoadCheck> check(long now) {
        Place place = written.orElseThrow().place();
        if (local.pages().room(place.row()) != Long.parseLong(wish.source().key())) {
            reject(Rejection.MISMATCH, "the row that came beside the pages is of another room");
            return Optional.empty();
        }
        boolean isVerified = local.pages().hasChecksum(place.row());
        return Optional.of(new TaskCheck(
                local.background(), isVerified, "the pages could not be copied", Optional.of(() -> {
                    if (isVerified && !local.pages().isIntact(place, wish.prompt())) {
                        return Arrays.stream(wish.blocks())
                                .boxed()
                                .collect(Collectors.toMap(block -> block, _ -> Rejection.CORRUPT));
                    }
                    local.pages().empty(place, wish.blocks());
                    return Map.of();
                })));
    }

    @Override
    protected Optional<String> late(boolean isConnected) {
        return Optional.of(
                "the prompt has not come within " + local.settings().waiting().toSeconds() + " s");
    }

    @Override
    protected void onWrong(Map<Integer, Rejection> wrong) {
        log.warn(
                "request {}: the {} blocks that came do not have the checksum of the prefill instance",
                wish.requestId(),
                wrong.size());
        local.stats().add(Rejection.CORRUPT.measurement(wrong.size()));
    }

    @Override
    protected void onRejected(Rejection cause, String why) {
        onFailed(cause.label(), why, local.now());
    }

    @Override
    protected void onFailed(String type, String message, long now) {
        if (isReported()) {
            log.warn(
                    "request {}: the prompt of room {} does not come: {}",
                    wish.requestId(),
                    wish.source().key(),
                    message);
            local.stats().count("baton:sglang_failed_loads");
        }
    }

    /** Its pages are free, unless they are held. */
    @Override
    protected void settle(long now) {
        written.filter(pages -> !pages.isHeld())
                .ifPresent(pages -> local.pages().give(pages.place()));
    }
}
