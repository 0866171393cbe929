package baton.connectors.mooncake;

import baton.connectors.mooncake.XferReply.Written;
import baton.connectors.onesided.Arrival;
import baton.connectors.onesided.Load;
import baton.connectors.onesided.LoadCheck;
import baton.connectors.onesided.PromptPlan.Wish;
import baton.connectors.onesided.Rejection;
import baton.connectors.onesided.TaskCheck;
import baton.messages.PeerAddress;
import baton.messages.mooncake.EngineTable.Engine;
import baton.transfer.TransferException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.IntStream;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * One prompt's load: asks the registry where the prefill instance's ranks are, then asks those that have this rank's heads and layers to
 * write ({@link WrittenPrompt}), and then compares the written blocks with the checksums that they have sent.
 */
final class PromptLoad extends Load {
    private static final Logger log = LoggerFactory.getLogger(PromptLoad.class);

    private final PromptReceiver receiver;
    private final LocalRank local;
    private final Wish wish;
    private final String attempt;
    private Optional<WrittenPrompt> prompt = Optional.empty();

    PromptLoad(PromptReceiver receiver, Wish wish, String attempt, long now) {
        super(
                wish.blocks(),
                receiver.local.rank(),
                receiver.local.stats(),
                now,
                receiver.local.settings().timeouts().load());
        this.receiver = receiver;
        this.local = receiver.local;
        this.wish = wish;
        this.attempt = attempt;
    }

    @Override
    protected boolean isReported() {
        return !wish.isRelease();
    }

    @Override
    protected Optional<? extends Arrival> connect(long now) {
        try {
            Optional<Engine> engine = receiver.engines.find(wish.source(), wish.waitsSince(), now);
            if (engine.isPresent()) {
                prompt = Optional.of(new WrittenPrompt(receiver, wish, attempt, ranks(engine.get()), now));
            }
        } catch (TransferException e) {
            fail(NO_HANDSHAKE, String.valueOf(e.getMessage()), now);
        }
        return prompt;
    }

    /** The prefill instance keeps the prompt until each decode rank has its answer, or has released it. */
    @Override
    protected void unwanted() {
        if (isReported()) {
            Wish release = Wish.release(wish.requestId(), wish.source(), wish.prefix(), local.now());
            receiver.happened(() -> receiver.start(release, local.now()));
        }
    }

    /** The prefill ranks that have this rank's heads and layers, or may have. */
    private List<PeerAddress> ranks(Engine engine) throws TransferException {
        List<PeerAddress> ranks = new ArrayList<>();
        int stages = local.context().pipelineParallelSize();
        for (int tensor : WritePlan.paired(
                local.rank().tensor(),
                local.context().tensorParallelSize(),
                Math.max(1, engine.workers().size()))) {
            Map<Integer, PeerAddress> byStage = engine.workers().getOrDefault(tensor, Map.of());
            PeerAddress same = byStage.get(local.rank().pipeline());
            if (byStage.isEmpty()) {
                throw new TransferException("the registry has no rank " + tensor + " of engine " + engine.id());
            }
            ranks.addAll(byStage.size() == stages && same != null ? List.of(same) : byStage.values());
        }
        return ranks;
    }

    /** Checks that all bytes of the prompt's blocks have come, if the prefill ranks report the bytes that they have written. */
    @Override
    protected Optional<? extends LoadCheck> check(long now) {
        WrittenPrompt here = prompt.orElseThrow();
        List<Written> parts = here.parts();
        long covered = 0;
        for (Written part : parts) {
            boolean fits = part.prompt().equals(wish.prompt())
                    && part.checksums().length == wish.blocks().length
                    && IntStream.of(part.regions())
                            .allMatch(index -> index < receiver.regions.size()
                                    && part.offset() >= 0
                                    && part.bytes() >= 0
                                    && part.bytes()
                                            <= receiver.regions.get(index).bytes() - part.offset());
            if (!fits) {
                reject(Rejection.MISMATCH, "the blocks that came are of another prompt, or are other blocks");
                return Optional.empty();
            }
            covered += part.regions().length * part.bytes();
        }
        long whole = local.cache().layout().blockBytes();
        if (!parts.isEmpty() && (covered != whole || parts.size() != here.writers())) {
            reject(Rejection.TRUNCATED, "%d of %d bytes of each block came".formatted(covered, whole));
            return Optional.empty();
        }
        boolean isVerified = !parts.isEmpty();
        return Optional.of(new TaskCheck(
                local.background(),
                isVerified,
                "the blocks could not be checked",
                isVerified ? Optional.of(() -> compare(parts)) : Optional.empty()));
    }

    private Map<Integer, Rejection> compare(List<Written> parts) {
        Map<Integer, Rejection> wrong = new LinkedHashMap<>();
        for (Written part : parts) {
            List<MooncakeRegion> covered =
                    IntStream.of(part.regions()).mapToObj(receiver.regions::get).toList();
            if (covered.isEmpty() || part.bytes() == 0) {
                continue;
            }
            int[] checksums =
                    WritePlan.checksums(local.cache().memory(), covered, part.offset(), part.bytes(), wish.blocks());
            for (int i = 0; i < checksums.length; i++) {
                if (checksums[i] != part.checksums()[i]) {
                    wrong.put(wish.blocks()[i], Rejection.CORRUPT);
                }
            }
        }
        return wrong;
    }

    @Override
    protected Optional<String> late(boolean isConnected) {
        return Optional.of("the prompt has not come within "
                + local.settings().timeouts().load().toSeconds() + " s");
    }

    @Override
    protected void onWrong(Map<Integer, Rejection> wrong) {
        log.warn(
                "request {}: {} of {} blocks that came do not have the checksums of the prefill instance",
                wish.requestId(),
                wrong.size(),
                wish.blocks().length);
        local.stats().add(Rejection.CORRUPT.measurement(wrong.size()));
    }

    @Override
    protected void onRejected(Rejection cause, String why) {
        onFailed(cause.label(), why, local.now());
    }

    @Override
    protected void onFailed(String type, String message, long now) {
        if (!wish.isRelease()) {
            log.warn("pulling kv_caches for {} failed: {}", wish.requestId(), message);
            local.stats().count("vllm:mooncake_num_failed_recvs");
        }
    }
}
