package baton.router;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.messages.MessageException;
import baton.messages.PeerChannel;
import baton.messages.p2p.P2pRequestId;
import baton.messages.zeromq.ZeroMqPeerChannel;
import baton.router.flow.ContentKeyedFlow;
import baton.router.flow.P2pFlow;
import baton.router.policy.LocalPrefill;
import baton.router.policy.PolicySettings;
import baton.router.upstream.Registrations;
import baton.testkit.Await;
import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.net.Inet4Address;
import java.net.InetAddress;
import java.net.NetworkInterface;
import java.net.Socket;
import java.net.SocketException;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import org.msgpack.core.MessageBufferPacker;
import org.msgpack.core.MessagePack;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/** Registration as by vLLM's instances, and the flow that uses the registered addresses. */
@Timeout(300)
class RegistrationTest {
    private static final String BODY = "{\"prompt\":\"hello\",\"max_tokens\":9}";
    private static final String PREFILLED = "{\"id\":\"p\"}";
    private static final String JOINED = "baton:router_registrations_total{result=\"joined\"}";

    /** A time to live that does not expire by accident on a busy machine. */
    private static final Duration LONG = Duration.ofSeconds(60);

    private static final Duration SHORT = Duration.ofMillis(2500);

    private final RouterFixture fixture = new RouterFixture();
    private final PeerChannel channel = new ZeroMqPeerChannel();
    private final List<Peer> peers = new ArrayList<>();

    @AfterEach
    void stopAll() throws Exception {
        peers.forEach(Peer::stop);
        channel.close();
        fixture.close();
    }

    private Router router(Duration ttl, int maxInstances, String... networks) {
        return router(List.of(), List.of(), ttl, maxInstances, List.of(networks));
    }

    private Router router(
            List<FakeInstance> prefills,
            List<FakeInstance> decodes,
            Duration ttl,
            int maxInstances,
            List<String> networks) {
        return fixture.router(
                P2pFlow.NAME,
                prefills,
                decodes,
                Optional.of(new Registrations.Settings(
                        "127.0.0.1",
                        0,
                        ttl,
                        maxInstances,
                        networks.isEmpty() ? Registrations.Settings.PRIVATE_NETWORKS : networks)),
                LocalPrefill.NEVER);
    }

    private Router router() {
        return router(LONG, 100);
    }

    /** As vLLM's P2pNcclEngine.ping: a DEALER with its control address as identity sends its registration again and again. */
    private final class Peer {
        private final PeerChannel.Call call;
        private final ScheduledExecutorService timer = Executors.newSingleThreadScheduledExecutor();

        Peer(Router router, String identity) throws MessageException {
            call = channel.call(
                    "127.0.0.1", router.registerPort().orElseThrow(), identity, RouterFixture.SOON, () -> {});
            peers.add(this);
        }

        void say(byte[]... frames) throws MessageException {
            call.tell(List.of(frames), RouterFixture.SOON);
        }

        void ping(byte[] message) {
            Future<?> _ = timer.scheduleAtFixedRate(
                    () -> {
                        try {
                            call.tell(List.of(message), RouterFixture.SOON);
                        } catch (MessageException e) {
                            throw new AssertionError(e);
                        }
                    },
                    0,
                    200,
                    TimeUnit.MILLISECONDS);
        }

        void stop() {
            timer.close();
            call.close();
        }
    }

    private static byte[] registration(String type, String http, String control) {
        Map<String, String> fields = new LinkedHashMap<>();
        fields.put("type", type);
        fields.put("http_address", http);
        fields.put("zmq_address", control);
        return map(fields);
    }

