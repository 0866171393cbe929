package baton.connectors.mooncake;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.connectors.SystemRuntime;
import baton.connectors.mooncake.XferReply.Status;
import baton.connectors.mooncake.XferReply.Written;
import baton.connectors.mooncake.XferRequest.Wanted;
import baton.connectors.onesided.TransferStats;
import baton.kv.DType;
import baton.kv.Deadline;
import baton.kv.JsonFields;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.Measurement;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector.RequestEnd;
import baton.kv.connector.WorkerReport;
import baton.messages.MessageException;
import baton.messages.PeerAccess;
import baton.messages.PeerAddress;
import baton.messages.PeerChannel;
import baton.messages.SideChannel;
import baton.messages.mooncake.EngineTable;
import baton.messages.mooncake.MooncakeExchange;
import baton.messages.mooncake.MooncakeExchange.Question;
import baton.messages.mooncake.RankRegistration;
import baton.messages.mooncake.SystemExchange;
import baton.messages.zeromq.ZeroMqPeerChannel;
import baton.testkit.Damages;
import baton.testkit.DamagingProxy;
import baton.testkit.FakeEngine;
import baton.testkit.FakeEngine.Running;
import baton.testkit.FakeEngine.Share;
import baton.testkit.FakeKvRequest;
import baton.testkit.Forwarding;
import baton.transfer.Range;
import baton.transfer.Region;
import baton.transfer.Transfer;
import baton.transfer.TransferAgent;
import baton.transfer.TransferException;
import baton.transfer.embedded.EmbeddedAgent;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Faults between two instances, over real connections. */
@Timeout(300)
class MooncakeConnectorTest {
    private static final String HOST = "127.0.0.1";
    private static final int BLOCK = 4;

    private final List<AutoCloseable> opened = new ArrayList<>();
    private final List<WorkerReport> reports = new ArrayList<>();
    /** The questions to all engines. */
    private final List<Question> questions = new CopyOnWriteArrayList<>();

    /** The agents of all engines. */
    private final List<EmbeddedAgent> agents = new ArrayList<>();

    /** Settings of the engines that are made next. */
    private Map<String, Object> access = Map.of();

    @TempDir
    private Path directory;

    /** Changes questions on their way to all engines. */
    private UnaryOperator<byte[]> arriving = message -> message;

    /** Holds answers of registries back until it is complete. */
    private CompletableFuture<?> registriesAnswer = CompletableFuture.completedFuture(null);

    private int requests;

    @AfterEach
    void close() throws Exception {
        for (AutoCloseable each : opened.reversed()) {
            each.close();
        }
    }

    /** @param abort seconds of {@code abort_request_timeout} */
    private FakeEngine engine(KvRole role, String model, double abort, UnaryOperator<byte[]> answers) {
        return engine(role, model, abort, answers, _ -> {});
    }

    /** @param afterAnswer called when a question to this side has been answered, before this side goes on */
    private FakeEngine engine(
            KvRole role, String model, double abort, UnaryOperator<byte[]> answers, Consumer<Question> afterAnswer) {
        KvTransferConfig.Builder builder = KvTransferConfig.builder("MooncakeConnector", role)
                .engineId(role.configName())
                .extra("bootstrap_port", 0)
                .extra("handshake_timeout", 1)
                .extra("abort_request_timeout", abort)
                .extra("transfer_timeout", 0.5)
                .extra("load_timeout", Math.min(abort, 1));
        access.forEach(builder::extra);
        KvTransferConfig config = builder.build();
        MooncakeConnector connector = new MooncakeConnector(
                new SystemRuntime() {
                    @Override
                    public TransferAgent transferAgent(JsonFields extra, String host, PeerAccess peers) {
                        if (peers.secret().isEmpty()) {
                            return MooncakeConnector.tcp(config, MooncakeSettings.of(config, Map.of()));
                        }
                        EmbeddedAgent agent = agent(peers);
                        agents.add(agent);
                        return agent;
                    }
                },
                peers -> altered(new SystemExchange(peers, new SystemRuntime().background()), answers, afterAnswer));
        FakeEngine engine = new FakeEngine(
                connector,
                new ConnectorContext(
                        config,
                        new ModelFingerprint("fake", model),
                        new KvLayout(3, 2, 4, BLOCK, DType.F32),
                        Ticker.system()),
                64);
        opened.add(engine);
        return engine;
    }

