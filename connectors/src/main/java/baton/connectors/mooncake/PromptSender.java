package baton.connectors.mooncake;

import baton.connectors.mooncake.XferReply.Status;
import baton.connectors.mooncake.XferRequest.LayoutKey;
import baton.connectors.mooncake.XferRequest.Own;
import baton.connectors.onesided.PromptPlan.Ready;
import baton.kv.Bursts;
import baton.kv.InvalidFieldException;
import baton.messages.PeerAddress;
import baton.messages.mooncake.MooncakeExchange.Question;
import baton.transfer.TransferException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.LinkedBlockingQueue;
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
    /** Questions that wait; further ones are refused. */
    private static final int MOST_WRITES = 10_000;

    private static final String TOO_MANY = "too many requests wait";
    /** Attempts and transfers that are remembered after their end. */
    private static final int MOST_REMEMBERED = 20_000;
    /** Layouts of decode ranks; a rank that is started anew has another. */
    private static final int MOST_LAYOUTS = 1024;

    private final LocalRank local;
    /** Limits the log lines about messages, as a peer may send many. */
    private final Bursts complaints;

    private final List<MooncakeRegion> regions;
    private final Queue<Question> arrivals = new LinkedBlockingQueue<>(MOST_WRITES);
    private final Map<String, Prompt> prompts = new LinkedHashMap<>();
    private final List<PromptWrite> writes = new ArrayList<>();
    /** The number of {@code writes} that have a worker. */
    private int writing;
    /** Attempts that must not begin a write, with the time until which that is remembered. */
    private final Map<String, Long> endedAttempts = new LinkedHashMap<>();
    /** Transfers of prompts that will not come, or are gone. */
    private final Map<String, Long> abandoned = new LinkedHashMap<>();

    private final Set<String> sent = new LinkedHashSet<>();
    /** Plans of requests with regions, for later requests without them. The least recently used is removed first. */
    private final Map<LayoutKey, WritePlan> layouts = new LinkedHashMap<>(16, 0.75f, true) {
        @Override
        protected boolean removeEldestEntry(Map.Entry<LayoutKey, WritePlan> eldest) {
            return size() > MOST_LAYOUTS;
        }
    };

    PromptSender(LocalRank local) {
        this.local = local;
        this.regions = MooncakeRegion.of(local.cache());
        this.complaints = new Bursts(1, Duration.ofSeconds(10), local.context().ticker());
    }

    /** A prompt that is here, or that decode ranks wait for. */
    static final class Prompt {
        private final String transferId;
        Optional<Ready> ready = Optional.empty();
        private long until;
        /** Decode ranks that need nothing more. */
        private int served;

        private int needed = 1;
        /** Writes that read its blocks. */
        int writing;

        private Prompt(String transferId, long until) {
            this.transferId = transferId;
            this.until = until;
        }
    }

    /**
     * A message of a decode rank.
     *
     * @param open requests without an answer
     */
    record Message(Question question, XferRequest request, WritePlan plan, Set<String> open) {
        Optional<String> attempt() {
            return request.own().map(Own::attempt);
        }
    }

    /** A message has come; any thread. Refused while too many wait for the rank's thread, which a step of the model may hold for long. */
    void arrived(Question question) {
        if (arrivals.offer(question)) {
            local.context().wake().run();
        } else {
            question.answer(XferReply.of(Status.ERROR, TOO_MANY).encode());
        }
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
        abandoned.remove(ready.key());
        Prompt prompt = prompt(ready.key(), now);
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
                .filter(prompt -> prompt.served == 0 && writes.stream().noneMatch(write -> write.prompt() == prompt))
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
        writes.removeIf(write -> write.advance(now));
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
            question.answer(
                    XferReply.of(Status.ERROR, String.valueOf(e.getMessage())).encode());
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
                throw new TransferException("the instances cannot exchange blocks: here " + local.compatibility()
                        + ", at the decode instance "
                        + PeerAddress.shown(own.get().compatibility()));
            }
            if (own.filter(each -> endedAttempts.containsKey(each.attempt())).isPresent()) {
                throw new TransferException("the attempt is over");
            }
            if (!local.settings().access().mayConnect(request.hostname())) {
                local.settings()
                        .access()
                        .refuse(request.hostname(), local.settings().access().notAllowed());
                throw new TransferException(
                        "remote_hostname is " + local.settings().access().notAllowed());
            }
            if (writes.size() + request.requests().size() > MOST_WRITES) {
                throw new TransferException(TOO_MANY);
            }
            Optional<WritePlan> plan = plan(request);
            if (plan.isEmpty()) {
                question.answer(XferReply.of(
                                Status.LAYOUT_MISS,
                                "layout_id %#x of %s:%d is not known"
                                        .formatted(
                                                request.layoutId(),
                                                PeerAddress.shown(request.hostname()),
                                                request.port()))
                        .encode());
                return;
            }
            Message message = new Message(
                    question,
                    request,
                    plan.get(),
                    new HashSet<>(request.requests().keySet()));
            long deadline = now + local.settings().timeouts().abort().toNanos();
            request.requests().forEach((id, wanted) -> {
                Prompt prompt = prompt(wanted.transferId(), now);
                prompt.needed = needed(request);
                writes.add(new PromptWrite(this, local, message, id, wanted, prompt, deadline));
            });
        } catch (TransferException e) {
            complaints.event(more -> log.warn("Error processing Mooncake xfer request: {}{}", e.getMessage(), more));
            local.stats().count("baton:mooncake_refused_requests");
            question.answer(
                    XferReply.of(Status.ERROR, String.valueOf(e.getMessage())).encode());
        }
    }

    /** The writes into the asking rank's pool; empty if the request leaves its regions out and they are not remembered. */
    private Optional<WritePlan> plan(XferRequest request) throws TransferException {
        Optional<LayoutKey> key = request.layoutKey();
        if (key.isPresent() && request.regions().isEmpty()) {
            return Optional.ofNullable(layouts.get(key.get()));
        }
        WritePlan plan = WritePlan.of(
                regions,
                local.ranks(),
                request.regions(),
                new WritePlan.Ranks(request.tpSize(), request.tpRank(), request.ppSize()),
                local.context().modelLayout().kvHeads());
        key.ifPresent(each -> layouts.put(each, plan));
        return Optional.of(plan);
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
        rememberEnd(own.attempt(), now);
        for (PromptWrite write : writes) {
            if (write.isOf(own.attempt())) {
                write.stop(question);
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

    static void answerStop(Question question, String attempt) {
        question.answer(
                new XferReply(Status.FINISH, List.of(), List.of(attempt), Optional.of("stopped"), 0, Optional.empty())
                        .encode());
    }

    /** Whether the transfer's prompt will not come, or is gone. */
    boolean isAbandoned(String transferId) {
        return abandoned.containsKey(transferId);
    }

    boolean hasFreeWorker() {
        return writing < local.settings().workers();
    }

    /** A write takes a worker. */
    void began() {
        writing++;
    }

    /** A write gives its worker back. */
    void ended() {
        writing--;
    }

    /** No write of the attempt is to begin. */
    void rememberEnd(String attempt, long now) {
        remember(
                endedAttempts,
                attempt,
                now + local.settings().timeouts().lastWrite().toNanos());
    }

    /** One decode rank more needs nothing of the prompt. */
    void served(Prompt prompt, long now) {
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
        writes.forEach(PromptWrite::await);
        writes.clear();
        prompts.clear();
    }
}