    private static byte[] map(Map<String, String> fields) {
        try (MessageBufferPacker packer = MessagePack.newDefaultBufferPacker()) {
            packer.packMapHeader(fields.size());
            for (Map.Entry<String, String> field : fields.entrySet()) {
                packer.packString(field.getKey()).packString(field.getValue());
            }
            return packer.toByteArray();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private static String address(FakeInstance instance) {
        return instance.uri().getAuthority();
    }

    private Peer register(Router router, String type, FakeInstance instance, String control) throws MessageException {
        Peer peer = new Peer(router, control);
        peer.ping(registration(type, address(instance), control));
        return peer;
    }

    private FakeInstance prefill() {
        FakeInstance instance = fixture.instance();
        instance.behaviour = FakeInstance.json(200, PREFILLED);
        return instance;
    }

    private void awaitUp(Router router, int prefills, int decodes) {
        fixture.awaitUp(router, "prefill", prefills);
        fixture.awaitUp(router, "decode", decodes);
    }

    private static P2pRequestId idOf(FakeInstance.Received received) {
        return P2pRequestId.find(received.headers().get("X-Request-Id"))
                .orElseThrow()
                .id();
    }

    @Test
    void registeredInstancesServeAndGetEachOthersAddressesInTheRequestId() throws Exception {
        Router router = router();
        HttpResponse<String> early = fixture.post(router, BODY);
        assertThat(early.statusCode()).isEqualTo(503);
        assertThat(early.body()).contains("no healthy prefill instance: none has registered");
        FakeInstance prefill = prefill();
        FakeInstance decode = fixture.instance();
        register(router, "P", prefill, "127.0.0.1:21001");
        register(router, "D", decode, "127.0.0.1:22001");
        awaitUp(router, 1, 1);
        assertThat(fixture.get(router, "/health").statusCode()).isEqualTo(200);

        HttpResponse<String> answer = fixture.post(router, BODY, "X-Request-Id", "mine");

        assertThat(answer.statusCode()).isEqualTo(200);
        assertThat(answer.body()).isEqualTo(RouterFixture.ANSWER);
        String id = decode.only().headers().get("X-Request-Id");
        // The form in which vLLM's producer and consumer read it.
        assertThat(id)
                .matches("___prefill_addr_127\\.0\\.0\\.1:21001___decode_addr_127\\.0\\.0\\.1:22001_[0-9a-f]{32}");
        assertThat(prefill.only().headers().get("X-Request-Id")).isEqualTo(id);
        assertThat(answer.headers().firstValue("X-Request-Id")).contains("mine");
        assertThat(answer.headers().firstValue("X-Baton-Handoff-Id")).contains(id);
        assertThat(prefill.only().body())
                .isEqualTo("{\"prompt\":\"hello\",\"max_tokens\":1,\"return_token_ids\":true,\"stream\":false}");
        assertThat(decode.only().body()).isEqualTo(BODY);
        assertThat(prefill.only().nanos()).isLessThan(decode.only().nanos());
        fixture.post(router, BODY, "X-Request-Id", "mine");
        assertThat(decode.received.get(1).headers().get("X-Request-Id")).isNotEqualTo(id);
    }

    @Test
    void registeredInstancesArePairedAndEachRetryHasItsOwnRequestId() throws Exception {
        Router router = router();
        List<FakeInstance> prefills = List.of(prefill(), prefill());
        List<FakeInstance> decodes = List.of(fixture.instance(), fixture.instance(), fixture.instance());
        for (int i = 0; i < prefills.size(); i++) {
            register(router, "P", prefills.get(i), "127.0.0.1:2100" + i);
        }
        for (int i = 0; i < decodes.size(); i++) {
            register(router, "D", decodes.get(i), "127.0.0.1:2200" + i);
        }
        awaitUp(router, 2, 3);
        for (int i = 0; i < 6; i++) {
            assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(200);
        }
        for (int i = 0; i < 3; i++) {
            for (FakeInstance.Received received : decodes.get(i).received) {
                assertThat(idOf(received).decode().port()).isEqualTo(22000 + i);
            }
            assertThat(decodes.get(i).received.stream()
                            .map(received -> idOf(received).prefill().port()))
                    .containsExactlyInAnyOrder(21000, 21001);
        }

        // The KV cache goes to the decode instance of the request id, so another one needs a prefill of its own.
        int before = prefills.stream().mapToInt(each -> each.received.size()).sum();
        decodes.get(0).behaviour = FakeInstance.json(503, "{}");
        decodes.get(1).behaviour = FakeInstance.json(503, "{}");
        decodes.forEach(each -> each.received.clear());
        assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(200);
        int legs = decodes.stream().mapToInt(each -> each.received.size()).sum();
        assertThat(prefills.stream().mapToInt(each -> each.received.size()).sum() - before)
                .isEqualTo(legs);
        assertThat(idOf(decodes.get(2).only()).decode().port()).isEqualTo(22002);
        assertThat(decodes.stream()
                        .flatMap(each -> each.received.stream())
                        .map(received -> received.headers().get("X-Request-Id")))
                .doesNotHaveDuplicates();

        // A retry of prefill has the address of the other prefill instance in its id.
        prefills.get(0).behaviour = FakeInstance.json(500, "{}");
        for (int i = 0; i < 2; i++) {
            decodes.get(2).received.clear();
            assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(200);
            assertThat(idOf(decodes.get(2).only()).prefill().port()).isEqualTo(21001);
        }
    }

    @Test
    void aClientsRequestIdCannotNameRegistrationAddresses() throws Exception {
        FakeInstance decode = fixture.instance();
        Router router = fixture.router(
                P2pFlow.NAME,
                List.of(),
                List.of(),
                Optional.of(
                        new Registrations.Settings("127.0.0.1", 0, LONG, 10, Registrations.Settings.PRIVATE_NETWORKS)),
                new LocalPrefill(true, 0, 0, Integer.MAX_VALUE));
        register(router, "D", decode, "127.0.0.1:22001");
        awaitUp(router, 0, 1);
        String hostile = "___prefill_addr_6.6.6.6:1___decode_addr_6.6.6.6:2_0123456789abcdef0123456789abcdef";
        HttpResponse<String> answer = fixture.post(router, BODY, "X-Request-Id", hostile);
        assertThat(answer.headers().firstValue("X-Baton-Local-Prefill")).contains("unavailable");
        assertThat(decode.only().headers().get("X-Request-Id")).doesNotContain("6.6.6.6");
    }

    /** The bytes that pyzmq's DEALER and msgpack write for vLLM's two messages. */
    @Test
    void registrationMessagesOfVllmAreUnderstood() throws Exception {
        Router router = router();
        String control = "31302e302e312e323a3231303031";
        String greeting = "ff00000000000000107f" + "03014e554c4c" + "00".repeat(48);
        String ready = "0438" + "0552454144590b536f636b65742d54797065000000064445414c4552"
                + "084964656e746974790000000f3132372e302e302e313a3231303031";
        String prefill = "003f83a474797065a150ac687474705f61646472657373ae31302e302e312e323a3230303031"
                + "ab7a6d715f61646472657373ae" + control;
        String decode = "003f83a474797065a144ac687474705f61646472657373ae31302e302e312e333a3230303032"
                + "ab7a6d715f61646472657373ae31302e302e312e333a3232303031";
        try (Socket socket = new Socket(
                InetAddress.getLoopbackAddress(), router.registerPort().orElseThrow())) {
            socket.getOutputStream().write(HexFormat.of().parseHex(greeting + ready + prefill + decode));
            fixture.awaitMetric(router, JOINED, 2);
        }
        JsonNode down = JsonMapper.builder()
                .build()
                .readTree(fixture.get(router, "/health").body())
                .path("down");
        assertThat(down.propertyNames()).containsExactlyInAnyOrder("http://10.0.1.2:20001", "http://10.0.1.3:20002");
    }

    @Test
    void aRegistrationExpiresAndMayBeRenewedLater() throws Exception {
        Router router = router(SHORT, 100);
        FakeInstance prefill = prefill();
        FakeInstance staying = fixture.instance();
        FakeInstance leaving = fixture.instance();
        register(router, "P", prefill, "127.0.0.1:21001");
        register(router, "D", staying, "127.0.0.1:22001");
        Peer silent = register(router, "D", leaving, "127.0.0.1:22002");
        awaitUp(router, 1, 2);
        silent.stop();
        fixture.awaitMetric(router, "baton:router_instances{role=\"decode\"}", 1);
        assertThat(fixture.metric(router, "baton:router_registrations_total{result=\"expired\"}"))
                .isGreaterThanOrEqualTo(1);
        for (int i = 0; i < 4; i++) {
            assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(200);
        }
        assertThat(staying.received).hasSize(4);
        assertThat(leaving.received).isEmpty();
        register(router, "D", leaving, "127.0.0.1:22003");
        awaitUp(router, 1, 2);
        for (int i = 0; i < 2; i++) {
            assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(200);
        }
        assertThat(idOf(leaving.only()).decode().port()).isEqualTo(22003);
    }

    @Test
    void aRegistrationWithANewConnectorAddressReplacesTheOldOne() throws Exception {
        Router router = router();
        FakeInstance prefill = prefill();
        FakeInstance decode = fixture.instance();
        register(router, "P", prefill, "127.0.0.1:21001");
        Peer old = register(router, "D", decode, "127.0.0.1:22001");
        awaitUp(router, 1, 1);
        old.stop();
        register(router, "D", decode, "127.0.0.1:22009");
        // The old peer's last message may be handled after the first one of the new peer.
        Await.until(
                "the new address is used",
                RouterFixture.SOON,
                () -> fixture.post(router, BODY).statusCode() == 200
                        && idOf(decode.received.getLast()).decode().port() == 22009);
        assertThat(fixture.metric(router, "baton:router_instances{role=\"decode\"}"))
                .isEqualTo(1);
    }

    @Test
    void aConfiguredInstanceStaysAfterItsRegistrationExpires() throws Exception {
        FakeInstance prefill = prefill();
        FakeInstance decode = fixture.instance();
        Router router = router(List.of(prefill), List.of(decode), SHORT, 100, List.of());
        awaitUp(router, 1, 1);
        HttpResponse<String> early = fixture.post(router, BODY);
        assertThat(early.statusCode()).isEqualTo(503);
        assertThat(early.body()).contains(prefill.uri() + " (up, but it has not registered)");
        assertThat(fixture.get(router, "/health").statusCode()).isEqualTo(503);
        register(router, "P", prefill, "127.0.0.1:21001");
        Peer silent = register(router, "D", decode, "127.0.0.1:22001");
        fixture.awaitMetric(router, JOINED, 2);
        awaitUp(router, 1, 1);
        assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(200);
        silent.stop();
        Await.until(
                "its connector is not known any more",
                RouterFixture.SOON,
                () -> fixture.post(router, BODY).statusCode() == 503);
        awaitUp(router, 1, 1);
        assertThat(fixture.metric(router, "baton:router_instances{role=\"decode\"}"))
                .isEqualTo(1);
    }

    @Test
    void registrationWorksInOtherFlowsBesideConfiguredInstances() throws Exception {
        FakeInstance configured = fixture.instance();
        FakeInstance prefill = prefill();
        Router router = fixture.router(
                ContentKeyedFlow.NAME,
                List.of(prefill),
                List.of(configured),
                Optional.of(
                        new Registrations.Settings("127.0.0.1", 0, LONG, 10, Registrations.Settings.PRIVATE_NETWORKS)),
                LocalPrefill.NEVER);
        FakeInstance registered = fixture.instance();
        register(router, "D", registered, "127.0.0.1:22001");
        awaitUp(router, 1, 2);
        for (int i = 0; i < 4; i++) {
            assertThat(fixture.post(router, BODY, "X-Request-Id", "mine").statusCode())
                    .isEqualTo(200);
        }
        assertThat(configured.received).hasSize(2);
        assertThat(registered.received).hasSize(2);
        assertThat(registered.received.getFirst().headers().get("X-Request-Id")).isEqualTo("mine");
    }

    @Test
    void aRegisteredInstanceThatIsNotHealthyGetsNoRequests() throws Exception {
        Router router = router();
        FakeInstance prefill = prefill();
        FakeInstance decode = fixture.instance();
        decode.health = 503;
        register(router, "P", prefill, "127.0.0.1:21001");
        register(router, "D", decode, "127.0.0.1:22001");
        awaitUp(router, 1, 0);
        fixture.awaitMetric(router, JOINED, 2);
        assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(503);
        decode.health = 200;
        awaitUp(router, 1, 1);
        assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(200);
    }

    @Test
    void registrationsComeAndExpireWhileRequestsRun() throws Exception {
        Router router = router(SHORT, 100);
        FakeInstance prefill = prefill();
        FakeInstance decode = fixture.instance();
        register(router, "P", prefill, "127.0.0.1:21001");
        register(router, "D", decode, "127.0.0.1:22001");
        awaitUp(router, 1, 1);
        ConcurrentLinkedQueue<String> failures = new ConcurrentLinkedQueue<>();
        List<FakeInstance> passing =
                IntStream.range(0, 5).mapToObj(i -> fixture.instance()).toList();
        Thread asking = Thread.ofVirtual().start(() -> {
            while (!Thread.currentThread().isInterrupted()) {
                try {
                    HttpResponse<String> answer = fixture.post(router, BODY);
                    if (answer.statusCode() != 200) {
                        failures.add(answer.body());
                    }
                } catch (InterruptedException e) {
                    return;
                } catch (Exception e) {
                    failures.add(e.toString());
                }
            }
        });
        for (int i = 0; i < passing.size(); i++) {
            FakeInstance instance = passing.get(i);
            Peer peer = register(router, "D", instance, "127.0.0.1:2300" + i);
            Await.until("it serves", RouterFixture.SOON, () -> !instance.received.isEmpty());
            peer.stop();
        }
        fixture.awaitMetric(router, "baton:router_instances{role=\"decode\"}", 1);
        asking.interrupt();
        asking.join(RouterFixture.SOON);
        assertThat(failures).isEmpty();
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "{}",
                "{\"type\":\"P\"}",
                "{\"type\":\"X\",\"http_address\":\"127.0.0.1:1\",\"zmq_address\":\"127.0.0.1:2\"}",
                "{\"type\":\"P\",\"http_address\":\"127.0.0.1\",\"zmq_address\":\"127.0.0.1:2\"}",
                "{\"type\":\"P\",\"http_address\":\"127.0.0.1:0\",\"zmq_address\":\"127.0.0.1:2\"}",
                "{\"type\":\"P\",\"http_address\":\"127.0.0.1:99999\",\"zmq_address\":\"127.0.0.1:2\"}",
                "{\"type\":\"P\",\"http_address\":\"127.0.0.1:1/v1?x=\",\"zmq_address\":\"127.0.0.1:2\"}",
                "{\"type\":\"P\",\"http_address\":\"u@127.0.0.1:1\",\"zmq_address\":\"127.0.0.1:2\"}",
                "{\"type\":\"P\",\"http_address\":\"127.0.0.1:1\",\"zmq_address\":\"127.0.0.1:2\\r\\nX-Evil: 1\"}",
                "{\"type\":\"P\",\"http_address\":\"127.0.0.1:1\",\"zmq_address\":\"127.0.0.1:2___decode_addr_6.6.6.6:1\"}"
            })
    void malformedRegistrationsAreRefusedAndCounted(String json) throws Exception {
        Router router = router();
        Map<String, String> fields = new LinkedHashMap<>();
        JsonMapper.builder()
                .build()
                .readTree(json)
                .properties()
                .forEach(each -> fields.put(each.getKey(), each.getValue().asString()));
        new Peer(router, "x").say(map(fields));
        fixture.awaitMetric(router, "baton:router_registrations_total{result=\"malformed\"}", 1);
        assertThat(fixture.metric(router, "baton:router_instances{role=\"prefill\"}"))
                .isZero();
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "169.254.169.254:80|127.0.0.1:2",
                "8.8.8.8:80|127.0.0.1:2",
                "127.0.0.1:1|8.8.8.8:2",
                "metadata.google.internal:80|127.0.0.1:2",
                "[fe80::1]:80|127.0.0.1:2",
                "2130706433:80|127.0.0.1:2"
            })
    void registrationsOfAddressesOutsideTheAllowedNetworksAreRefusedAndCounted(String addresses) throws Exception {
        Router router = router();
        String[] both = addresses.split("\\|");
        new Peer(router, "x").say(registration("P", both[0], both[1]));
        fixture.awaitMetric(router, "baton:router_registrations_total{result=\"not_allowed\"}", 1);
        assertThat(fixture.metric(router, "baton:router_instances{role=\"prefill\"}"))
                .isZero();
    }