    private static EmbeddedAgent agent(PeerAccess peers) {
        try {
            return EmbeddedAgent.open(
                    "test",
                    EmbeddedAgent.Settings.at(HOST)
                            .withTransport(EmbeddedAgent.Transport.TCP)
                            .withAccess(Optional.of(peers)));
        } catch (TransferException e) {
            throw new AssertionError(e);
        }
    }

    /** Answers to this side's questions are changed on the way, and questions to this side are seen. */
    @SuppressWarnings({"UnusedMethod", "EffectivelyPrivate"}) // called by Forwarding
    private MooncakeExchange altered(
            MooncakeExchange exchange, UnaryOperator<byte[]> answers, Consumer<Question> afterAnswer) {
        return Forwarding.to(MooncakeExchange.class, exchange, new Object() {
            public PeerAddress listen(String host, Consumer<Question> arrived) throws MessageException {
                return exchange.listen(host, question -> {
                    questions.add(question);
                    arrived.accept(Forwarding.to(Question.class, question, new Object() {
                        public byte[] message() {
                            return arriving.apply(question.message());
                        }

                        public void answer(byte[] reply) {
                            question.answer(reply);
                            afterAnswer.accept(question);
                        }
                    }));
                });
            }

            public MooncakeExchange.Asking ask(
                    PeerAddress rank, byte[] message, Duration connect, MooncakeExchange.Asker asker) {
                return exchange.ask(
                        rank, message, connect, Forwarding.to(MooncakeExchange.Asker.class, asker, new Object() {
                            public void answered(byte[] reply) {
                                asker.answered(answers.apply(reply));
                            }
                        }));
            }

            public CompletableFuture<EngineTable> query(PeerAddress registry, Duration timeout) {
                return exchange.query(registry, timeout).thenCombine(registriesAnswer, (table, _) -> table);
            }
        });
    }

    private FakeKvRequest request(String params, int length) {
        return new FakeKvRequest("r" + requests++, FakeKvRequest.counting(1, length), BLOCK)
                .withKvTransferParams(JsonFields.parse("kv_transfer_params", params));
    }

    private JsonFields prefilled(FakeEngine prefill, int length) {
        Running running = prefill.admit(request("{\"do_remote_decode\": true, \"transfer_id\": \"t\"}", length), 0);
        reports.add(prefill.step(new Share(running, length)));
        return prefill.end(running, RequestEnd.LENGTH).orElseThrow();
    }

    /** Parameters of a decode request that need not wait for the prefill request's answer. */
    private static String advertised(FakeEngine prefill, String transferId) {
        return prefill.scheduler()
                .advertisedKvTransferParams()
                .orElseThrow()
                .toJson()
                .put("transfer_id", transferId)
                .toString();
    }

