package baton.connectors.mooncake;

import baton.connectors.mooncake.MooncakeConnectorMetadata.Ready;
import baton.connectors.mooncake.WritePlan.Misfit;
import baton.connectors.mooncake.XferReply.Status;
import baton.connectors.mooncake.XferReply.Written;
import baton.connectors.mooncake.XferRequest.Own;
import baton.connectors.mooncake.XferRequest.Wanted;
import baton.kv.Bursts;
import baton.kv.Deadline;
import baton.kv.InvalidFieldException;
import baton.messages.PeerAddress;
import baton.messages.mooncake.MooncakeExchange.Question;
import baton.transfer.Range;
import baton.transfer.Transfer;
import baton.transfer.TransferAgent.Operation;
import baton.transfer.TransferAgent.Peer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeoutException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/*
 * A decode rank's question and the prompt may come in either order. A write begins when both are here, and not later than the abort
 * timeout after the question; it is over, well or badly, within the handshake's and the transfer's timeouts after that. So a decode rank
 * that has heard nothing knows when its blocks are its own again. One that asks for that sooner names its attempt: no write of the attempt
 * begins after the answer, and none is under way.
 *
 * A prompt is kept until each decode rank that pairs with this rank has had its answer, good or bad, has said that it needs none, or has ended
 * its connection, or the time is up.
 */

/** The prefill side of one rank: writes prompts where decode ranks want them. The rank's thread owns it, but for {@link #arrived}. */
final class PromptSender {
    private static final Logger log = LoggerFactory.getLogger(PromptSender.class);
    private static final Duration CLOSE = Duration.ofSeconds(10);
    /** Ranges of one transfer. */
    private static final int RANGES = 1 << 15;
    /** Questions that wait; further ones are refused. */
    private static final int MOST_WRITES = 10_000;
    /** Attempts and transfers that are remembered after their end. */
    private static final int MOST_REMEMBERED = 20_000;

    private final LocalRank local;
    /** Of messages, which a peer may send as often as it likes. */
    private final Bursts complaints;

    private final List<Region> regions;
    private final Queue<Question> arrivals = new ConcurrentLinkedQueue<>();
    private final Map<String, Prompt> prompts = new LinkedHashMap<>();
    private final List<Write> writes = new ArrayList<>();
    /** Attempts that must not begin a write, with the time until which that is remembered. */
    private final Map<String, Long> endedAttempts = new LinkedHashMap<>();
    /** Transfers of prompts that will not come, or are gone. */
    private final Map<String, Long> abandoned = new LinkedHashMap<>();

    private final Set<String> sent = new LinkedHashSet<>();

    PromptSender(LocalRank local) {
        this.local = local;
        this.regions = Region.of(local.cache());
        this.complaints = new Bursts(1, Duration.ofSeconds(10), local.context().ticker());
    }

    private static final class Prompt {
        private final String transferId;
        private Optional<Ready> ready = Optional.empty();
        private long until;
        /** Decode ranks that need nothing more. */
        private int served;

        private int needed = 1;
        private int writing;

        private Prompt(String transferId, long until) {
            this.transferId = transferId;
            this.until = until;
        }
    }

    /** A message, with how many of its requests have no answer. */
    private static final class Message {
        private final Question question;
        private final XferRequest request;
        private final WritePlan plan;
        private int open;

        private Message(Question question, XferRequest request, WritePlan plan) {
            this.question = question;
            this.request = request;
            this.plan = plan;
            this.open = request.requests().size();
        }

        private Optional<String> attempt() {
            return request.own().map(Own::attempt);
        }
    }

    /** One request's blocks, on their way to one decode rank. */
    private static final class Write {
        private final Message message;
        private final String requestId;
        private final Wanted wanted;
        private final Prompt prompt;
        private final long deadline;
        private final long begun;
        private Optional<CompletableFuture<Peer>> peer = Optional.empty();
        private CompletableFuture<int[]> checksums = CompletableFuture.completedFuture(new int[0]);
        private List<Range> ranges = List.of();
        private final List<Transfer> transfers = new ArrayList<>();
        private Optional<String> failure = Optional.empty();
        /** Those that want to know when it is over. */
        private final List<Question> stops = new ArrayList<>();

        private Write(Message message, String requestId, Wanted wanted, Prompt prompt, long now, long deadline) {
            this.message = message;
            this.requestId = requestId;
            this.wanted = wanted;
            this.prompt = prompt;
            this.begun = now;
            this.deadline = deadline;
        }

        private boolean isBegun() {
            return peer.isPresent();
        }

        private void fail(String why) {
            failure = failure.or(() -> Optional.of(why));
            transfers.forEach(Transfer::cancel);
        }
    }

    /** A message has come; any thread. */
    void arrived(Question question) {
        arrivals.add(question);
        local.context().wake().run();
    }

