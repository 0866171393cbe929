package baton.connectors.sglang;

import baton.connectors.onesided.PromptPlan.Ready;
import baton.connectors.onesided.Push;
import baton.connectors.onesided.TaskGroup;
import baton.connectors.onesided.TransferGroup;
import baton.connectors.sglang.SglangPages.Place;
import baton.transfer.TransferAgent.Peer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** One prompt's pages, on their way to a decode rank. */
final class RoomPush extends Push {
    private static final Logger log = LoggerFactory.getLogger(RoomPush.class);

    private final RoomSender sender;
    private final SglangRank local;
    private final WantedPages wanted;
    private final DecodeRank rank;
    private final TransferGroup transfers;
    private final TaskGroup copies;
    private Optional<Place> place = Optional.empty();
    private Optional<CompletableFuture<Peer>> peer = Optional.empty();
    private boolean started;
    /** The answer to the decode rank that has given it up. */
    private Optional<Runnable> acknowledgement = Optional.empty();

    RoomPush(RoomSender sender, SglangRank local, WantedPages wanted, DecodeRank rank, long deadline) {
        super(deadline);
        this.sender = sender;
        this.local = local;
        this.wanted = wanted;
        this.rank = rank;
        this.transfers = new TransferGroup(local.context().ticker());
        this.copies = new TaskGroup(local.background());
    }

    long room() {
        return wanted.room();
    }

    /** How many pages the decode rank wants. */
    int pages() {
        return wanted.pages().length;
    }

    /** @param acknowledge runs when nothing is written any more; of several calls, that of the last */
    void abort(Runnable acknowledge) {
        acknowledgement = Optional.of(acknowledge);
        fail("aborted by the decode instance");
    }

    @Override
    protected Optional<String> lost(long now) {
        return Optional.empty();
    }

    @Override
    protected Optional<String> late() {
        // Transfers have a time limit of their own.
        return place.isPresent()
                ? Optional.empty()
                : Optional.of("the prompt is not here in time, or has no free pages");
    }

    @Override
    protected boolean write(long now) {
        if (place.isEmpty()) {
            sender.prompt(room()).ifPresent(this::begin);
        }
        if (!started
                && place.isPresent()
                && copies.isOver()
                && peer.filter(CompletableFuture::isDone).isPresent()) {
            start(peer.get());
        }
        return started;
    }

    private void begin(Ready prompt) {
        int skipped = wanted.prefix() / local.cache().layout().blockSize();
        boolean none = wanted.pages().length == 0;
        if (!none && skipped + wanted.pages().length != prompt.blocks().length) {
            fail("the decode instance has %d pages behind a prefix of %d tokens, the prompt has %d blocks"
                    .formatted(wanted.pages().length, wanted.prefix(), prompt.blocks().length));
            return;
        }
        place = local.pages().take(wanted.pages().length);
        place.ifPresent(taken -> {
            int[] blocks = none ? new int[0] : Arrays.copyOfRange(prompt.blocks(), skipped, prompt.blocks().length);
            copies.run(() -> {
                local.pages().fill(blocks, taken);
                local.pages().writeRow(taken, prompt);
            });
            peer = Optional.of(local.background()
                    .run(() -> local.agent()
                            .connect(
                                    rank.session().getBytes(StandardCharsets.ISO_8859_1),
                                    local.settings().handshake())));
        });
    }

    private void start(CompletableFuture<Peer> connected) {
        Optional<String> failure = copies.failure();
        if (failure.isPresent() || connected.isCompletedExceptionally()) {
            fail(failure.orElseGet(() -> "cannot connect to " + rank.session() + ": "
                    + connected.exceptionNow().getMessage()));
            return;
        }
        started = true;
        transfers.write(
                local.agent(),
                connected.resultNow(),
                0,
                local.pages().ranges(place.orElseThrow(), rank, wanted),
                local.settings().transfer());
    }

    @Override
    protected void cancelWrites() {
        transfers.cancel();
    }

    @Override
    protected boolean isQuiet(long now) {
        boolean over = transfers.isOver();
        transfers.failure().ifPresent(this::fail);
        return over && copies.isOver() && peer.map(CompletableFuture::isDone).orElse(true);
    }

    @Override
    protected boolean end(long now) {
        place.ifPresent(local.pages()::give);
        if (hasFailed()) {
            log.warn(
                    "room {} of {} gets no pages: {}",
                    room(),
                    wanted.from(),
                    failure().orElseThrow());
            if (started) {
                local.stats().failedTransfer();
            }
        } else {
            transfers.count(local.stats());
        }
        acknowledgement.ifPresentOrElse(Runnable::run, () -> sender.tellStatus(wanted, !hasFailed()));
        return true;
    }

    /** Returns when nothing reads the pool any more. The agent is closed. */
    void await() {
        copies.await();
    }
}