    /** Requests to such an instance would return to the router and be sent on again. */
    @ParameterizedTest
    @ValueSource(strings = {"127.0.0.1", "localhost", "127.0.0.7", "0.0.0.0", "[::1]", "[::]", "this host"})
    void aRegistrationOfTheRoutersOwnAddressIsRefused(String host) throws Exception {
        Router router = everywhere("0.0.0.0");
        String own = host.equals("this host") ? ownAddress() : host;
        new Peer(router, "x").say(registration("D", own + ":" + router.port(), "127.0.0.1:2"));
        fixture.awaitMetric(router, "baton:router_registrations_total{result=\"own_address\"}", 1);
        assertThat(fixture.metric(router, "baton:router_instances{role=\"decode\"}"))
                .isZero();
    }

    @Test
    void aRegistrationOfAnotherAddressOfTheSameMachineIsAccepted() throws Exception {
        Router router = everywhere("127.0.0.1");
        new Peer(router, "x").say(registration("D", "127.0.0.7:" + router.port(), "127.0.0.1:2"));
        fixture.awaitMetric(router, "baton:router_instances{role=\"decode\"}", 1);
        new Peer(router, "y").say(registration("D", "127.0.0.1:" + router.port(), "127.0.0.1:2"));
        fixture.awaitMetric(router, "baton:router_registrations_total{result=\"own_address\"}", 1);
    }

