package baton.connectors.lmcache;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.connectors.bykey.MapStores;
import baton.kv.DType;
import baton.kv.InvalidFieldException;
import baton.kv.JsonFields;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.SchedulerConnector.RequestEnd;
import baton.store.lmcache.ObjectNames;
import baton.testkit.FakeEngine;
import baton.testkit.FakeEngine.Running;
import baton.testkit.FakeEngine.Share;
import baton.testkit.FakeKvRequest;
import baton.testkit.VirtualTicker;
import java.io.IOException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The values stored and loaded, and their keys, by settings and requests. */
class LmCacheConnectorTest {
    private static final int BLOCK = 16;
    private static final KvLayout LAYOUT = new KvLayout(3, 2, 8, BLOCK, DType.BF16);

    private final VirtualTicker ticker = new VirtualTicker();
    private final MapStores stores = new MapStores();
    private final List<FakeEngine> engines = new ArrayList<>();
    private final Map<String, Object> settings =
            new HashMap<>(Map.of("chunk_size", 32, "lmcache.remote_url", "lm://127.0.0.1:1"));
    private int requests;

    private FakeEngine start(KvRole role, Map<String, String> environment) {
        return start(role, new LmCacheConnector(stores, environment));
    }

    private FakeEngine start(KvRole role, LmCacheConnector connector) {
        KvTransferConfig.Builder config = KvTransferConfig.builder("LMCacheConnectorV1", role);
        settings.forEach(config::extra);
        FakeEngine engine = new FakeEngine(
                connector,
                new ConnectorContext(config.build(), new ModelFingerprint("org/tiny", "feed"), LAYOUT, ticker),
                64);
        engines.add(engine);
        return engine;
    }

    private FakeEngine start() {
        return start(KvRole.BOTH, Map.of());
    }

    /** LMCache's keys of the stored values of the first rank. */
    private List<String> keys() {
        ObjectNames names = ((RemoteObjects) stores.opened.getLast()).names();
        return stores.keys().stream()
                .flatMap(key -> names.name(key, 0).stream())
                .sorted()
                .toList();
    }

    @AfterEach
    void close() {
        engines.forEach(FakeEngine::close);
    }

    private FakeKvRequest request(int length) {
        int[] tokens = new int[length];
        for (int i = 0; i < length; i++) {
            tokens[i] = i;
        }
        return new FakeKvRequest("r" + requests++, tokens, BLOCK);
    }

    private static FakeKvRequest with(FakeKvRequest request, String params) {
        return request.withKvTransferParams(JsonFields.parse("kv_transfer_params", params));
    }

    /** Tokens of a request that were loaded. */
    private int run(FakeEngine engine, FakeKvRequest request) {
        Running running = engine.admit(request, 0);
        while (running.isLoading()) {
            engine.idleStep();
        }
        int left = running.remainingTokens();
        if (left < request.promptLength()) {
            engine.resume(running);
            left = running.remainingTokens();
        }
        engine.step(new Share(running, left));
        engine.end(running, RequestEnd.LENGTH);
        while (engine.usedBlocks() > 0) {
            engine.idleStep();
        }
        return request.promptLength() - left;
    }

    @Test
    void chunksHaveLmCachesKeysAndAnotherInstanceFindsThem() {
        settings.put("pre_caching_hash_algorithm", "sha256_cbor");
        Map<String, String> environment = Map.of("PYTHONHASHSEED", "0");
        settings.put("chunk_size", 16);
        assertThat(run(start(KvRole.BOTH, environment), request(40))).isZero();
        assertThat(keys())
                .containsExactly("org/tiny@1@0@17c587bb83dc4528@bfloat16", "org/tiny@1@0@7913e9343b88bdf9@bfloat16");
        assertThat(run(start(KvRole.BOTH, environment), request(40))).isEqualTo(32);
    }

    @Test
    void theBuiltinHashIsPythons() {
        settings.put("chunk_size", 16);
        run(start(), request(33));
        assertThat(keys())
                .containsExactly("org/tiny@1@0@-1a6e12a9bdb7fd70@bfloat16", "org/tiny@1@0@44f2b6c6f61bea69@bfloat16");
    }