    private void until(List<FakeEngine> engines, BooleanSupplier condition) {
        Deadline deadline = Deadline.after(Ticker.system(), Duration.ofMinutes(2));
        while (!condition.getAsBoolean()) {
            assertThat(deadline.isOver()).isFalse();
            engines.forEach(engine -> reports.add(engine.idleStep()));
            LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(1));
        }
    }

    private double sum(String name) {
        return reports.stream()
                .flatMap(report -> report.measurements().stream())
                .filter(each -> each.name().equals(name))
                .mapToDouble(Measurement::value)
                .sum();
    }

    private long invalid() {
        return reports.stream()
                .mapToLong(report -> report.invalidBlocks().size())
                .sum();
    }

    @Test
    void promptsThatComeAreRight() {
        FakeEngine prefill = engine(KvRole.PRODUCER, "m", 30, reply -> reply);
        FakeEngine decode = engine(KvRole.CONSUMER, "m", 30, reply -> reply);
        JsonFields params = prefilled(prefill, 10);
        Running running = decode.admit(request(params.toJson().toString(), 10), 0);
        assertThat(running.externalTokens()).isEqualTo(10);
        until(List.of(prefill, decode), () -> !running.isLoading());
        assertThat(invalid()).isZero();
        assertThat(decode.holds(running, 0, 10)).isTrue();
        until(List.of(prefill, decode), () -> prefill.usedBlocks() == 0);
        assertThat(sum("vllm:mooncake_bytes_transferred")).isPositive();
        decode.end(running, RequestEnd.LENGTH);
    }

    /** The regions are in the first message, and again after the answer that the prefill rank does not remember them. */
    @Test
    void regionsAreSentToAPrefillRankThatDoesNotRememberThem() {
        FakeEngine prefill = engine(KvRole.PRODUCER, "m", 30, reply -> reply);
        FakeEngine decode = engine(KvRole.CONSUMER, "m", 30, reply -> reply);
        handsOver(prefill, decode);
        handsOver(prefill, decode);
        arriving = MooncakeConnectorTest::withAnotherPort;
        handsOver(prefill, decode);
        handsOver(prefill, decode);
        assertThat(questions)
                .extracting(question ->
                        !XferRequest.decode(question.message()).regions().isEmpty())
                .containsExactly(true, false, false, true, false);
    }

    /** The prefill rank has not seen the layout of the rank that has this one. */
    private static byte[] withAnotherPort(byte[] message) {
        XferRequest sent = XferRequest.decode(message);
        return new XferRequest(
                        sent.hostname(),
                        sent.port() - 1,
                        sent.tpSize(),
                        sent.tpRank(),
                        sent.ppSize(),
                        sent.requests(),
                        sent.regions(),
                        sent.layoutId(),
                        sent.own())
                .encode();
    }

    private void handsOver(FakeEngine prefill, FakeEngine decode) {
        JsonFields params = prefilled(prefill, 10);
        Running running = decode.admit(request(params.toJson().toString(), 10), 0);
        until(List.of(prefill, decode), () -> !running.isLoading() && prefill.usedBlocks() == 0);
        assertThat(invalid()).isZero();
        assertThat(decode.holds(running, 0, 10)).isTrue();
        decode.end(running, RequestEnd.LENGTH);
    }

    /** A {@code layout_id} that it has not seen, and that of another rank. */
    @Test
    void aPrefillRankSaysThatItDoesNotRememberRegions() throws Exception {
        FakeEngine prefill = engine(KvRole.PRODUCER, "m", 0.05, reply -> reply);
        List<XferReply> replies = new CopyOnWriteArrayList<>();
        List<MooncakeRegion> regions = MooncakeRegion.of(prefill.cache());
        try (MooncakeExchange vllm = new SystemExchange(PeerAccess.everyone(), new SystemRuntime().background())) {
            for (byte[] question : List.of(
                    question(1, List.of(), 7),
                    question(1, regions, 7),
                    question(2, List.of(), 7),
                    question(1, List.of(), 7))) {
                int before = replies.size();
                try (MooncakeExchange.Asking _ =
                        vllm.ask(rank(vllm, prefill), question, Duration.ofSeconds(60), new Replies(replies))) {
                    until(List.of(prefill), () -> replies.size() > before);
                }
            }
        }
        assertThat(replies)
                .extracting(XferReply::status)
                .containsExactly(Status.LAYOUT_MISS, Status.FINISH, Status.LAYOUT_MISS, Status.FINISH);
        assertThat(replies).extracting(XferReply::layoutId).containsExactly(0L, 7L, 0L, 7L);
    }

    /** Nothing takes questions while a step of the model holds the rank's thread. */
    @Test
    void questionsThatWaitBeyondABoundAreRefusedAtOnce() throws Exception {
        FakeEngine engine = engine(KvRole.PRODUCER, "m", 30, reply -> reply);
        KvTransferConfig config =
                KvTransferConfig.builder("MooncakeConnector", KvRole.PRODUCER).build();
        MooncakeSettings settings = MooncakeSettings.of(config, Map.of());
        KvLayout layout = engine.cache().layout();
        ConnectorContext context =
                new ConnectorContext(config, new ModelFingerprint("fake", "m"), layout, Ticker.system());
        try (TransferAgent agent = MooncakeConnector.tcp(config, settings)) {
            PromptSender sender = new PromptSender(new LocalRank(
                    context,
                    settings,
                    new SystemRuntime(),
                    Rank.FIRST,
                    engine.cache(),
                    agent,
                    new TransferStats("vllm:mooncake", "", false, 0)));
            List<XferReply> replies = new ArrayList<>();
            Question question = asked(question(1, MooncakeRegion.of(engine.cache()), 7), replies);
            for (int each = 0; each < 10_000; each++) {
                sender.arrived(question);
            }
            assertThat(replies).isEmpty();
            sender.arrived(question);
            assertThat(replies).extracting(XferReply::error).containsExactly(Optional.of("too many requests wait"));
            sender.advance(0);
            sender.arrived(question);
            assertThat(replies).as("after the thread has taken the others").hasSize(1);
        }
    }

    private static Question asked(byte[] message, List<XferReply> replies) {
        return new Question() {
            @Override
            public byte[] message() {
                return message;
            }

            @Override
            public void answer(byte[] reply) {
                replies.add(XferReply.decode(reply));
            }

            @Override
            public boolean isOver() {
                return false;
            }
        };
    }

    private record Replies(List<XferReply> replies) implements MooncakeExchange.Asker {
        @Override
        public void answered(byte[] reply) {
            replies.add(XferReply.decode(reply));
        }

        @Override
        public void ended(MooncakeExchange.Ending how, String why) {}
    }

    /** The question of a vLLM rank. */
    private static byte[] question(int port, List<MooncakeRegion> regions, long layoutId) {
        Map<String, Wanted> wanted = Map.of("r", new Wanted("t", List.of(new int[] {0, 1, 2})));
        return new XferRequest(HOST, port, 1, 0, 1, wanted, regions, layoutId, Optional.empty()).encode();
    }

    private static PeerAddress registry(FakeEngine prefill) {
        String address = prefill.scheduler()
                .advertisedKvTransferParams()
                .flatMap(params -> params.string("remote_bootstrap_addr"))
                .orElseThrow();
        return PeerAddress.parse("address", address.substring("http://".length()));
    }

    private static PeerAddress rank(MooncakeExchange exchange, FakeEngine prefill) throws Exception {
        return exchange
                .query(registry(prefill), Duration.ofSeconds(60))
                .get(60, TimeUnit.SECONDS)
                .engines()
                .values()
                .stream()
                .flatMap(engine -> engine.workers().values().stream())
                .flatMap(stage -> stage.values().stream())
                .findFirst()
                .orElseThrow();
    }

    /** An older vLLM rank answers about a prompt that has expired. */
    @Test
    void aRequestThatTheLastAnswerDoesNotMentionFails() {
        FakeEngine prefill = engine(KvRole.PRODUCER, "m", 600, reply -> reply);
        FakeEngine decode = engine(
                KvRole.CONSUMER,
                "m",
                600,
                _ -> XferReply.of(Status.FINISH, "expired").encode());
        JsonFields params = prefilled(prefill, 10);
        Running running = decode.admit(request(params.toJson().toString(), 10), 0);
        until(List.of(prefill, decode), () -> !running.isLoading());
        assertThat(invalid()).isEqualTo(3);
        assertThat(sum("vllm:mooncake_num_failed_recvs")).isEqualTo(1);
        decode.end(running, RequestEnd.ERROR);
    }

    /** The decode rank ends its connection as soon as it has the answer, which may be at once. */
    @Test
    void blocksOfAPromptComeBackHoweverSoonItsReaderEndsTheConnection() {
        List<FakeEngine> decode = new ArrayList<>();
        FakeEngine prefill =
                engine(KvRole.PRODUCER, "m", 600, reply -> reply, question -> until(decode, question::isOver));
        decode.add(engine(KvRole.CONSUMER, "m", 600, reply -> reply));
        JsonFields params = prefilled(prefill, 10);
        Running running = decode.getFirst().admit(request(params.toJson().toString(), 10), 0);
        until(List.of(prefill, decode.getFirst()), () -> !running.isLoading() && prefill.usedBlocks() == 0);
        assertThat(invalid()).isZero();
        decode.getFirst().end(running, RequestEnd.LENGTH);
    }

    /** By {@code abort_request_timeout} it would take ten minutes. A vLLM rank does not say that it has stopped to wait. */
    @Test
    void blocksComeBackWhenTheOneThatAskedForThemIsGone() throws Exception {
        FakeEngine prefill = engine(KvRole.PRODUCER, "m", 600, reply -> reply);
        Running running = prefill.admit(request("{\"do_remote_decode\": true, \"transfer_id\": \"t\"}", 10), 0);
        try (MooncakeExchange vllm = new SystemExchange(PeerAccess.everyone(), new SystemRuntime().background())) {
            byte[] question = question(1, MooncakeRegion.of(prefill.cache()), 0);
            try (MooncakeExchange.Asking _ =
                    vllm.ask(rank(vllm, prefill), question, Duration.ofSeconds(60), new Replies(new ArrayList<>()))) {
                until(List.of(prefill), () -> !questions.isEmpty());
            }
        }
        until(List.of(), () -> questions.getFirst().isOver());
        reports.add(prefill.step(new Share(running, 10)));
        assertThat(prefill.end(running, RequestEnd.LENGTH)).isPresent();
        until(List.of(prefill), () -> prefill.usedBlocks() == 0);
    }

    @Test
    void blocksWithoutThePrefillInstancesChecksumsAreInvalid() {
        FakeEngine prefill = engine(KvRole.PRODUCER, "m", 30, reply -> reply);
        FakeEngine decode = engine(KvRole.CONSUMER, "m", 30, MooncakeConnectorTest::withAnotherChecksum);
        JsonFields params = prefilled(prefill, 10);
        Running running = decode.admit(request(params.toJson().toString(), 10), 0);
        until(List.of(prefill, decode), () -> !running.isLoading());
        assertThat(invalid()).isEqualTo(1);
        assertThat(sum("baton:kv_handoff_rejected")).isEqualTo(1);
        decode.end(running, RequestEnd.ERROR);
    }

    private static byte[] withAnotherChecksum(byte[] message) {
        XferReply reply = XferReply.decode(message);
        Optional<Written> changed = reply.written().map(written -> {
            int[] checksums = written.checksums().clone();
            checksums[1]++;
            return new Written(written.prompt(), written.regions(), written.offset(), written.bytes(), checksums);
        });
        return new XferReply(reply.status(), reply.ok(), reply.failed(), reply.error(), reply.layoutId(), changed)
                .encode();
    }

    @Test
    void anInstanceWithAnotherModelIsRefused() {
        FakeEngine prefill = engine(KvRole.PRODUCER, "m", 30, reply -> reply);
        List<String> errors = new ArrayList<>();
        FakeEngine decode = engine(KvRole.CONSUMER, "other", 30, reply -> {
            XferReply.decode(reply).error().ifPresent(errors::add);
            return reply;
        });
        JsonFields params = prefilled(prefill, 10);
        Running running = decode.admit(request(params.toJson().toString(), 10), 0);
        until(List.of(prefill, decode), () -> !running.isLoading());
        assertThat(invalid()).isEqualTo(3);
        assertThat(sum("baton:mooncake_refused_requests")).isEqualTo(1);
        assertThat(errors).singleElement().asString().contains("model=m").contains("model=other");
        decode.end(running, RequestEnd.ERROR);
    }

    /** By the time limits alone it would take the ten minutes of {@code abort_request_timeout}. */
    @Test
    void blocksOfALoadThatIsNotWantedComeBackWhenPrefillSaysSo() {
        FakeEngine prefill = engine(KvRole.PRODUCER, "m", 600, reply -> reply);
        FakeEngine decode = engine(KvRole.CONSUMER, "m", 600, reply -> reply);
        Running running = decode.admit(request(advertised(prefill, "never"), 10), 0);
        reports.add(decode.idleStep());
        decode.end(running, RequestEnd.ABORTED);
        until(List.of(prefill, decode), running::isFreed);
    }

    /** By the time limits alone prefill would keep them for the ten minutes of {@code abort_request_timeout}. */
    @Test
    void prefillFreesBlocksOfALoadThatIsCancelledBeforeTheRegistryAnswers() {
        access = Map.of("load_timeout", 60);
        FakeEngine prefill = engine(KvRole.PRODUCER, "m", 600, reply -> reply);
        FakeEngine decode = engine(KvRole.CONSUMER, "m", 600, reply -> reply);
        JsonFields params = prefilled(prefill, 10);
        registriesAnswer = new CompletableFuture<>();
        Running running = decode.admit(request(params.toJson().toString(), 10), 0);
        reports.add(decode.idleStep());
        decode.end(running, RequestEnd.ABORTED);
        until(List.of(prefill, decode), running::isFreed);
        assertThat(questions).isEmpty();
        assertThat(registriesAnswer.complete(null)).isTrue();
        until(List.of(prefill, decode), () -> prefill.usedBlocks() == 0 && !decode.hasPendingWork());
        assertThat(questions).hasSize(1);
    }

    /** The rank takes questions and does not answer. */
    @Test
    void aSilentPrefillRankIsGivenUpByItsTimeLimits() throws Exception {
        try (PeerChannel channel = new ZeroMqPeerChannel();
                MooncakeExchange exchange =
                        new SystemExchange(PeerAccess.everyone(), new SystemRuntime().background());
                SideChannel.Listener listener = channel.listen(HOST, 0, _ -> _ -> {})) {
            MooncakeExchange.Registry registry = exchange.serve(HOST, 0);
            registry.register(new RankRegistration("silent", 0, 0, 0, new PeerAddress(HOST, listener.port())));
            FakeEngine decode = engine(KvRole.CONSUMER, "m", 0.5, reply -> reply);
            Running running = decode.admit(
                    request(
                            "{\"do_remote_prefill\": true, \"transfer_id\": \"t\", \"remote_engine_id\": \"silent\", \"remote_bootstrap_addr\": \"http://127.0.0.1:"
                                    + registry.port() + "\"}",
                            10),
                    0);
            until(List.of(decode), () -> !running.isLoading());
            assertThat(sum("baton:mooncake_silent_peers")).isEqualTo(1);
            assertThat(invalid()).isEqualTo(3);
            decode.end(running, RequestEnd.ERROR);
        }
    }

    // Instances with a secret

    private Map<String, Object> secret(String text, String encryption) throws IOException {
        return Map.of(
                "kv_auth_secret_file",
                Files.writeString(directory.resolve(text), text.repeat(8)),
                "kv_encryption",
                encryption,
                "handshake_timeout",
                10,
                "transfer_timeout",
                10,
                "load_timeout",
                30);
    }

    private MooncakeExchange exchange(Map<String, Object> settings) {
        KvTransferConfig.Builder config = KvTransferConfig.builder("MooncakeConnector", KvRole.CONSUMER);
        settings.forEach(config::extra);
        MooncakeExchange exchange = new SystemExchange(
                MooncakeSettings.of(config.build(), Map.of()).access(), new SystemRuntime().background());
        opened.add(exchange);
        return exchange;
    }

    private DamagingProxy proxy(String name, int port, Damages damages, ByteArrayOutputStream captured)
            throws IOException {
        DamagingProxy proxy = new DamagingProxy(
                name, 0, new InetSocketAddress(InetAddress.getLoopbackAddress(), port), damages, (_, bytes) -> {
                    synchronized (captured) {
                        captured.writeBytes(bytes);
                    }
                });
        opened.add(proxy);
        return proxy;
    }

    /** Leads each plane between a prefill engine and the last engine through a proxy. Returns the address of a registry of its own. */
    private String throughProxies(FakeEngine prefill, Damages damages, ByteArrayOutputStream captured)
            throws Exception {
        MooncakeExchange sealed = exchange(access);
        MooncakeExchange.Registry registry = sealed.serve(HOST, 0);
        registry.register(new RankRegistration(
                KvRole.PRODUCER.configName(),
                0,
                0,
                0,
                new PeerAddress(
                        HOST,
                        proxy("rank", rank(sealed, prefill).port(), damages, captured)
                                .port())));
        int agentPort = agents.getLast().listening().getPort();
        int agentProxy = proxy("agent", agentPort, damages, captured).port();
        arriving = message -> withAgentAt(message, agentPort, agentProxy);
        return "http://" + HOST + ":"
                + proxy("registry", registry.port(), damages, captured).port();
    }

    /** Each plane passes a proxy: no plain byte is captured, and a flipped one ends the hand-over. */
    @Test
    void everyPlaneIsSealedAndAFlippedByteEndsALoad() throws Exception {
        access = secret("one", "required");
        FakeEngine prefill = engine(KvRole.PRODUCER, "m", 30, reply -> reply);
        FakeEngine decode = engine(KvRole.CONSUMER, "m", 30, reply -> reply);
        Damages damages = new Damages();
        ByteArrayOutputStream captured = new ByteArrayOutputStream();
        String registry = throughProxies(prefill, damages, captured);
        // The rank is asked first by the next load, and the agent is connected to then.
        for (String lane : List.of("rank to the server", "agent to the server", "")) {
            damages.arm(new Damages.Damage(Damages.Kind.FLIP, lane, 600, 1));
            JsonFields params = prefilled(prefill, 10);
            Running running = decode.admit(
                    request(
                            params.toJson()
                                    .put("remote_bootstrap_addr", registry)
                                    .toString(),
                            10),
                    0);
            until(List.of(prefill, decode), () -> !running.isLoading() && prefill.usedBlocks() == 0);
            assertThat(damages.disarm())
                    .as("withdrawn before it happened: %s", lane)
                    .isEqualTo(lane.isEmpty());
            assertThat(decode.holds(running, 0, 10)).as(lane).isEqualTo(lane.isEmpty());
            decode.end(running, lane.isEmpty() ? RequestEnd.LENGTH : RequestEnd.ERROR);
        }
        assertThat(invalid()).isEqualTo(6);
        assertThat(sum("baton:kv_refused_peers")).isPositive();
        synchronized (captured) {
            assertThat(captured.toString(StandardCharsets.ISO_8859_1))
                    .contains("baton-sealed/")
                    .doesNotContain("remote_hostname", "engine_id", "version=1");
        }
    }

    private static byte[] withAgentAt(byte[] message, int port, int proxy) {
        ByteBuffer address = ByteBuffer.allocate(Integer.BYTES).putInt(0, port);
        ByteBuffer all = ByteBuffer.wrap(message);
        for (int i = 0; i + Integer.BYTES <= message.length; i++) {
            if (all.slice(i, Integer.BYTES).equals(address)) {
                all.putInt(i, proxy);
            }
        }
        return message;
    }

    /** One that speaks Mooncake's protocols, one with another secret, and one that does not encrypt blocks. */
    @Test
    void peersWithOtherSettingsAreRefusedWithAnErrorThatNamesThem() throws Exception {
        Map<String, Object> required = secret("one", "required");
        access = required;
        FakeEngine prefill = engine(KvRole.PRODUCER, "m", 30, reply -> reply);
        PeerAddress registry = registry(prefill);
        PeerAddress rank = rank(exchange(required), prefill);
        MooncakeExchange plainRegistry = exchange(Map.of());
        PeerAddress plain = new PeerAddress(HOST, plainRegistry.serve(HOST, 0).port());
        assertThatThrownBy(() ->
                        exchange(required).query(plain, Duration.ofMillis(100)).get(60, TimeUnit.SECONDS))
                .hasMessageContaining("is it a registry with the same kv_auth_secret_file?");
        List<String> errors = new CopyOnWriteArrayList<>();
        for (Map<String, Object> other :
                List.of(Map.<String, Object>of(), secret("two", "required"), secret("one", "off"))) {
            boolean known = other.containsValue("off");
            if (!known) {
                MooncakeExchange stranger = exchange(other);
                assertThatThrownBy(() ->
                                stranger.query(registry, Duration.ofSeconds(5)).get(60, TimeUnit.SECONDS))
                        .isInstanceOf(ExecutionException.class);
                CompletableFuture<MooncakeExchange.Ending> ended = new CompletableFuture<>();
                opened.add(stranger.ask(
                        rank, question(1, List.of(), 7), Duration.ofSeconds(5), new MooncakeExchange.Asker() {
                            @Override
                            public void answered(byte[] reply) {
                                errors.add("a stranger was answered");
                            }

                            @Override
                            public void ended(MooncakeExchange.Ending how, String why) {
                                ended.complete(how);
                            }
                        }));
                assertThat(ended.get(60, TimeUnit.SECONDS)).isEqualTo(MooncakeExchange.Ending.UNREACHED);
            }
            access = other;
            FakeEngine decode = engine(KvRole.CONSUMER, "m", 30, reply -> {
                XferReply.decode(reply).error().ifPresent(errors::add);
                return reply;
            });
            JsonFields params = prefilled(prefill, 10);
            Running running = decode.admit(request(params.toJson().toString(), 10), 0);
            until(List.of(prefill, decode), () -> !running.isLoading());
            decode.end(running, RequestEnd.ERROR);
        }
        assertThat(invalid()).isEqualTo(9);
        assertThat(questions).hasSize(1);
        assertThat(errors).singleElement().asString().contains("kv_auth_secret_file and kv_encryption");
        assertThat(prefill.scheduler().takeMeasurements())
                .as("of the registry")
                .extracting(Measurement::name)
                .containsExactly("baton:kv_refused_peers");
        until(List.of(prefill), () -> sum("baton:kv_refused_peers") > 0);
    }

    /** The permit ends with its load; without a permit no peer writes. */
    @Test
    void aPeerWithTheSecretWritesOnlyAwaitedBlocks() throws Exception {
        access = secret("one", "off");
        FakeEngine prefill = engine(KvRole.PRODUCER, "m", 30, reply -> reply);
        FakeEngine decode = engine(KvRole.CONSUMER, "m", 30, reply -> reply);
        handsOver(prefill, decode);
        assertNoWriteIsPermitted(decode);
    }

    /** Writes without a permit, with that of the first question, and with a made-up one are refused. */
    private void assertNoWriteIsPermitted(FakeEngine decode) throws TransferException {
        XferRequest.Own own =
                XferRequest.decode(questions.getFirst().message()).own().orElseThrow();
        assertThat(own.permit()).isNotZero();
        KvTransferConfig.Builder config = KvTransferConfig.builder("MooncakeConnector", KvRole.PRODUCER);
        access.forEach(config::extra);
        try (EmbeddedAgent insider =
                        agent(MooncakeSettings.of(config.build(), Map.of()).access());
                Arena arena = Arena.ofShared()) {
            MemorySegment bytes = arena.allocate(64);
            TransferAgent.Registration _ = insider.register(new Region(bytes, Optional.empty()));
            TransferAgent.Peer peer = insider.connect(own.agent(), Duration.ofSeconds(60));
            List<Range> ranges =
                    List.of(new Range(bytes.address(), decode.cache().memory().address(), 64));
            for (long permit : new long[] {0, own.permit(), 1}) {
                Transfer write = insider.write(peer, permit, ranges, Optional.empty(), Duration.ofSeconds(60));
                until(List.of(), () -> !(write.state() instanceof Transfer.State.UnderWay));
                assertThat(write.state())
                        .isInstanceOfSatisfying(
                                Transfer.State.Failed.class,
                                failed -> assertThat(failed.cause()).isEqualTo(Transfer.Cause.NOT_PERMITTED));
            }
        }
    }

    /** The prefill rank's thread takes neither the question nor the message to stop. Its time limits are ten minutes. */
    @Test
    void blocksOfALoadThatIsNotWantedAreFreeBeforePrefillAnswers() throws Exception {
        access = secret("one", "off");
        FakeEngine prefill = engine(KvRole.PRODUCER, "m", 600, reply -> reply);
        FakeEngine decode = engine(KvRole.CONSUMER, "m", 600, reply -> reply);
        Running running = decode.admit(request(advertised(prefill, "t"), 10), 0);
        until(List.of(decode), () -> questions.size() == 1);
        decode.end(running, RequestEnd.ABORTED);
        until(List.of(decode), running::isFreed);
        assertNoWriteIsPermitted(decode);
        until(List.of(decode), () -> questions.size() == 2);
        assertThat(decode.hasPendingWork()).as("the rank has not stopped").isTrue();
        JsonFields unusedParams = prefilled(prefill, 10);
        until(List.of(prefill, decode), () -> prefill.usedBlocks() == 0 && !decode.hasPendingWork());
        assertThat(sum("baton:mooncake_silent_peers")).isZero();
    }

    /** Connections to the prefill rank are accepted and then end, as by a relay without its server. Its time limits are ten minutes. */
    @Test
    void blocksAreFreeOnceThePeersConnectionsEndInTheMiddleOfATransfer() throws Exception {
        access = secret("one", "off");
        FakeEngine prefill = engine(KvRole.PRODUCER, "m", 600, reply -> reply);
        FakeEngine decode = engine(KvRole.CONSUMER, "m", 600, reply -> reply);
        Damages damages = new Damages();
        String registry = throughProxies(prefill, damages, new ByteArrayOutputStream());
        // Without these bytes the write waits.
        damages.arm(new Damages.Damage(Damages.Kind.DROP, "agent to the server", 16 << 10, 64));
        JsonFields params = prefilled(prefill, 200);
        Running running = decode.admit(
                request(params.toJson().put("remote_bootstrap_addr", registry).toString(), 200), 0);
        until(List.of(prefill, decode), () -> damages.count() == 1);
        assertThat(running.isLoading()).isTrue();
        prefill.closeConnector();
        until(List.of(decode), () -> !running.isLoading());
        assertThat(invalid()).isEqualTo(50);
        decode.end(running, RequestEnd.ERROR);
        until(List.of(decode), () -> running.isFreed() && !decode.hasPendingWork());
        assertThat(sum("baton:mooncake_silent_peers")).isZero();
    }
}
