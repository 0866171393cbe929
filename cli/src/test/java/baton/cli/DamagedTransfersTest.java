package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.cli.Instances.Reply;
import baton.kv.FreePorts;
import baton.store.redis.RedisServer;
import baton.testkit.Damages;
import baton.testkit.Damages.Damage;
import baton.testkit.DamagingProxy;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Random;
import java.util.UUID;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * Instances in processes of their own, and a network between them, or between them and their store, that flips bits, cuts, drops, swaps
 * and repeats bytes: tokens and log probabilities are those of one instance alone, in the request whose transfer was damaged and in later
 * ones that find its blocks in a cache. {@code -Dtests.damaged=N} is for N damages of each way, {@code -Dtests.seed=N} for others.
 */
@Tag("thorough")
class DamagedTransfersTest {
    private static final int DAMAGED = Integer.getInteger("tests.damaged", 10);
    private static final long SEED = Long.getLong("tests.seed", 3);
    private static final int MAX_TOKENS = 8;
    private static final int LONGEST = 400;
    /** Of a prompt's keys and values, and some more. */
    private static final long MOST_BYTES = LONGEST * 6144L + 8192;

    private static final String TRANSFER = "--kv-transfer-config";

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    @SuppressWarnings("NullAway.Init")
    private static Instance alone;

    @BeforeAll
    static void start() throws Exception {
        alone = INSTANCES.serve("alone", "--dtype", "float32", "--no-enable-prefix-caching");
    }

    /** Paths of keys and values. */
    enum Way {
        NIXL,
        NIXL_PUSH,
        MOONCAKE,
        LMCACHE_PD,
        LMCACHE_REDIS,
        LMCACHE_KV_SERVER,
        OFFLOADING_REDIS,
        OFFLOADING_KV_SERVER
    }

    /** An answer by token ids and log probabilities. */
    private record Answer(List<Integer> tokens, List<Double> logprobs) {
        static Answer of(Reply reply) {
            JsonNode choice = reply.choice();
            return new Answer(
                    choice.path("token_ids").valueStream().map(JsonNode::asInt).toList(),
                    choice.path("logprobs")
                            .path("token_logprobs")
                            .valueStream()
                            .map(JsonNode::asDouble)
                            .toList());
        }
    }

    @ParameterizedTest
    @EnumSource
    void noDamagedByteIsUsed(Way way) throws Exception {
        try (Fleet fleet = new Fleet(way)) {
            Random random = new Random(SEED);
            fleet.handOver(prompt(random));
            List<String> lanes = new ArrayList<>(DamagingProxy.lanes(Fleet.FRONT));
            lanes.addAll(fleet.announces ? DamagingProxy.lanes(AnnouncedPorts.NAME) : List.of());
            int trial = 0;
            while (fleet.damages.count() < DAMAGED) {
                Damage damage = Damage.random(random, lanes, MOST_BYTES);
                try {
                    assertThat(trial++).as("trials").isLessThan(20 * DAMAGED);
                    fleet.trial(damage, prompt(random));
                } catch (AssertionError | Exception e) {
                    throw new AssertionError(
                            "trial %d, %s, of %s with -Dtests.seed=%d".formatted(trial, damage, way, SEED), e);
                }
            }
            double before = fleet.decode.prompts().transferred();
            Await.until(Instances.DEADLINE, () -> "nothing is handed over after the damages", () -> {
                fleet.handOver(prompt(random));
                return fleet.decode.prompts().transferred() > before;
            });
            System.out.printf(
                    "DamagedTransfersTest: %s: %d damages %s in %d hand-overs, %d tokens transferred, %d computed (-Dtests.seed=%d)%n",
                    way,
                    fleet.damages.count(),
                    fleet.damages.byKind(),
                    trial,
                    fleet.decode.prompts().transferred(),
                    fleet.decode.prompts().computed(),
                    SEED);
        }
    }

    private static int[] prompt(Random random) {
        return Ledgers.prompt(33 + random.nextInt(LONGEST - 33), random.nextInt(1_000_000));
    }

