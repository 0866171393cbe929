package baton.engine.sim;

import baton.engine.EngineConfig;
import baton.engine.EngineListener;
import baton.engine.EngineListener.RequestStats;
import baton.engine.EngineListener.StepStats;
import baton.engine.FinishReason;
import baton.engine.SamplingParams;
import baton.engine.SchedulingPolicy;
import baton.engine.core.EngineCore;
import baton.engine.core.OracleFormat;
import baton.engine.core.OracleRunner;
import baton.engine.core.Request;
import baton.engine.core.RequestListener;
import baton.engine.core.SequenceOptions;
import baton.engine.model.ModelRanks;
import baton.engine.sampling.SequenceSampler.Sampled;
import baton.grammar.automaton.TokenGrammar;
import baton.grammar.automaton.TokenMatcher;
import baton.kv.BlockHasher;
import baton.kv.JsonFields;
import baton.kv.KvGroups;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import baton.kv.connector.Measurement;
import baton.testkit.SimNetwork;
import baton.testkit.SimNetwork.Endpoint;
import baton.testkit.SimNetwork.Faults;
import baton.testkit.VirtualTicker;
import java.lang.foreign.Arena;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.PriorityQueue;
import java.util.Set;
import java.util.SplittableRandom;
import java.util.TreeMap;
import java.util.function.BiFunction;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/*
 * A world is drawn from its seed: instances, their sizes and settings, the faults, and the clients. It then goes from event to
 * event under its own clock: an instance steps, a message arrives, a client asks or leaves, an instance dies and comes back,
 * changes its role or drains, so that its streams continue elsewhere.
 *
 * After every step of every instance
 *
 *   the core's own invariants hold: reference counts, queues, no block both free and in use,
 *   no block was handed out, written or computed from while a transfer used it (InvariantChecker),
 *   no transfer has taken longer than it may.
 *
 * At the end every request has ended, every whole answer is the oracle's and every part of one its beginning, and no instance
 * has a block in use. A request may end with an error only where the world has a reason for it. Then the faults end, and instances between
 * which connections broke hand prompts over to each other as if nothing had happened.
 */

/** A cluster of instances with their clients, from one seed, in one thread. */
final class SimCluster implements AutoCloseable {
    private static final long MILLI = 1_000_000;
    /** The time by which every world is over. */
    private static final long BOUND = 60_000 * MILLI;

    private static final int MOST_ATTEMPTS = 4;
    /** Tokens that no cache has all of, and that are few enough to be computed one by one within a connector's deadlines. */
    private static final int PROBE_LENGTH = 14;

    /** The prefix of the names of injected faults. */
    static final String FAULT = "fault: ";

    /** {@code kv_transfer_params} of a prefill request. */
    private static final JsonFields KEEP = JsonFields.parse("kv_transfer_params", "{\"do_remote_decode\":true}");

    private static final String EXTERNAL_HITS = "external hits";

    /** The counts of a world's parts and events, by name. */
    private final Map<String, Long> happened = new TreeMap<>();

    private record Event(long nanos, long order, Runnable action) {}

    private final SplittableRandom random;
    private final VirtualTicker ticker = new VirtualTicker();
    private final Arena arena = Arena.ofConfined();
    private final PriorityQueue<Event> events =
            new PriorityQueue<>(Comparator.comparingLong(Event::nanos).thenComparingLong(Event::order));
    private final SimNetwork network;
    private final SimNode.SimConnectors connectors;
    private final List<Instance> prefill = new ArrayList<>();
    private final List<Instance> decode = new ArrayList<>();
    private final TokenGrammar brackets = OracleFormat.brackets();
    private final List<int[]> families;
    private final int blockSize;
    private final int maxLength;
    private final KvGroups groups;
    private final LoadFailurePolicy loadFailurePolicy;
    private final double modelFaults;
    private final double connectorFaults;
    private boolean calm;
    private final int deaths;
    private long order;
    private int legs;
    private int pairs;
    private int open;
    private long trace;

    /** The world as its connectors need it. */
    record Site(SplittableRandom random, SimNetwork network, Arena arena, int blockSize, VirtualTicker ticker) {}