    /** LMCache's objects in files end without the checksum that Baton appends. */
    @Test
    void aLoadOfObjectsWithoutChecksumsIsReportedAsUnverified(@TempDir Path directory) throws IOException {
        settings.put("lmcache.remote_url", "fs://host:0" + directory);
        run(start(KvRole.BOTH, LmCacheConnector.withEnvironment(Map.of())), request(40));
        for (boolean checksums : List.of(true, false)) {
            FakeEngine engine = start(KvRole.BOTH, LmCacheConnector.withEnvironment(Map.of()));
            FakeKvRequest request = request(40);
            FakeEngine.awaitMatch(engine.scheduler(), request, 0);
            Running running = engine.admit(request, 0);
            assertThat(running.externalTokens()).isEqualTo(32);
            assertThat(engine.awaitLoad(running).unverified()).isEqualTo(checksums ? Set.of() : Set.of(request.id()));
            try (DirectoryStream<Path> objects = Files.newDirectoryStream(directory, "*.data")) {
                for (Path object : objects) {
                    Files.write(
                            object,
                            Arrays.copyOf(Files.readAllBytes(object), 28 + 2 * Math.toIntExact(LAYOUT.blockBytes())));
                }
            }
        }
    }

    @Test
    void aChunkThatIsNotFullIsNotStored() {
        run(start(), request(63));
        assertThat(keys()).hasSize(1);
    }

    @Test
    void tagsArePartOfTheKeyAndRequestsWithOthersFindNothing() {
        String tagged = "{\"lmcache.tag.user\": \"ann\", \"lmcache.tag.n\": 7}";
        run(start(), with(request(40), tagged));
        assertThat(keys()).allMatch(key -> key.endsWith("@bfloat16@user%ann@n%7"));
        FakeEngine other = start();
        assertThat(run(other, request(40))).isZero();
        assertThat(run(other, with(request(40), tagged))).isEqualTo(32);
    }

    @Test
    void aTagThatNoKeyCanHaveIsRefused() {
        FakeEngine engine = start();
        assertThatThrownBy(() -> engine.admit(with(request(40), "{\"lmcache.tag.user\": \"a@b\"}"), 0))
                .isInstanceOf(InvalidFieldException.class)
                .hasMessageContaining("kv_transfer_params.lmcache.tag.user");
    }

    @Test
    void aRequestThatSkipsSavingIsNotStoredButLoads() {
        run(start(), with(request(40), "{\"lmcache.skip_save\": true}"));
        assertThat(keys()).isEmpty();
        run(start(), request(40));
        assertThat(run(start(), with(request(40), "{\"lmcache.skip_save\": true}")))
                .isEqualTo(32);
    }

    @Test
    void aRequestWithACacheSaltSharesNothing() {
        run(start(), request(40).withCacheSalt("s"));
        assertThat(keys()).isEmpty();
        run(start(), request(40));
        assertThat(run(start(), request(40).withCacheSalt("s"))).isZero();
    }

    @Test
    void aProducerDoesNotLoadAndAConsumerDoesNotStore() {
        assertThat(run(start(KvRole.CONSUMER, Map.of()), request(40))).isZero();
        assertThat(keys()).isEmpty();
        run(start(KvRole.PRODUCER, Map.of()), request(40));
        assertThat(keys()).hasSize(1);
        assertThat(run(start(KvRole.PRODUCER, Map.of()), request(40))).isZero();
        assertThat(run(start(KvRole.CONSUMER, Map.of()), request(40))).isEqualTo(32);
    }

    @Test
    void nothingIsStoredWhereTheEnvironmentSaysSo() {
        run(start(KvRole.BOTH, Map.of("LMCACHE_FORCE_SKIP_SAVE", "1")), request(40));
        assertThat(keys()).isEmpty();
    }

    @Test
    void aHitOfFewerTokensThanAskedForIsNotLoaded() {
        run(start(), request(40));
        settings.put("min_retrieve_tokens", 33);
        assertThat(run(start(), request(40))).isZero();
        settings.put("min_retrieve_tokens", 32);
        assertThat(run(start(), request(40))).isEqualTo(32);
    }
}