    /** A router that accepts registrations of all addresses. */
    private Router everywhere(String host) {
        return fixture.start(TestConfigs.router(
                host,
                0,
                List.of(),
                List.of(),
                P2pFlow.NAME,
                Optional.empty(),
                RouterFixture.LIMITS,
                Optional.of(new Registrations.Settings("127.0.0.1", 0, LONG, 10, List.of("0.0.0.0/0", "::/0"))),
                PolicySettings.DEFAULT));
    }

    /** The address of an interface other than loopback, if there is one. */
    private static String ownAddress() throws SocketException {
        return NetworkInterface.networkInterfaces()
                .flatMap(NetworkInterface::inetAddresses)
                .filter(address -> address instanceof Inet4Address && !address.isLoopbackAddress())
                .map(InetAddress::getHostAddress)
                .findFirst()
                .orElse("127.0.0.1");
    }

    @Test
    void registrationsFromOutsideTheAllowedNetworksAreRefused() throws Exception {
        Router router = router(LONG, 10, "10.0.0.0/8", "fd00::/8");
        new Peer(router, "x").say(registration("P", "10.0.0.1:1", "10.0.0.1:2"));
        fixture.awaitMetric(router, "baton:router_registrations_total{result=\"not_allowed\"}", 1);
        assertThat(fixture.metric(router, "baton:router_instances{role=\"prefill\"}"))
                .isZero();
    }