    /**
     * @param connectors chooses the connectors
     */
    SimCluster(long seed, BiFunction<Site, Long, SimNode.SimConnectors> connectors) {
        random = new SplittableRandom(seed);
        ticker.advance(Duration.ofSeconds(1));
        boolean faultless = random.nextInt(4) == 0;
        network = new SimNetwork(
                ticker,
                random.split(),
                faultless
                        ? Faults.NONE
                        : new Faults(odds(), odds(), odds(), odds(), odds(), odds() / 2, odds(), odds() * 3),
                Duration.ofNanos(100_000),
                Duration.ofNanos(100_000 + random.nextLong(10 * MILLI)));
        blockSize = new int[] {1, 2, 3, 4, 8}[random.nextInt(5)];
        maxLength = 16 + random.nextInt(40);
        loadFailurePolicy = random.nextInt(4) == 0 ? LoadFailurePolicy.FAIL : LoadFailurePolicy.RECOMPUTE;
        modelFaults = !faultless && random.nextInt(6) == 0 ? 0.02 : 0;
        connectorFaults = !faultless && random.nextInt(8) == 0 ? 0.002 : 0;
        this.connectors = connectors.apply(new Site(random.split(), network, arena, blockSize, ticker), seed);
        groups = this.connectors.takesGroups() && random.nextBoolean() ? windows() : KvGroups.one(OracleRunner.LAYERS);
        families = IntStream.range(0, 1 + random.nextInt(3))
                .mapToObj(_ -> tokens(maxLength))
                .toList();
        for (int i = 2 + random.nextInt(2); i > 0; i--) {
            prefill.add(new Instance("p" + i));
        }
        for (int i = 2 + random.nextInt(2); i > 0; i--) {
            decode.add(new Instance("d" + i));
        }
        deaths = !faultless && random.nextInt(3) == 0 ? 1 + random.nextInt(3) : 0;
        for (int i = 0; i < deaths; i++) {
            List<Instance> side = random.nextBoolean() ? prefill : decode;
            Instance victim = side.get(random.nextInt(side.size()));
            at(random.nextLong(150 * MILLI), victim::die);
        }
        for (int i = this.connectors.isSymmetric() ? random.nextInt(4) : 0; i > 0; i--) {
            at(random.nextLong(150 * MILLI), random.nextBoolean() ? this::changeRole : this::drain);
        }
        long span = random.nextLong(MILLI, 120 * MILLI);
        for (int i = 4 + random.nextInt(8); i > 0; i--) {
            Client client = new Client(i);
            open++;
            at(random.nextLong(span), client::ask);
        }
    }

    /** Lives through it. */
    Map<String, Long> run() {
        pass();
        calm = true;
        network.calm();
        for (SimNode.Pair pair : connectors.calm()) {
            if (named(pair.prefill()).isWithoutConnector()
                    || named(pair.decode()).isWithoutConnector()) {
                continue;
            }
            for (boolean atOnce : new boolean[] {false, true}) {
                Probe probe = new Probe(named(pair.prefill()), named(pair.decode()), atOnce);
                long before = happened.getOrDefault(EXTERNAL_HITS, 0L);
                open++;
                // When all that was late has come.
                at(1000 * MILLI, probe::ask);
                pass();
                if (happened.getOrDefault(EXTERNAL_HITS, 0L) == before) {
                    throw new AssertionError(
                            "after a broken connection " + pair + " hand nothing over, at once=" + atOnce);
                }
                count("handed over after a broken connection", 1);
            }
        }
        network.injected().forEach((fault, times) -> count(FAULT + fault, times));
        connectors.injected().forEach((fault, times) -> count(FAULT + fault, times));
        return happened;
    }

    private Instance named(String name) {
        return instances().stream()
                .filter(instance -> instance.name.equals(name))
                .findFirst()
                .orElseThrow();
    }

    private void pass() {
        while (open > 0 || !events.isEmpty()) {
            Event event = events.poll();
            if (event == null) {
                throw new AssertionError(open + " clients wait, and nothing will happen");
            }
            if (event.nanos() > BOUND) {
                throw new AssertionError("not over in time: " + open + " clients wait");
            }
            ticker.advance(Duration.ofNanos(Math.max(0, event.nanos() - ticker.nanos())));
            network.poll();
            event.action().run();
        }
        for (Instance instance : instances()) {
            instance.checkOver();
        }
    }

    /** Equal if two worlds went the same way. */
    long trace() {
        return trace;
    }

    @Override
    public void close() {
        for (Instance instance : instances()) {
            instance.shutDown();
        }
        connectors.close();
        arena.close();
    }