    boolean isBusy() {
        return !writes.isEmpty() || prompts.values().stream().anyMatch(each -> each.ready.isPresent());
    }

    /** Requests with blocks that are not needed any more, since the last call. */
    Set<String> takeSent() {
        Set<String> taken = new LinkedHashSet<>(sent);
        sent.clear();
        return taken;
    }

    void ready(Ready ready, long now) {
        abandoned.remove(ready.transferId());
        Prompt prompt = prompt(ready.transferId(), now);
        if (prompt.ready.isPresent()) {
            // A second prefill request of the same transfer.
            Ready unused = prompt.writing == 0 ? prompt.ready.get() : ready;
            sent.add(unused.requestId());
            prompt.ready = Optional.of(prompt.writing == 0 ? ready : prompt.ready.get());
            return;
        }
        prompt.ready = Optional.of(ready);
        prompt.until = now + local.settings().timeouts().abort().toNanos();
        releaseIfServed(prompt, now);
    }

    /** The prefill request has ended without its blocks. */
    void abandon(String transferId, long now) {
        remember(
                abandoned, transferId, now + local.settings().timeouts().abort().toNanos());
        Prompt prompt = prompts.get(transferId);
        if (prompt != null && prompt.ready.isEmpty()) {
            prompts.remove(transferId);
        }
    }

    /** The answer to a prefill request was lost: its prompt is kept for a decode rank that has asked for it, and for no other. */
    void answerLost(String requestId, long now) {
        prompts.values().stream()
                .filter(prompt -> prompt.ready
                        .filter(ready -> ready.requestId().equals(requestId))
                        .isPresent())
                .filter(prompt -> prompt.served == 0 && writes.stream().noneMatch(write -> write.prompt == prompt))
                .findFirst()
                .ifPresent(prompt -> release(prompt, prompt.ready.orElseThrow(), now));
    }

    private Prompt prompt(String transferId, long now) {
        return prompts.computeIfAbsent(
                transferId,
                id -> new Prompt(id, now + local.settings().timeouts().abort().toNanos()));
    }

    private static void remember(Map<String, Long> map, String key, long until) {
        map.remove(key);
        map.put(key, until);
    }

    /** Goes on as far as possible. */
    void advance(long now) {
        for (Question next = arrivals.poll(); next != null; next = arrivals.poll()) {
            take(next, now);
        }
        for (Iterator<Write> all = writes.iterator(); all.hasNext(); ) {
            Write write = all.next();
            if (advance(write, now)) {
                all.remove();
            }
        }
        for (Prompt prompt : List.copyOf(prompts.values())) {
            if (now - prompt.until >= 0 && prompt.writing == 0) {
                prompts.remove(prompt.transferId);
                prompt.ready.ifPresent(ready -> {
                    log.warn(
                            "Request {} timed out after {} seconds without being sent. Freeing its blocks on the producer side.",
                            ready.requestId(),
                            local.settings().timeouts().abort().toSeconds());
                    local.stats().count("vllm:mooncake_num_kv_expired_reqs");
                    release(prompt, ready, now);
                });
            }
        }
        forget(endedAttempts, now);
        forget(abandoned, now);
    }

    private static void forget(Map<String, Long> remembered, long now) {
        while (!remembered.isEmpty()) {
            Map.Entry<String, Long> oldest = remembered.entrySet().iterator().next();
            if (remembered.size() <= MOST_REMEMBERED && now - oldest.getValue() < 0) {
                return;
            }
            remembered.remove(oldest.getKey());
        }
    }

    private void take(Question question, long now) {
        XferRequest request;
        try {
            request = XferRequest.decode(question.message());
        } catch (InvalidFieldException e) {
            complaints.event(more -> log.warn("Error processing Mooncake xfer request: {}{}", e.getMessage(), more));
            local.stats().count("baton:mooncake_bad_messages");
            question.answer(XferReply.error(String.valueOf(e.getMessage())).encode());
            return;
        }
        Optional<Own> own = request.own();
        if (own.filter(Own::stop).isPresent()) {
            stop(question, request, own.get(), now);
            return;
        }
        try {
            if (own.filter(each -> !each.compatibility().equals(local.compatibility()))
                    .isPresent()) {
                throw new Misfit("the instances cannot exchange blocks: here " + local.compatibility()
                        + ", at the decode instance "
                        + PeerAddress.shown(own.get().compatibility()));
            }
            if (own.filter(each -> endedAttempts.containsKey(each.attempt())).isPresent()) {
                throw new Misfit("the attempt is over");
            }
            if (!local.settings().access().mayConnect(request.hostname())) {
                local.settings()
                        .access()
                        .refuse(request.hostname(), local.settings().access().notAllowed());
                throw new Misfit(
                        "remote_hostname is " + local.settings().access().notAllowed());
            }
            if (writes.size() + request.requests().size() > MOST_WRITES) {
                throw new Misfit("too many requests wait");
            }
            WritePlan plan = WritePlan.of(
                    regions,
                    local.ranks(),
                    request.regions(),
                    new WritePlan.Ranks(request.tpSize(), request.tpRank(), request.ppSize()),
                    local.context().modelLayout().kvHeads());
            Message message = new Message(question, request, plan);
            long deadline = now + local.settings().timeouts().abort().toNanos();
            request.requests().forEach((id, wanted) -> {
                Prompt prompt = prompt(wanted.transferId(), now);
                prompt.needed = needed(request);
                writes.add(new Write(message, id, wanted, prompt, now, deadline));
            });
        } catch (Misfit e) {
            complaints.event(more -> log.warn("Error processing Mooncake xfer request: {}{}", e.getMessage(), more));
            local.stats().count("baton:mooncake_refused_requests");
            question.answer(XferReply.error(String.valueOf(e.getMessage())).encode());
        }
    }