    @Test
    void registrationsAreLimitedInNumber() throws Exception {
        Router router = router(LONG, 3);
        Peer peer = new Peer(router, "x");
        for (int i = 1; i <= 3; i++) {
            peer.say(registration("D", "127.0.0.1:" + i, "127.0.0.1:9"));
        }
        fixture.awaitMetric(router, JOINED, 3);
        peer.say(registration("D", "127.0.0.1:4", "127.0.0.1:9"));
        fixture.awaitMetric(router, "baton:router_registrations_total{result=\"full\"}", 1);
        assertThat(fixture.metric(router, "baton:router_instances{role=\"decode\"}"))
                .isEqualTo(3);
        // Registered instances may renew their registration.
        new Peer(router, "y").say(registration("D", "127.0.0.1:1", "127.0.0.1:9"));
        fixture.awaitMetric(router, "baton:router_registrations_total{result=\"renewed\"}", 1);
    }

    @Test
    void registrationsOfOneSenderAreLimitedInNumber() throws Exception {
        Router router = router(LONG, 64);
        String refused = "baton:router_registrations_total{result=\"sender_full\"}";
        Peer greedy = new Peer(router, "x");
        for (int i = 1; i <= Registrations.MAX_PER_CONNECTION; i++) {
            greedy.say(registration("D", "127.0.0.1:" + i, "127.0.0.1:9"));
        }
        fixture.awaitMetric(router, JOINED, Registrations.MAX_PER_CONNECTION);
        // A registered instance may change its connector's address.
        greedy.say(registration("D", "127.0.0.1:1", "127.0.0.1:10"));
        fixture.awaitMetric(router, JOINED, Registrations.MAX_PER_CONNECTION + 1);
        greedy.say(registration("D", "127.0.0.1:99", "127.0.0.1:9"));
        fixture.awaitMetric(router, refused, 1);
        // A quarter of all instances from one address, over any number of connections.
        for (int i = 20; i < 40; i++) {
            new Peer(router, "x" + i).say(registration("D", "127.0.0.1:" + i, "127.0.0.1:9"));
        }
        fixture.awaitMetric(router, refused, 1 + 20 - (16 - Registrations.MAX_PER_CONNECTION));
        assertThat(fixture.metric(router, "baton:router_instances{role=\"decode\"}"))
                .isEqualTo(16);
    }