    /** An instance of the role that has more than one gets the other role; requests that it has go on. */
    private void changeRole() {
        boolean ofPrefill = random.nextBoolean();
        List<Instance> from = ofPrefill ? prefill : decode;
        if (from.size() > 1) {
            Instance changed = from.remove(random.nextInt(from.size()));
            (ofPrefill ? decode : prefill).add(changed);
            count("role changes", 1);
        }
    }

    /** For a while a decode instance gets no requests, and the streams that it has continue elsewhere. */
    private void drain() {
        Instance leaving = decode.get(random.nextInt(decode.size()));
        Incarnation now = leaving.life;
        if (now != null) {
            count("drains", 1);
            leaving.draining = true;
            List.copyOf(now.legs().values()).forEach(leg -> leg.client.move(leg));
            at(random.nextLong(30 * MILLI), () -> leaving.draining = false);
        }
    }

    private List<Instance> instances() {
        List<Instance> all = new ArrayList<>(prefill);
        all.addAll(decode);
        return all;
    }

    /** Groups of two to four layers, of which at least one has a window. */
    private KvGroups windows() {
        List<OptionalInt> windows = new ArrayList<>();
        // With a window of one position in all layers no token attends to another, and nothing is handed over.
        int window = 2 + random.nextInt(23);
        for (int i = random.nextInt(1, 4); i > 0; i--) {
            windows.add(random.nextInt(3) == 0 ? OptionalInt.empty() : OptionalInt.of(window));
        }
        windows.add(random.nextInt(windows.size() + 1), OptionalInt.of(window));
        return KvGroups.of(windows);
    }

    private double odds() {
        return random.nextInt(3) == 0 ? random.nextDouble() * 0.15 : 0;
    }

    private int[] tokens(int length) {
        return random.ints(length, 1, OracleRunner.VOCABULARY).toArray();
    }

    private void at(long afterNanos, Runnable action) {
        events.add(new Event(ticker.nanos() + afterNanos, order++, action));
    }

    private void count(String what, long times) {
        if (times > 0) {
            happened.merge(what, times, Long::sum);
        }
    }

    private void trace(long what) {
        trace = (trace ^ what) * 0x9E3779B97F4A7C15L;
        trace ^= trace >>> 32;
    }

    /** One life of an instance. */
    private record Incarnation(EngineCore core, InvariantChecker checker, SimNode node, Map<String, Leg> legs) {}

    private final class Instance implements EngineListener {
        private final String name;
        private final int blocks =
                groups.blocksFor(maxLength, maxLength, blockSize) * (1 + random.nextInt(3)) + random.nextInt(4);
        private final boolean device = random.nextInt(3) == 0;
        /** Connectors that can reach its pool directly do. */
        private final boolean direct = device && random.nextBoolean();

        private final EngineConfig config;
        private final BlockHasher hasher;
        private long epoch;
        private @Nullable Incarnation life;
        private boolean stepping;
        private boolean draining;
        /** Its connector has asked for a step. */
        private boolean woken;

        private Instance(String name) {
            this.name = name;
            int seqs = 1 + random.nextInt(6);
            KvTransferConfig.Builder transfer = KvTransferConfig.builder("Simulated", KvRole.BOTH)
                    .engineId(name)
                    .loadFailurePolicy(loadFailurePolicy)
                    .bufferDevice(direct ? "cuda" : "cpu");
            if (connectors.port(name) > 0) {
                transfer.port(connectors.port(name));
            }
            connectors.settings(name).forEach(transfer::extra);
            this.config = EngineConfig.of(Path.of("oracle"))
                    .blockSize(blockSize)
                    .maxNumSeqs(seqs)
                    .maxNumBatchedTokens(seqs + random.nextInt(32))
                    .schedulingPolicy(random.nextBoolean() ? SchedulingPolicy.FCFS : SchedulingPolicy.PRIORITY)
                    .longPrefillTokenThreshold(random.nextInt(3) == 0 ? 1 + random.nextInt(8) : 0)
                    .enablePrefixCaching(random.nextInt(6) > 0)
                    .kvTransfer(transfer.build())
                    .build();
            this.hasher = new BlockHasher(blockSize);
            begin();
        }

        private Incarnation current() {
            Incarnation now = life;
            if (now == null) {
                throw new IllegalStateException(name + " is dead");
            }
            return now;
        }

