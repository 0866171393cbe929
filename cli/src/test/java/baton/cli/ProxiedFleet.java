package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.cli.Instances.Reply;
import baton.kv.FreePorts;
import baton.messages.PeerAddress;
import baton.messages.p2p.P2pRequestId;
import baton.store.redis.RedisServer;
import baton.testkit.Damages;
import baton.testkit.DamagingProxy;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.UUID;
import java.util.stream.Stream;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ObjectNode;

/** A prefill and a decode instance in processes of their own, and proxies between them, or between them and their store. */
final class ProxiedFleet implements AutoCloseable {
    /** Tokens of the longest prompt. */
    static final int LONGEST = 400;

    private static final int MAX_TOKENS = 8;
    private static final int WIRE_ID = 0x42544e57;
    private static final String FRONT = "front";
    private static final String BACK = "back";
    static final String DATA = "data";
    private static final String TRANSFER = "--kv-transfer-config";

    /** Where keys and values go. */
    enum Path {
        /** A connection to a peer's transfer agent; connectors announce its ports. */
        AGENT,
        /** A connection to a peer over pipes. */
        PIPE,
        STORE
    }

    /** Ways of keys and values. */
    enum Way {
        NIXL(Path.AGENT, "NixlConnector"),
        NIXL_PUSH(Path.AGENT, "NixlPushConnector"),
        MOONCAKE(Path.AGENT, "MooncakeConnector"),
        LMCACHE_PD(Path.AGENT, "LMCacheConnectorV1"),
        P2P_PUT_ASYNC(Path.PIPE, "P2pNcclConnector"),
        P2P_GET(Path.PIPE, "P2pNcclConnector"),
        PYNCCL(Path.PIPE, "PyNcclConnector"),
        LMCACHE_REDIS(Path.STORE, "LMCacheConnectorV1"),
        LMCACHE_KV_SERVER(Path.STORE, "LMCacheConnectorV1"),
        OFFLOADING_REDIS(Path.STORE, "OffloadingConnector"),
        OFFLOADING_KV_SERVER(Path.STORE, "OffloadingConnector");

        final Path path;
        private final String connector;

        Way(Path path, String connector) {
            this.path = path;
            this.connector = connector;
        }

        /** Lanes between the instances, or the instances and their store. */
        List<String> lanes() {
            String further = switch (path) {
                case AGENT -> AnnouncedPorts.NAME;
                case PIPE -> BACK;
                case STORE -> FRONT;
            };
            return Stream.of(FRONT, further)
                    .distinct()
                    .flatMap(name -> DamagingProxy.lanes(name).stream())
                    .toList();
        }
    }

    /** An answer by token ids and log probabilities. */
    record Answer(List<Integer> tokens, List<Double> logprobs) {
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

    private final Way way;
    private final Instances instances;
    /** All processes that are Baton's. */
    final List<Instance> servers = new ArrayList<>();

    final Damages damages = new Damages();
    private final Deque<AutoCloseable> open = new ArrayDeque<>();
    private final AnnouncedPorts announced = new AnnouncedPorts(damages);
    /** The port of the store, else of the prefill instance; the decode instance has the next one. */
    private final int port;
    /** The proxy before the store or the prefill instance. */
    private final DamagingProxy front;
    /** The proxy before the decode instance, with pipes; else the same as {@link #front}. */
    private final DamagingProxy back;

    final Instance prefill;
    final Instance decode;

    ProxiedFleet(Way way, Instances instances) throws Exception {
        this.way = way;
        this.instances = instances;
        open.push(announced);
        port = switch (way) {
            case NIXL, NIXL_PUSH, MOONCAKE, LMCACHE_PD -> FreePorts.inARow(1);
            case P2P_PUT_ASYNC, P2P_GET, PYNCCL -> FreePorts.inARow(4);
            case LMCACHE_REDIS, OFFLOADING_REDIS -> {
                RedisServer redis = RedisServer.start(instances.directory("redis of " + way));
                open.push(redis);
                yield redis.port();
            }
            case LMCACHE_KV_SERVER, OFFLOADING_KV_SERVER -> {
                Instance server = instances.kvServer("kv-server of " + way, "256M");
                open.push(server::kill);
                servers.add(server);
                yield server.url().getPort();
            }
        };
        if (way.path == Path.PIPE) {
            DamagingProxy.Rewriting rewriting = way == Way.PYNCCL ? DamagingProxy.Rewriting.NONE : this::leadPipes;
            front = new DamagingProxy(FRONT, port + 2, loopback(port), damages, rewriting);
            back = new DamagingProxy(BACK, port + 3, loopback(port + 1), damages, rewriting);
            open.push(back);
        } else {
            front = new DamagingProxy(FRONT, 0, loopback(port), damages, announced);
            back = front;
        }
        open.push(front);
        prefill = serve("prefill of " + way, true);
        decode = serve("decode of " + way, false);
        servers.addAll(List.of(prefill, decode));
        open.push(prefill::kill);
        open.push(decode::kill);
    }

    private static InetSocketAddress loopback(int port) {
        return new InetSocketAddress(InetAddress.getLoopbackAddress(), port);
    }

    /** The bytes sent through the proxies. */
    List<DamagingProxy.Conversation> conversations() {
        return Stream.concat(
                        Stream.of(front, back).distinct().flatMap(proxy -> proxy.conversations().stream()),
                        announced.conversations().stream())
                .toList();
    }