    @Test
    void randomBytesOnTheRegistrationPortAreHarmless() throws Exception {
        Router router = router();
        Random random = new Random(Long.getLong("tests.seed", 5));
        byte[] good = registration("P", "127.0.0.1:1", "127.0.0.1:2");
        for (int i = 0; i < 200; i++) {
            byte[] bytes;
            if (i % 2 == 0) {
                bytes = new byte[1 + random.nextInt(64)];
                random.nextBytes(bytes);
            } else {
                bytes = good.clone();
                // The map declares more fields than it has.
                bytes[0] = (byte) (0x84 + random.nextInt(8));
            }
            try (Socket socket = new Socket(
                    InetAddress.getLoopbackAddress(), router.registerPort().orElseThrow())) {
                OutputStream out = socket.getOutputStream();
                if (i % 3 == 0) {
                    out.write(bytes);
                } else {
                    out.write(greetingAnd(bytes));
                }
                socket.shutdownOutput();
                socket.setSoTimeout((int) RouterFixture.SOON.toMillis());
                long _ = socket.getInputStream().transferTo(OutputStream.nullOutputStream());
            }
        }
        assertThatThrownBy(() -> {
                    Peer large = new Peer(router, "large");
                    while (true) {
                        large.say(new byte[1 << 20]);
                    }
                })
                .isInstanceOf(MessageException.class);
        Peer framed = new Peer(router, "framed");
        framed.say(good, good, good);
        Await.until(
                "some are refused",
                RouterFixture.SOON,
                () -> fixture.metric(router, "baton:router_registrations_total{result=\"malformed\"}") > 100);
        FakeInstance prefill = prefill();
        FakeInstance decode = fixture.instance();
        register(router, "P", prefill, "127.0.0.1:21001");
        register(router, "D", decode, "127.0.0.1:22001");
        awaitUp(router, 1, 1);
        assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(200);
        assertThat(fixture.metric(router, JOINED)).isEqualTo(2);
    }