        private void begin() {
            OracleRunner runner = new OracleRunner(connectors.arena(), blocks, blockSize, device, groups);
            count("lives with layers that have windows", groups.hasWindows() ? 1 : 0);
            count("lives with a device's pool", device ? 1 : 0);
            count("lives with a pool that is reached directly", direct ? 1 : 0);
            count(
                    "lives with a staging pool and layers that have windows",
                    groups.hasWindows() && device && !direct ? 1 : 0);
            Endpoint endpoint = network.open(name, ++epoch, runner.pool());
            SimNode node = new SimNode(endpoint, ticker);
            InvariantChecker checker = new InvariantChecker(
                    node,
                    network,
                    connectors.connect(node),
                    runner,
                    this::modelFails,
                    this::connectorFails,
                    connectors.longestTransfer().toNanos());
            EngineCore core = new EngineCore(
                    config,
                    ModelRanks.of(checker.runner()),
                    Set.of(0),
                    Optional.of(checker.connector()),
                    this,
                    ticker,
                    this::wake);
            life = new Incarnation(core, checker, node, new LinkedHashMap<>());
        }

        private boolean modelFails() {
            boolean fails = !calm && modelFaults > 0 && random.nextDouble() < modelFaults;
            count(FAULT + "model fails", fails ? 1 : 0);
            return fails;
        }

        private boolean connectorFails() {
            boolean fails = !calm && connectorFaults > 0 && random.nextDouble() < connectorFaults;
            count(FAULT + "connector fails", fails ? 1 : 0);
            return fails;
        }

        /** Whether it has no connector, until it begins a new life. */
        private boolean isWithoutConnector() {
            return current().checker().hasThrown();
        }

        private void die() {
            Incarnation last = life;
            if (last == null) {
                return;
            }
            count(FAULT + "instance dies", 1);
            shutDown();
            for (Leg leg : last.legs().values()) {
                at(MILLI, () -> leg.client.lost(leg));
            }
            at(random.nextLong(5 * MILLI, 50 * MILLI), this::begin);
        }

        private void shutDown() {
            Incarnation last = life;
            if (last != null) {
                life = null;
                last.node().endpoint().close();
                last.core().close();
            }
        }

        private void submit(Leg leg) {
            Incarnation now = current();
            now.legs().put(leg.id, leg);
            now.core()
                    .add(new Request(
                            leg.id,
                            leg.prompt,
                            maxLength,
                            SamplingParams.builder()
                                    .temperature(0)
                                    .maxTokens(leg.maxTokens)
                                    .ignoreEos(true)
                                    .build(),
                            hasher,
                            leg,
                            SequenceOptions.builder()
                                    .generated(leg.generated)
                                    .format(leg.client.format)
                                    .kvTransferParams(leg.params)
                                    .cacheSalt(leg.client.salt)
                                    .priority(leg.client.priority)
                                    .arrivalNanos(ticker.nanos())
                                    .build()));
            goOn();
        }

        private void abandon(Leg leg) {
            Incarnation now = life;
            if (now != null) {
                count(FAULT + "answer lost", leg.over ? 1 : 0);
                now.core().abort(leg.id);
                // The other leg of two that are asked at once has the blocks' names.
                connectors
                        .longestWithoutReader()
                        .filter(_ -> leg.awaited)
                        .ifPresent(longest -> now.checker().hasNoReader(leg.id, longest.toNanos()));
                now.core().answerLost(leg.id);
                goOn();
            }
        }

        private void wake() {
            woken = true;
            goOn();
        }

        private void goOn() {
            if (!stepping) {
                stepping = true;
                at(10_000, this::step);
            }
        }

        private void step() {
            stepping = false;
            Incarnation now = life;
            if (now == null || (!now.core().hasWork() && !woken)) {
                return;
            }
            woken = false;
            connectors.poll(now.node());
            boolean computed = now.core().step();
            now.core().checkInvariants();
            now.checker().checkDeadlines();
            count("steps", 1);
            trace(ticker.nanos() * 31 + name.hashCode());
            trace(now.core().status(Optional.empty()).usedBlocks());
            stepping = true;
            at(computed ? random.nextLong(MILLI / 5, 2 * MILLI) : random.nextLong(MILLI / 2, 4 * MILLI), this::step);
        }

        private void checkOver() {
            Incarnation now = life;
            if (now != null) {
                now.checker().checkOver();
                int used = now.core().status(Optional.empty()).usedBlocks();
                if (used > 0) {
                    throw new AssertionError(name + " has " + used + " blocks in use at the end");
                }
            }
        }