    /** How many ranks of the decode instance ask this rank. */
    private int needed(XferRequest request) {
        int stages = request.ppSize() > 1 && request.ppSize() != local.context().pipelineParallelSize()
                ? request.ppSize()
                : 1;
        return Math.max(1, request.tpSize() / local.context().tensorParallelSize()) * stages;
    }

    private void stop(Question question, XferRequest request, Own own, long now) {
        boolean known = endedAttempts.containsKey(own.attempt());
        remember(
                endedAttempts,
                own.attempt(),
                now + local.settings().timeouts().lastWrite().toNanos());
        for (Write write : writes) {
            if (write.message.attempt().equals(Optional.of(own.attempt()))) {
                write.stops.add(question);
                write.fail("stopped by the decode instance");
                return;
            }
        }
        if (!known && !abandoned.containsKey(own.transferId())) {
            Prompt prompt = prompt(own.transferId(), now);
            prompt.needed = needed(request);
            served(prompt, now);
        }
        answerStop(question, own.attempt());
    }

    private static void answerStop(Question question, String attempt) {
        question.answer(
                new XferReply(Status.FINISH, List.of(), List.of(attempt), Optional.of("stopped"), Optional.empty())
                        .encode());
    }

    /** True if it is over. */
    private boolean advance(Write write, long now) {
        if (write.message.question.isOver() && write.stops.isEmpty()) {
            // The decode instance has gone, or will say by another connection that it has given up.
            write.fail("the connection of the decode instance has ended");
        }
        if (!write.isBegun()) {
            if (write.failure.isEmpty() && write.prompt.ready.isEmpty()) {
                if (abandoned.containsKey(write.wanted.transferId())) {
                    write.fail("the prefill request has ended without its blocks");
                } else if (now - write.deadline >= 0) {
                    write.fail("Timeout waiting for P side ready.");
                }
            } else if (write.failure.isEmpty() && now - write.deadline >= 0) {
                write.fail("Timeout waiting for a free worker.");
            }
            if (write.failure.isPresent()) {
                return end(write, now);
            }
            if (write.prompt.ready.isEmpty() || writing() >= local.settings().workers()) {
                return false;
            }
            return begin(write, write.prompt.ready.get(), now);
        }
        CompletableFuture<Peer> peer = write.peer.orElseThrow();
        if (!peer.isDone()) {
            return false;
        }
        if (write.transfers.isEmpty() && write.failure.isEmpty()) {
            start(write, peer);
        }
        boolean underWay = false;
        for (Transfer transfer : write.transfers) {
            switch (transfer.state()) {
                case Transfer.State.UnderWay() -> underWay = true;
                case Transfer.State.Done _ -> {}
                case Transfer.State.Failed(Transfer.Cause cause, String message) -> write.fail(cause + ": " + message);
            }
        }
        if (underWay || !write.checksums.isDone()) {
            return false;
        }
        write.prompt.writing--;
        return end(write, now);
    }

    private int writing() {
        return (int) writes.stream().filter(Write::isBegun).count();
    }

    private boolean begin(Write write, Ready ready, long now) {
        if (write.wanted.isRelease()) {
            return end(write, now);
        }
        int[] reader = write.wanted.groups().getFirst();
        if (write.wanted.groups().size() != 1) {
            write.fail("KV group count mismatch");
        } else if (ready.blocks().length < reader.length) {
            write.fail("P num blocks less than D");
        }
        if (write.failure.isPresent()) {
            return end(write, now);
        }
        // Blocks that the decode instance has already are the prompt's first.
        int[] own = Arrays.copyOfRange(ready.blocks(), ready.blocks().length - reader.length, ready.blocks().length);
        WritePlan plan = write.message.plan;
        write.ranges = plan.ranges(own, reader);
        write.prompt.writing++;
        write.checksums = write.message.request.own().isEmpty()
                ? write.checksums
                : local.background().run(() -> plan.checksums(local.cache().host(), own));
        byte[] metadata = write.message
                .request
                .own()
                .map(Own::agent)
                .orElseGet(() -> session(write.message.request).getBytes(StandardCharsets.UTF_8));
        write.peer = Optional.of(local.background()
                .run(() -> local.agent()
                        .connect(metadata, local.settings().timeouts().handshake())));
        return false;
    }