    /** The lane of keys and values, where it is one and known. */
    Optional<String> dataLane() {
        return switch (way) {
            case P2P_GET -> Optional.of(DamagingProxy.lanes(DATA).getFirst());
            case P2P_PUT_ASYNC -> Optional.of(DamagingProxy.lanes(DATA).getLast());
            case PYNCCL -> Optional.of(DamagingProxy.lanes(BACK).getLast());
            default -> Optional.empty();
        };
    }

    /** P2pNcclConnector's instances know each other by the address that each calls itself, and announce the ports of wires. */
    private void leadPipes(DamagingProxy proxy, byte[] bytes) throws IOException {
        replace(bytes, address(port), address(front.port()));
        replace(bytes, address(port + 1), address(back.port()));
        ByteBuffer message = ByteBuffer.wrap(bytes);
        int portAt = Integer.BYTES + 3 + 4; // of baton.pipe.WireId
        for (int at = 0; at + portAt + Short.BYTES <= bytes.length; at++) {
            if (message.getInt(at) == WIRE_ID) {
                int through = proxy.through(DATA, Short.toUnsignedInt(message.getShort(at + portAt)));
                message.putShort(at + portAt, (short) through);
            }
        }
    }

    private static String address(int port) {
        return new PeerAddress("127.0.0.1", port).toString();
    }

    /** The same number of bytes in ASCII. */
    private static void replace(byte[] bytes, String old, String with) {
        String text = new String(bytes, StandardCharsets.ISO_8859_1);
        for (int at = text.indexOf(old); at >= 0; at = text.indexOf(old, at + 1)) {
            System.arraycopy(with.getBytes(StandardCharsets.ISO_8859_1), 0, bytes, at, with.length());
        }
    }

    private Instance serve(String name, boolean producer) throws Exception {
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
            case P2P_PUT_ASYNC, P2P_GET -> """
                    "send_type": "%s", "exchange_timeout": 2, "transfer_timeout": 2, "load_timeout": 4, "tensor_ttl": 10""".formatted(way == Way.P2P_GET ? "GET" : "PUT_ASYNC");
            case PYNCCL -> """
                    "silence_seconds": 2, "lookup_timeout_seconds": 4, "insert_timeout_seconds": 4, "keep_seconds": 4,
                    "connect_wait_seconds": 4""";
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
        String fields = switch (way) {
            case P2P_PUT_ASYNC, P2P_GET -> "\"kv_port\": %d,".formatted(producer ? port : port + 1);
            case PYNCCL -> "\"kv_parallel_size\": 2, \"kv_port\": %d,".formatted(producer ? port : port + 2);
            default -> "";
        };
        String role = way.path == Path.STORE ? "kv_both" : producer ? "kv_producer" : "kv_consumer";
        return instances.serve(
                name, "--dtype", "float32", TRANSFER, """
                {"kv_connector": "%s", "kv_role": "%s", "kv_load_failure_policy": "recompute", %s "kv_connector_extra_config": {%s}}""".formatted(way.connector, role, fields, settings));
    }

    /** The prompt once more, at the decode instance alone. */
    Answer again(int[] prompt) throws Exception {
        return answer(decode, prompt);
    }

    /** Both legs, as a router sends them. */
    Answer handOver(int[] prompt) throws Exception {
        String id = way.connector.equals("P2pNcclConnector")
                ? new P2pRequestId(
                                new PeerAddress("127.0.0.1", front.port()),
                                new PeerAddress("127.0.0.1", back.port()),
                                UUID.randomUUID().toString().replace("-", ""))
                        .format()
                : "legs-" + UUID.randomUUID();
        ObjectNode first = Instances.greedy(prompt, 1);
        if (way.path == Path.AGENT && way != Way.LMCACHE_PD) {
            ObjectNode params = first.putObject("kv_transfer_params").put("do_remote_decode", true);
            if (way == Way.MOONCAKE) {
                params.put("transfer_id", id);
            }
        }
        Reply prefilled = prefill.post("/v1/completions", first.toString(), "X-Request-Id", id);
        assertThat(prefilled.status()).as(prefilled.body()).isEqualTo(200);
        ObjectNode second = body(prompt);
        if (way.path == Path.AGENT) {
            ObjectNode params = prefilled.json().path("kv_transfer_params") instanceof ObjectNode object
                    ? object
                    : Instances.JSON.createObjectNode();
            second.set(
                    "kv_transfer_params",
                    switch (way) {
                        case NIXL, NIXL_PUSH -> params.put("remote_port", front.port());
                        case MOONCAKE -> params.put("remote_bootstrap_addr", "http://127.0.0.1:" + front.port());
                        default -> params;
                    });
        }
        Answer answer = Answer.of(decode.post("/v1/completions", second.toString(), "X-Request-Id", id));
        assertThat(prefilled.tokenIds()).as("the prefill instance's token").containsExactly(answer.tokens.getFirst());
        return answer;
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

    /** A prompt of 33 tokens and more. */
    static int[] prompt(Random random) {
        return Ledgers.prompt(33 + random.nextInt(LONGEST - 33), random.nextInt(1_000_000));
    }

    private static ObjectNode body(int[] prompt) {
        return Instances.greedy(prompt, MAX_TOKENS).put("logprobs", 1);
    }

    /** The answer of an instance that computes the prompt itself. */
    static Answer answer(Instance instance, int[] prompt) throws Exception {
        return Answer.of(instance.post("/v1/completions", body(prompt).toString()));
    }
}