        @Override
        public void onStep(StepStats stats) {
            count("preemptions", stats.preempted());
            count("prefix cache hits", stats.prefixCacheHits());
            count(EXTERNAL_HITS, stats.externalHits());
            count("external hits of layers with windows", groups.hasWindows() ? stats.externalHits() : 0);
        }

        @Override
        public void onMeasurements(List<Measurement> measurements) {
            measurements.forEach(each -> count(each.name(), (long) each.value()));
            boolean failed = measurements.stream().anyMatch(each -> each.name().equals("baton:kv_connector_failures"));
            if (failed && !isWithoutConnector() && !connectors.hasThrown(name)) {
                current().checker().checkDeadlines();
                throw new AssertionError(name + "'s connector has thrown");
            }
        }
    }

    /** One request to one instance. */
    private final class Leg implements RequestListener {
        private final String id;
        private final Client client;
        private final Instance instance;
        private final int[] prompt;
        /** Output that another instance has made, which this one tells again. */
        private final int[] generated;

        private final int maxTokens;
        private final Optional<JsonFields> params;
        /** False if the client does nothing when it is over. */
        private final boolean awaited;

        private final Optional<TokenMatcher> matcher;
        private final List<Integer> output = new ArrayList<>();
        private boolean over;
        /** Whether the leg was aborted to continue elsewhere. */
        private boolean moves;
        /** The client has the answer. */
        private boolean delivered;

        /** A prefill leg, for one token. */
        private Leg(Client client, Instance instance, int[] prompt) {
            this(client.pair.orElse("r" + legs++), client, instance, prompt, new int[0], 1, Optional.of(KEEP), true);
        }

        private Leg(
                String id,
                Client client,
                Instance instance,
                int[] prompt,
                int[] generated,
                int maxTokens,
                Optional<JsonFields> params,
                boolean awaited) {
            this.id = id;
            this.awaited = awaited;
            this.client = client;
            this.instance = instance;
            this.prompt = prompt;
            this.generated = generated;
            this.maxTokens = maxTokens;
            this.params = params;
            this.matcher = client.format.map(TokenGrammar::matcher);
        }

        private int[] sequence() {
            int[] sequence = Arrays.copyOf(prompt, prompt.length + output.size());
            for (int i = 0; i < output.size(); i++) {
                sequence[prompt.length + i] = output.get(i);
            }
            return sequence;
        }

        @Override
        public Optional<String> onToken(Sampled token, boolean ends) {
            int best = OracleRunner.next(sequence(), groups);
            int right = matcher.map(format -> OracleFormat.next(format, best)).orElse(best);
            if (token.id() != right || over) {
                throw new AssertionError("wrong answer to " + id + " on " + instance.name + ": token " + output.size()
                        + " is " + token.id() + ", not " + right);
            }
            output.add(token.id());
            return Optional.empty();
        }

        @Override
        public void onFinished(
                FinishReason reason,
                Optional<Object> stopReason,
                RequestStats stats,
                Optional<JsonFields> kvTransferParams,
                Optional<String> error) {
            if (over) {
                throw new AssertionError(id + " ends twice");
            }
            over = true;
            instance.current().legs().remove(id);
            trace(reason.name().hashCode() + output.size() * 31L);
            if (!calm && random.nextInt(32) == 0) {
                at(50_000, client::leave);
            }
            at(100_000, () -> client.ended(this, reason, kvTransferParams, error));
        }
    }

    private class Client {
        private final int number;
        private final int priority = random.nextInt(3);
        private final Optional<String> salt = random.nextInt(8) == 0 ? Optional.of("s") : Optional.empty();
        private final boolean direct = random.nextInt(8) == 0;
        private int turns = 1 + random.nextInt(3);
        private final Optional<TokenGrammar> format;
        private int[] prompt;
        private int maxTokens;
        private int attempts;
        private boolean left;
        /** The tokens of the decode leg that was moved. */
        private int[] generated = {};

        private @Nullable Leg leg;
        /** The prefill leg, where the decode leg does not wait for it. */
        private @Nullable Leg companion;
        /** Both legs' id and the second's instance, where they are chosen at once. */
        private Optional<String> pair = Optional.empty();

        private Optional<Instance> chosen = Optional.empty();

