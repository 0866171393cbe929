package baton.engine.core;

import static baton.engine.core.CoreHarness.expected;
import static baton.engine.core.CoreHarness.prompt;
import static org.assertj.core.api.Assertions.assertThat;

import baton.connectors.bykey.StoreOpener;
import baton.connectors.lmcache.LmCacheConnector;
import baton.connectors.mooncakestore.MooncakeStoreConnector;
import baton.connectors.offloading.OffloadingConnector;
import baton.engine.FinishReason;
import baton.engine.core.CoreHarness.Result;
import baton.kv.BlockHash;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.Ticker;
import baton.kv.connector.KvConnector;
import baton.store.BlockStore;
import baton.store.MapStore;
import baton.store.StoreFormat;
import baton.store.ValueCache;
import baton.store.memory.HostMemorySettings;
import baton.store.memory.HostMemoryStore;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** An answer waits while the connector holds it: an instance that is asked after it finds the prompt in the store. */
class HeldAnswersTest {
    private static final int BLOCK = 4;
    private static final int PROMPT = 10 * BLOCK + 1;
    private static final Duration TIMEOUT = Duration.ofSeconds(2);

    /** A connector that finds blocks by their content in a store that instances share. */
    enum ByKey {
        LMCACHE,
        MOONCAKE,
        OFFLOADING
    }

    /** Contents of all instances' stores. */
    private final Map<BlockHash, byte[]> values = new HashMap<>();

    /** The instances' stores, in the order of their start. */
    private final List<MapStore> stores = new ArrayList<>();

    private final ScriptedConnector scripted = new ScriptedConnector();

    private BlockStore open(StoreFormat format) {
        MapStore store = new MapStore(format, values);
        stores.add(store);
        return store;
    }