    private static ObjectNode body(int[] prompt, int maxTokens) {
        return Instances.greedy(prompt, maxTokens).put("logprobs", 1);
    }

    private static Answer expected(int[] prompt) throws Exception {
        return Answer.of(alone.post("/v1/completions", body(prompt, MAX_TOKENS).toString()));
    }

    /** A prefill and a decode instance, and proxies. */
    private static final class Fleet implements AutoCloseable {
        static final String FRONT = "front";

        private final Way way;
        private final Damages damages = new Damages();
        private final AnnouncedPorts announced = new AnnouncedPorts(damages);
        private final Deque<AutoCloseable> open = new ArrayDeque<>();
        private final boolean announces;
        private final DamagingProxy front;
        private final Instance prefill;
        private final Instance decode;

        Fleet(Way way) throws Exception {
            this.way = way;
            open.push(announced);
            announces = switch (way) {
                case NIXL, NIXL_PUSH, MOONCAKE, LMCACHE_PD -> true;
                case LMCACHE_REDIS, LMCACHE_KV_SERVER, OFFLOADING_REDIS, OFFLOADING_KV_SERVER -> false;
            };
            int port = switch (way) {
                case NIXL, NIXL_PUSH, MOONCAKE, LMCACHE_PD -> FreePorts.inARow(1);
                case LMCACHE_REDIS, OFFLOADING_REDIS -> {
                    RedisServer redis = RedisServer.start(INSTANCES.directory("redis of " + way));
                    open.push(redis);
                    yield redis.port();
                }
                case LMCACHE_KV_SERVER, OFFLOADING_KV_SERVER -> {
                    Instance server = INSTANCES.kvServer("kv-server of " + way, "1G");
                    open.push(server::kill);
                    yield server.url().getPort();
                }
            };
            front = new DamagingProxy(
                    FRONT, 0, new InetSocketAddress(InetAddress.getLoopbackAddress(), port), damages, announced);
            open.push(front);
            prefill = serve("prefill of " + way, true, port);
            decode = serve("decode of " + way, false, port);
            open.push(prefill::kill);
            open.push(decode::kill);
        }

        private Instance serve(String name, boolean producer, int port) throws Exception {
            String settings = switch (way) {
                case NIXL, NIXL_PUSH -> """
                        "transfer_agent": "embedded", "transport": "tcp", "side_channel_host": "127.0.0.1", "side_channel_port": %d,
                        "kv_lease_duration": 3, "transfer_timeout": 2, "handshake_timeout": 1, "push_registration_timeout": 2""".formatted(producer ? port : 0);
                case MOONCAKE -> """
                        "mooncake_protocol": "tcp", "bootstrap_port": %d, "abort_request_timeout": 3, "transfer_timeout": 2,
                        "handshake_timeout": 1""".formatted(producer ? port : 0);
                case LMCACHE_PD -> """
                        "lmcache.enable_pd": true, "lmcache.pd_role": "%s", "lmcache.pd_buffer_size": 100000000,
                        "lmcache.pd_buffer_device": "cpu", "lmcache.pd_peer_host": "127.0.0.1", "lmcache.pd_peer_init_port": %d,
                        "lmcache.blocking_timeout_secs": 2, "transfer_agent": "embedded", "transport": "tcp\"""".formatted(producer ? "sender" : "receiver", producer ? front.port() : port);
                case LMCACHE_REDIS, LMCACHE_KV_SERVER ->
                    """
                        "lmcache.remote_url": "%s://127.0.0.1:%d", "lmcache.chunk_size": 32, "lmcache.max_local_cpu_size": 0.05,
                        "lmcache.pre_caching_hash_algorithm": "sha256_cbor", "lmcache.blocking_timeout_secs": 2""".formatted(way == Way.LMCACHE_REDIS ? "redis" : "lm", front.port());
                case OFFLOADING_REDIS -> """
                        "cpu_bytes_to_use": 5e7, "load_timeout_seconds": 2, "secondary_tiers": [
                            {"type": "redis", "url": "redis://127.0.0.1:%d"}]""".formatted(front.port());
                case OFFLOADING_KV_SERVER -> """
                        "cpu_bytes_to_use": 5e7, "load_timeout_seconds": 2, "secondary_tiers": [
                            {"type": "lm", "url": "lm://127.0.0.1:%d", "shared_memory": false}]""".formatted(front.port());
            };
            String connector = switch (way) {
                case NIXL -> "NixlConnector";
                case NIXL_PUSH -> "NixlPushConnector";
                case MOONCAKE -> "MooncakeConnector";
                case LMCACHE_PD, LMCACHE_REDIS, LMCACHE_KV_SERVER -> "LMCacheConnectorV1";
                case OFFLOADING_REDIS, OFFLOADING_KV_SERVER -> "OffloadingConnector";
            };
            String role = producer ? "kv_producer" : "kv_consumer";
            return INSTANCES.serve(name, "--dtype", "float32", TRANSFER, """
                    {"kv_connector": "%s", "kv_role": "%s", "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {%s}}""".formatted(
                            connector, announces ? role : "kv_both", settings));
        }