        private Client(int number) {
            this.number = number;
            this.format = Optional.of(brackets).filter(_ -> number % 3 == 0);
            // Around the borders of blocks, often with a beginning that others have too.
            int blocks = random.nextInt(Math.max(1, (maxLength - 4) / blockSize));
            int length = Math.clamp(blocks * blockSize + random.nextInt(-1, 2), 1, maxLength - 2);
            int shared = random.nextInt(4) == 0 ? random.nextInt(length + 1) : length;
            prompt = Arrays.copyOf(families.get(random.nextInt(families.size())), length);
            System.arraycopy(tokens(length - shared), 0, prompt, shared, length - shared);
            maxTokens = 1 + random.nextInt(Math.min(12, maxLength - length));
            if (random.nextInt(6) == 0) {
                at(random.nextLong(200 * MILLI), this::leave);
            }
        }

        /** One that asks once, and waits for the answer. */
        Client(int number, int[] prompt, int maxTokens) {
            this.number = number;
            this.format = Optional.empty();
            this.prompt = prompt;
            this.maxTokens = maxTokens;
            this.turns = 1;
        }

        void ask() {
            if (left) {
                end("left");
                return;
            }
            Optional<Instance> first = direct || maxTokens == 1 ? Optional.empty() : alive(prefill);
            pair = Optional.empty();
            chosen = Optional.empty();
            generated = new int[0];
            companion = null;
            Optional<JsonFields> told = first.flatMap(instance -> connectors.atOnce(instance.name));
            if (told.isPresent()) {
                askBoth(first.get(), told);
            } else if (first.isPresent()) {
                Optional<Instance> second = alive(decode);
                pair = second.flatMap(other -> connectors.pairId(first.get().name, other.name, pairs++));
                chosen = pair.flatMap(_ -> second);
                askFirst(first.get());
            } else {
                decode(Optional.empty());
            }
        }

        /** Asks the second when the first has answered. */
        void askFirst(Instance first) {
            int blocks = prompt.length / blockSize;
            boolean splits = !calm && connectors.isSymmetric() && blocks > 1 && random.nextInt(3) == 0;
            count("prompts split", splits ? 1 : 0);
            send(new Leg(this, first, splits ? Arrays.copyOf(prompt, random.nextInt(1, blocks) * blockSize) : prompt));
        }

        /** A decode leg that has output continues at another instance, which takes over this one's computed blocks. */
        private void move(Leg from) {
            if (from == leg && !from.over && !from.moves && from.maxTokens == maxTokens && !from.output.isEmpty()) {
                count("streams moved", 1);
                from.moves = true;
                from.instance.current().core().abort(from.id);
                from.instance.goOn();
            }
        }

        private void moved(Leg from) {
            generated = from.output.stream().mapToInt(each -> each).toArray();
            if (from.instance.life == null) {
                decode(Optional.empty());
            } else {
                send(new Leg(this, from.instance, from.sequence()));
            }
        }

        /** Both legs at once: either may come first, and the prefill leg not at all. Each has an end of its own to the common id. */
        void askBoth(Instance first, Optional<JsonFields> told) {
            String id = "b" + legs++;
            Leg prefilling = new Leg(id + "-000000aa", this, first, prompt, new int[0], 1, Optional.of(KEEP), false);
            companion = prefilling;
            count("both legs at once", 1);
            Runnable prefill = () -> {
                if (!left && first.life != null) {
                    first.submit(prefilling);
                }
            };
            Runnable decode = () -> {
                Optional<Instance> second = alive(SimCluster.this.decode);
                if (left) {
                    end("left");
                } else if (second.isPresent()) {
                    send(new Leg(id + "-000000bb", this, second.get(), prompt, new int[0], maxTokens, told, true));
                } else {
                    at(5 * MILLI, this::ask);
                }
            };
            at(random.nextInt(3) * random.nextLong(4 * MILLI), prefill);
            at(random.nextInt(3) * random.nextLong(4 * MILLI), decode);
        }

        private void decode(Optional<JsonFields> params) {
            Optional<Instance> second =
                    chosen.filter(instance -> instance.life != null).or(() -> alive(decode));
            if (second.isPresent()) {
                send(new Leg(
                        pair.orElse("r" + legs++), this, second.get(), prompt, generated, maxTokens, params, true));
            } else {
                at(5 * MILLI, () -> decode(params));
            }
        }