    private static ValueCache memory(StoreFormat format, Ticker ticker) {
        try {
            return HostMemoryStore.open(format, HostMemorySettings.of(1 << 20).withThreads(0), ticker);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private KvConnector connector(ByKey kind) {
        StoreOpener stores = new StoreOpener() {
            @Override
            public ValueCache memory(StoreFormat format, HostMemorySettings settings, Ticker ticker) {
                return HeldAnswersTest.memory(format, ticker);
            }

            @Override
            public BlockStore open(Closed store, Ticker ticker) {
                return HeldAnswersTest.this.open(store.format());
            }
        };
        return switch (kind) {
            case LMCACHE -> new LmCacheConnector(stores, Map.of("PYTHONHASHSEED", "0"));
            case MOONCAKE -> new MooncakeStoreConnector(stores, Map.of());
            case OFFLOADING -> new OffloadingConnector(stores);
        };
    }

    private static KvTransferConfig config(ByKey kind, KvRole role) {
        return switch (kind) {
            case LMCACHE ->
                KvTransferConfig.builder("LMCacheConnectorV1", role)
                        .extra("chunk_size", 2 * BLOCK)
                        .extra("remote_url", "lm://simulated:1")
                        .extra("blocking_timeout_secs", TIMEOUT.toSeconds())
                        .build();
            case MOONCAKE ->
                KvTransferConfig.builder("MooncakeStoreConnector", role)
                        .extra("store_rest_url", "http://127.0.0.1:1")
                        .extra("local_buffer_size", "1gb")
                        .build();
            case OFFLOADING ->
                KvTransferConfig.builder("OffloadingConnector", role)
                        .extra("cpu_bytes_to_use", 1 << 20)
                        .extra("secondary_tiers", List.of(Map.of("type", "fs", "root_dir", "simulated")))
                        .build();
        };
    }

    private CoreHarness start(ByKey kind, KvRole role) {
        return new CoreHarness(
                64, BLOCK, settings -> settings.kvTransfer(config(kind, role)), Optional.of(connector(kind)));
    }

    private CoreHarness startScripted() {
        KvTransferConfig config =
                KvTransferConfig.builder("Scripted", KvRole.BOTH).build();
        return new CoreHarness(64, BLOCK, settings -> settings.kvTransfer(config), Optional.of(scripted));
    }

    /** Steps while the store has not taken anything. */
    private static void stepOften(CoreHarness harness) {
        for (int i = 0; i < 20; i++) {
            harness.step();
        }
    }

    /** Tokens of a prompt that the instance does not compute. */
    private static int loaded(CoreHarness harness, int[] prompt) {
        Result result = harness.add("decode", prompt, 3);
        harness.run();
        assertThat(result.tokens).isEqualTo(expected(prompt, 3));
        return result.stats.orElseThrow().prompt().externalKvTransfer();
    }

    @ParameterizedTest
    @EnumSource
    void aPromptThatIsAnsweredIsInTheStore(ByKey kind) {
        int[] prompt = prompt(1, PROMPT);
        try (CoreHarness prefill = start(kind, KvRole.PRODUCER);
                CoreHarness decode = start(kind, KvRole.CONSUMER)) {
            MapStore slow = stores.getFirst();
            slow.holdsWrites = true;
            Result result = prefill.add("prefill", prompt, 1);
            stepOften(prefill);
            assertThat(result.tokens).as("tokens of the answer").hasSize(1);
            assertThat(values).isEmpty();
            assertThat(result.reason).as("end of the answer").isEmpty();
            assertThat(prefill.core.knows("prefill")).isTrue();
            assertThat(prefill.used()).as("blocks that wait for the store").isZero();

            slow.proceed();
            prefill.run();
            assertThat(result.reason).contains(FinishReason.LENGTH);
            assertThat(loaded(decode, prompt)).isEqualTo(PROMPT - 1);
        }
    }

    /** Nothing is stored for the second request: it is being stored for the first. */
    @ParameterizedTest
    @EnumSource
    void theAnswerToTheSamePromptWaitsToo(ByKey kind) {
        int[] prompt = prompt(1, PROMPT);
        try (CoreHarness prefill = start(kind, KvRole.PRODUCER)) {
            MapStore slow = stores.getFirst();
            slow.holdsWrites = true;
            Result first = prefill.add("first", prompt, 1);
            stepOften(prefill);
            Result second = prefill.add("second", prompt, 1);
            stepOften(prefill);
            assertThat(second.tokens).hasSize(1);
            assertThat(first.reason).isEmpty();
            assertThat(second.reason).isEmpty();

            slow.proceed();
            prefill.run();
            assertThat(first.reason).isPresent();
            assertThat(second.reason).isPresent();
        }
    }

    @ParameterizedTest
    @EnumSource
    void aStoreThatTakesNothingHoldsNoAnswerLongerThanTheDeadlineAndNoneAfterIt(ByKey kind) {
        try (CoreHarness prefill = start(kind, KvRole.PRODUCER)) {
            MapStore hanging = stores.getFirst();
            hanging.holdsWrites = true;
            Result first = prefill.add("first", prompt(1, PROMPT), 1);
            stepOften(prefill);
            prefill.pass(TIMEOUT);
            prefill.step();
            assertThat(first.reason).contains(FinishReason.LENGTH);
            Result second = prefill.add("second", prompt(2, PROMPT), 1);
            stepOften(prefill);
            assertThat(second.reason).contains(FinishReason.LENGTH);
            assertThat(prefill.measured).containsEntry("baton:kv_write_timeouts", 1.0);

            hanging.proceed();
            Result third = prefill.add("third", prompt(3, PROMPT), 1);
            stepOften(prefill);
            assertThat(third.tokens).hasSize(1);
            assertThat(third.reason).isEmpty();
            hanging.proceed();
            prefill.run();
            assertThat(third.reason).contains(FinishReason.LENGTH);
        }
    }

    @Test
    void theAnswersOfOtherRequestsDoNotWait() {
        scripted.held.add("held");
        try (CoreHarness harness = startScripted()) {
            Result held = harness.add("held", prompt(1, PROMPT), 2);
            Result other = harness.add("other", prompt(2, PROMPT), 4);
            stepOften(harness);
            assertThat(held.tokens).isEqualTo(expected(held.prompt, 2));
            assertThat(held.reason).isEmpty();
            assertThat(other.reason).contains(FinishReason.LENGTH);
            scripted.held.clear();
            harness.run();
            assertThat(held.reason).contains(FinishReason.LENGTH);
            assertThat(held.params).isPresent();
        }
    }

    @Test
    void anAnswerWithoutItsClientWaitsNoLonger() {
        scripted.held.add("held");
        try (CoreHarness harness = startScripted()) {
            Result held = harness.add("held", prompt(1, PROMPT), 1);
            stepOften(harness);
            assertThat(held.reason).isEmpty();
            harness.core.abort("held");
            assertThat(held.reason).isPresent();
            assertThat(harness.core.knows("held")).isFalse();
            harness.run();
        }
    }

    @Test
    void anEngineThatEndsGivesAnswersThatAreHeld() {
        scripted.held.add("held");
        try (CoreHarness harness = startScripted()) {
            Result held = harness.add("held", prompt(1, PROMPT), 1);
            stepOften(harness);
            harness.core.endAll(FinishReason.ABORT, "");
            assertThat(held.reason).contains(FinishReason.LENGTH);
            harness.run();
        }
    }

    @Test
    void aConnectorThatFailsHoldsNoAnswer() {
        scripted.held.add("held");
        try (CoreHarness harness = startScripted()) {
            Result held = harness.add("held", prompt(1, PROMPT), 1);
            stepOften(harness);
            harness.connectorFails = true;
            scripted.calls = method -> {
                if (method.equals("answerIsHeld")) {
                    throw new IllegalStateException("scripted");
                }
            };
            harness.run();
            assertThat(held.reason).contains(FinishReason.LENGTH);
        }
    }
}