        void trial(Damage damage, int[] prompt) throws Exception {
            damages.arm(damage);
            Answer answer = handOver(prompt);
            damages.disarm();
            Answer expected = expected(prompt);
            assertThat(answer).as("the request whose transfer was damaged").isEqualTo(expected);
            assertThat(Answer.of(decode.post(
                            "/v1/completions", body(prompt, MAX_TOKENS).toString())))
                    .as("the next request, by the prefix cache")
                    .isEqualTo(expected);
            if (!announces) {
                Await.until(
                        Instances.DEADLINE,
                        () -> "the prefix cache cannot be reset",
                        () -> decode.post("/reset_prefix_cache", "").status() == 200);
                assertThat(Answer.of(decode.post(
                                "/v1/completions", body(prompt, MAX_TOKENS).toString())))
                        .as("the next request, by what is stored")
                        .isEqualTo(expected);
            }
        }

        /** Both legs, as a router sends them. */
        Answer handOver(int[] prompt) throws Exception {
            String id = "legs-" + UUID.randomUUID();
            ObjectNode first = Instances.greedy(prompt, 1);
            ObjectNode second = body(prompt, MAX_TOKENS);
            switch (way) {
                case NIXL, NIXL_PUSH -> {
                    first.putObject("kv_transfer_params").put("do_remote_decode", true);
                    ObjectNode params = prefilled(first, id);
                    second.set("kv_transfer_params", params.put("remote_port", front.port()));
                }
                case MOONCAKE -> {
                    first.putObject("kv_transfer_params")
                            .put("do_remote_decode", true)
                            .put("transfer_id", id);
                    ObjectNode params = prefilled(first, id);
                    second.set(
                            "kv_transfer_params",
                            params.put("remote_bootstrap_addr", "http://127.0.0.1:" + front.port()));
                }
                case LMCACHE_PD -> second.set("kv_transfer_params", prefilled(first, id));
                case LMCACHE_REDIS, LMCACHE_KV_SERVER, OFFLOADING_REDIS, OFFLOADING_KV_SERVER -> prefilled(first, id);
            }
            return Answer.of(decode.post("/v1/completions", second.toString(), "X-Request-Id", id));
        }

        private ObjectNode prefilled(ObjectNode body, String id) throws Exception {
            Reply reply = prefill.post("/v1/completions", body.toString(), "X-Request-Id", id);
            assertThat(reply.status()).as(reply.body()).isEqualTo(200);
            return reply.json().path("kv_transfer_params").isObject()
                    ? (ObjectNode) reply.json().path("kv_transfer_params")
                    : Instances.JSON.createObjectNode();
        }

        @Override
        public void close() throws Exception {
            if (prefill.isAlive() && decode.isAlive()) {
                prefill.awaitRest();
                decode.awaitRest();
            }
            while (!open.isEmpty()) {
                open.pop().close();
            }
        }
    }
}