    /** A Mooncake agent's segment, by which others find it. */
    private static String session(XferRequest request) {
        return request.hostname().contains(":")
                ? "[" + request.hostname() + "]:" + request.port()
                : request.hostname() + ":" + request.port();
    }

    private void start(Write write, CompletableFuture<Peer> connected) {
        if (connected.isCompletedExceptionally()) {
            write.fail("cannot connect to " + session(write.message.request) + ": "
                    + connected.exceptionNow().getMessage());
            return;
        }
        Peer peer = connected.resultNow();
        for (int i = 0; i < write.ranges.size(); i += RANGES) {
            write.transfers.add(local.agent()
                    .start(
                            Operation.WRITE,
                            peer,
                            write.ranges.subList(i, Math.min(i + RANGES, write.ranges.size())),
                            Optional.empty(),
                            local.settings().timeouts().transfer()));
        }
    }

    private boolean end(Write write, long now) {
        Message message = write.message;
        if (write.failure.isEmpty() && write.checksums.isCompletedExceptionally()) {
            write.failure = Optional.of("no checksums: " + write.checksums.exceptionNow());
        }
        message.attempt()
                .ifPresent(attempt -> remember(
                        endedAttempts,
                        attempt,
                        now + local.settings().timeouts().lastWrite().toNanos()));
        Status status = --message.open == 0 ? Status.FINISH : Status.CONTINUE;
        if (write.failure.isPresent()) {
            log.warn(
                    "request {} of a decode instance gets no blocks of transfer {}: {}",
                    PeerAddress.shown(write.requestId),
                    PeerAddress.shown(write.wanted.transferId()),
                    write.failure.get());
            if (write.isBegun()) {
                local.stats().failedTransfer();
            }
        } else if (!write.ranges.isEmpty()) {
            long bytes = write.ranges.stream().mapToLong(Range::bytes).sum();
            local.stats().transferred(Duration.ofNanos(now - write.begun), Duration.ZERO, bytes, write.ranges.size());
        }
        message.question.answer(new XferReply(
                        status,
                        write.failure.isPresent() ? List.of() : List.of(write.requestId),
                        write.failure.isPresent() ? List.of(write.requestId) : List.of(),
                        write.failure,
                        write.failure.isPresent() || message.request.requests().size() > 1
                                ? Optional.empty()
                                : written(write))
                .encode());
        for (Question stop : write.stops) {
            answerStop(stop, message.attempt().orElse(""));
        }
        // The connection need not be asked: a decode rank ends it when it has its answer, and one that ended it before
        // cannot ask again, as
        // its attempt is over.
        served(write.prompt, now);
        return true;
    }

    private Optional<Written> written(Write write) {
        WritePlan plan = write.message.plan;
        return write.message
                .request
                .own()
                .filter(_ -> !write.wanted.isRelease())
                .map(_ -> new Written(
                        write.prompt.ready.map(Ready::prompt).orElse(""),
                        plan.isEmpty() ? new int[0] : plan.readerRegions(),
                        plan.to(),
                        plan.bytes(),
                        write.checksums.resultNow()));
    }

    private void served(Prompt prompt, long now) {
        prompt.served++;
        releaseIfServed(prompt, now);
    }

    private void releaseIfServed(Prompt prompt, long now) {
        if (prompt.served >= prompt.needed && prompt.writing == 0 && prompt.ready.isPresent()) {
            release(prompt, prompt.ready.get(), now);
        }
    }

    private void release(Prompt prompt, Ready ready, long now) {
        sent.add(ready.requestId());
        prompt.ready = Optional.empty();
        prompts.remove(prompt.transferId, prompt);
        remember(
                abandoned,
                prompt.transferId,
                now + local.settings().timeouts().abort().toNanos());
    }

    /** Returns when nothing reads the pool any more. The agent is closed. */
    void close() {
        Deadline deadline = Deadline.after(local.context().ticker(), CLOSE);
        for (Write write : writes) {
            try {
                int[] _ = deadline.get(write.checksums);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                return;
            } catch (ExecutionException | TimeoutException e) {
                log.warn("checksums of a prompt did not end: {}", e.toString());
            }
        }
        writes.clear();
        prompts.clear();
    }
}