    /** A whole handshake of a DEALER and one message. */
    private static byte[] greetingAnd(byte[] message) {
        byte[] ready =
                "\u0005READY\u000bSocket-Type\u0000\u0000\u0000\u0006DEALER".getBytes(StandardCharsets.ISO_8859_1);
        byte[] all = new byte[64 + 2 + ready.length + 2 + message.length];
        all[0] = (byte) 0xff;
        all[9] = 0x7f;
        all[10] = 3;
        System.arraycopy("NULL".getBytes(StandardCharsets.US_ASCII), 0, all, 12, 4);
        all[64] = 4;
        all[65] = (byte) ready.length;
        System.arraycopy(ready, 0, all, 66, ready.length);
        all[66 + ready.length + 1] = (byte) message.length;
        System.arraycopy(message, 0, all, 66 + ready.length + 2, message.length);
        return all;
    }

    @Test
    void aRegistrationPortInUseIsAClearError() {
        Router router = router();
        int taken = router.registerPort().orElseThrow();
        assertThatThrownBy(() -> fixture.router(
                        P2pFlow.NAME,
                        List.of(),
                        List.of(),
                        Optional.of(new Registrations.Settings(
                                "127.0.0.1", taken, LONG, 10, Registrations.Settings.PRIVATE_NETWORKS)),
                        LocalPrefill.NEVER))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith("register port: ")
                .hasMessageContaining("127.0.0.1:" + taken);
    }
}