        Optional<Instance> alive(List<Instance> side) {
            List<Instance> candidates = side.stream()
                    .filter(instance -> instance.life != null && !instance.draining)
                    .toList();
            return candidates.isEmpty()
                    ? Optional.empty()
                    : Optional.of(candidates.get(random.nextInt(candidates.size())));
        }

        private void send(Leg next) {
            leg = next;
            next.instance.submit(next);
        }

        private void leave() {
            if (left) {
                return;
            }
            left = true;
            count(FAULT + "client leaves", 1);
            Leg current = leg;
            if (current != null && !current.delivered) {
                current.instance.abandon(current);
            }
            Leg other = companion;
            if (other != null && !other.delivered) {
                other.instance.abandon(other);
            }
        }

        /** The leg's instance has died. */
        private void lost(Leg lost) {
            lost.over = true;
            lost.delivered = true;
            if (!lost.awaited) {
                return;
            }
            if (left) {
                end("left");
            } else if (random.nextBoolean()) {
                decode(lost.params.filter(
                        params -> params.bool("do_remote_prefill").orElse(false)));
            } else {
                ask();
            }
        }

        void ended(Leg ended, FinishReason reason, Optional<JsonFields> params, Optional<String> error) {
            ended.delivered = true;
            if (!ended.awaited) {
                return;
            }
            if (left) {
                end("left");
                return;
            }
            if (ended.moves && reason == FinishReason.ABORT) {
                moved(ended);
                return;
            }
            switch (reason) {
                case ABORT, STOP, CACHE_THRESHOLD -> throw new AssertionError(ended.id + " ended with " + reason);
                case ERROR -> {
                    count("errors", 1);
                    if (loadFailurePolicy == LoadFailurePolicy.RECOMPUTE && modelFaults == 0) {
                        throw new AssertionError("client " + number + ": " + ended.id + " failed: " + error);
                    }
                    if (++attempts < MOST_ATTEMPTS) {
                        ask();
                    } else {
                        end("failed");
                    }
                }
                case LENGTH -> {
                    if (ended.output.size() != ended.maxTokens) {
                        throw new AssertionError(ended.id + " ended after " + ended.output.size());
                    }
                    if (ended.maxTokens < maxTokens) {
                        decode(connectors.passOn(params));
                    } else {
                        answered(ended);
                    }
                }
            }
        }

        private void answered(Leg last) {
            count("answers", 1);
            count("answers of a format", format.isPresent() ? 1 : 0);
            int room = maxLength - prompt.length - last.output.size();
            if (--turns == 0 || room < 4) {
                end("served");
                return;
            }
            int more = random.nextInt(1, Math.min(room - 2, blockSize + 1) + 1);
            int[] next = Arrays.copyOf(prompt, prompt.length + last.output.size() + more);
            for (int i = 0; i < last.output.size(); i++) {
                next[prompt.length + i] = last.output.get(i);
            }
            System.arraycopy(tokens(more), 0, next, next.length - more, more);
            prompt = next;
            maxTokens = 1 + random.nextInt(Math.min(12, maxLength - prompt.length));
            at(random.nextLong(20 * MILLI), this::ask);
        }

        private void end(String how) {
            count(how, 1);
            open--;
        }
    }

    /** Hands a new prompt over from one instance to another, without faults. */
    private final class Probe extends Client {
        private final Instance first;
        private final Instance second;
        private final boolean atOnce;

        private Probe(Instance first, Instance second, boolean atOnce) {
            super(0, tokens(PROBE_LENGTH), 2);
            this.first = first;
            this.second = second;
            this.atOnce = atOnce;
        }

        @Override
        void ask() {
            if (!atOnce) {
                askFirst(first);
                return;
            }
            Optional<JsonFields> told = Optional.empty();
            while (told.isEmpty()) {
                told = connectors.atOnce(first.name);
            }
            askBoth(first, told);
        }

        @Override
        @SuppressWarnings("ReferenceEquality") // both lists may have the same instances
        Optional<Instance> alive(List<Instance> side) {
            return Optional.of(side == prefill ? first : second);
        }

        @Override
        void ended(Leg ended, FinishReason reason, Optional<JsonFields> params, Optional<String> error) {
            if (reason != FinishReason.LENGTH) {
                throw new AssertionError("a probe ends with " + reason + ": " + error);
            }
            super.ended(ended, reason, params, error);
        }
    }
}
