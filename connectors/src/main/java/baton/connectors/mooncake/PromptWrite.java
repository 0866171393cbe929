package baton.connectors.mooncake;

import baton.connectors.mooncake.PromptSender.Message;
import baton.connectors.mooncake.PromptSender.Prompt;
import baton.connectors.mooncake.XferReply.Status;
import baton.connectors.mooncake.XferReply.Written;
import baton.connectors.mooncake.XferRequest.Own;
import baton.connectors.mooncake.XferRequest.Wanted;
import baton.connectors.onesided.PromptPlan.Ready;
import baton.connectors.onesided.Push;
import baton.connectors.onesided.TaskGroup;
import baton.connectors.onesided.TransferGroup;
import baton.messages.PeerAddress;
import baton.messages.mooncake.MooncakeExchange.Question;
import baton.transfer.Range;
import baton.transfer.TransferAgent.Peer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** One request's blocks, on their way to one decode rank. */
final class PromptWrite extends Push {
    private static final Logger log = LoggerFactory.getLogger(PromptWrite.class);

    private final PromptSender sender;
    private final LocalRank local;
    private final Message message;
    private final String requestId;
    private final Wanted wanted;
    private final Prompt prompt;
    private final TransferGroup transfers;
    private final TaskGroup digesting;
    /** Written by the only task. */
    private int[] checksums = {};

    private Optional<CompletableFuture<Peer>> peer = Optional.empty();
    private List<Range> ranges = List.of();
    private boolean started;
    /** Questions to answer when the write is over. */
    private final List<Question> stops = new ArrayList<>();

    PromptWrite(
            PromptSender sender,
            LocalRank local,
            Message message,
            String requestId,
            Wanted wanted,
            Prompt prompt,
            long deadline) {
        super(deadline);
        this.sender = sender;
        this.local = local;
        this.message = message;
        this.requestId = requestId;
        this.wanted = wanted;
        this.prompt = prompt;
        this.transfers = new TransferGroup(local.context().ticker());
        this.digesting = new TaskGroup(local.background());
    }

    Prompt prompt() {
        return prompt;
    }

    boolean isOf(String attempt) {
        return message.attempt().equals(Optional.of(attempt));
    }

    boolean isBegun() {
        return peer.isPresent();
    }

    /** The decode rank asks for its end. */
    void stop(Question question) {
        stops.add(question);
        fail("stopped by the decode instance");
    }

    @Override
    protected Optional<String> lost(long now) {
        if (message.question().isOver() && stops.isEmpty()) {
            // The decode instance has gone, or will say by another connection that it has given up.
            return Optional.of("the connection of the decode instance has ended");
        }
        return !isBegun() && prompt.ready.isEmpty() && sender.isAbandoned(wanted.transferId())
                ? Optional.of("the prefill request has ended without its blocks")
                : Optional.empty();
    }

    @Override
    protected Optional<String> late() {
        if (isBegun()) {
            // Its transfers have a time limit of their own.
            return Optional.empty();
        }
        return Optional.of(
                prompt.ready.isEmpty() ? "Timeout waiting for P side ready." : "Timeout waiting for a free worker.");
    }

    @Override
    protected boolean write(long now) {
        if (!isBegun()) {
            if (prompt.ready.isEmpty() || !sender.hasFreeWorker()) {
                return false;
            }
            if (wanted.isRelease()) {
                return true;
            }
            begin(prompt.ready.get());
        }
        if (!started && peer.filter(CompletableFuture::isDone).isPresent()) {
            start(peer.get());
        }
        return started;
    }

    private void begin(Ready ready) {
        int[] reader = wanted.groups().getFirst();
        if (wanted.groups().size() != 1) {
            fail("KV group count mismatch");
            return;
        }
        if (ready.blocks().length < reader.length) {
            fail("P num blocks less than D");
            return;
        }
        // Blocks that the decode instance has already are the prompt's first.
        int[] own = Arrays.copyOfRange(ready.blocks(), ready.blocks().length - reader.length, ready.blocks().length);
        WritePlan plan = message.plan();
        ranges = plan.ranges(own, reader);
        prompt.writing++;
        Optional<Own> baton = message.request().own();
        if (baton.isPresent()) {
            digesting.run(() -> checksums = plan.checksums(local.cache().memory(), own));
        }
        byte[] metadata = baton.map(Own::agent).orElseGet(() -> session().getBytes(StandardCharsets.UTF_8));
        peer = Optional.of(local.background()
                .run(() -> local.agent()
                        .connect(metadata, local.settings().timeouts().handshake())));
        sender.began();
    }

    /** A Mooncake agent's segment, by which others find it. */
    private String session() {
        XferRequest request = message.request();
        return request.hostname().contains(":")
                ? "[" + request.hostname() + "]:" + request.port()
                : request.hostname() + ":" + request.port();
    }

    private void start(CompletableFuture<Peer> connected) {
        if (connected.isCompletedExceptionally()) {
            fail("cannot connect to " + session() + ": "
                    + connected.exceptionNow().getMessage());
            return;
        }
        started = true;
        transfers.write(
                local.agent(),
                connected.resultNow(),
                message.request().own().map(Own::permit).orElse(0L),
                ranges,
                local.settings().timeouts().transfer());
    }

    @Override
    protected void cancelWrites() {
        transfers.cancel();
    }

    @Override
    protected boolean isQuiet(long now) {
        boolean over = transfers.isOver();
        transfers.failure().ifPresent(this::fail);
        return over && digesting.isOver() && peer.map(CompletableFuture::isDone).orElse(true);
    }

    @Override
    protected boolean end(long now) {
        digesting.failure().ifPresent(why -> fail("no checksums: " + why));
        if (isBegun()) {
            prompt.writing--;
            sender.ended();
        }
        message.attempt().ifPresent(attempt -> sender.rememberEnd(attempt, now));
        if (hasFailed()) {
            log.warn(
                    "request {} of a decode instance gets no blocks of transfer {}: {}",
                    PeerAddress.shown(requestId),
                    PeerAddress.shown(wanted.transferId()),
                    failure().orElseThrow());
            if (isBegun()) {
                local.stats().failedTransfer();
            }
        } else {
            transfers.count(local.stats());
        }
        message.open().remove(requestId);
        Status status = message.open().isEmpty() ? Status.FINISH : Status.CONTINUE;
        long layoutId = message.request().layoutId();
        XferReply reply = hasFailed()
                ? new XferReply(status, List.of(), List.of(requestId), failure(), layoutId, Optional.empty())
                : new XferReply(status, List.of(requestId), List.of(), Optional.empty(), layoutId, written());
        message.question().answer(reply.encode());
        stops.forEach(stop -> PromptSender.answerStop(stop, message.attempt().orElse("")));
        // The connection need not be asked: a decode rank ends it when it has its answer, and one that ended it before
        // cannot ask again, as its attempt is over.
        sender.served(prompt, now);
        return true;
    }

    /** The report for a Baton instance that has asked for this request only. */
    private Optional<Written> written() {
        WritePlan plan = message.plan();
        return message.request()
                .own()
                .filter(_ -> message.request().requests().size() == 1 && !wanted.isRelease())
                .map(_ -> new Written(
                        prompt.ready.map(Ready::prompt).orElse(""),
                        plan.isEmpty() ? new int[0] : plan.readerRegions(),
                        plan.to(),
                        plan.bytes(),
                        checksums));
    }

    /** Returns when nothing reads the pool any more. The agent is closed. */
    void await() {
        digesting.await();
    }
}
