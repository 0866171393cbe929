package baton.router.upstream;

import baton.messages.PeerAddress;
import baton.router.metrics.RouterMetrics;
import java.net.URI;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.LongAdder;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** One prefill or decode instance and its health. Any thread. */
public final class Instance {
    private static final Logger log = LoggerFactory.getLogger(Instance.class);

    /** Which leg of a request an instance serves. */
    public enum Role implements RouterMetrics.Label {
        PREFILL,
        DECODE;

        public Role other() {
            return this == PREFILL ? DECODE : PREFILL;
        }
    }

    /** Whether an instance gets requests, and why not. */
    public enum State implements RouterMetrics.Label {
        UP,
        /** The circuit breaker keeps requests away. */
        TRIPPED,
        DRAINING,
        DOWN
    }

    /** Streams of a decode instance that are to go to another one. */
    private record Moves(Instance to, AtomicInteger streams) {}

    private final Role role;
    private final URI address;
    private final String url;
    private final String host;
    private final int port;
    private final boolean tls;
    private final InstanceSettings settings;
    private final boolean registered;
    private final Optional<PeerAddress> kvAddress;
    private final AtomicInteger running = new AtomicInteger();
    private final AtomicLong localPrefillBytes = new AtomicLong();
    private volatile Optional<Moves> moves = Optional.empty();
    private final CircuitBreaker breaker = new CircuitBreaker();
    private volatile boolean draining;
    private volatile boolean stopping;
    private volatile double weight = 1;
    private volatile SlowStart slowStart = SlowStart.NONE;
    /** Whether it gets its share gradually when it comes up. */
    private volatile boolean gradual;

    private volatile OptionalLong recovered = OptionalLong.empty();
    private final LongAdder begun = new LongAdder();
    private final LongAdder served = new LongAdder();
    private volatile Optional<String> down = Optional.of("not probed yet");
    private volatile OptionalLong silent = OptionalLong.empty();
    private volatile Optional<ConnectorAddress> connectorAddress = Optional.empty();
    /** Kept while the instance is down, so that it can be used as soon as it is up again. */
    private volatile Optional<InstanceConnector> connector = Optional.empty();

    private volatile long incarnation = ThreadLocalRandom.current().nextLong();

    public Instance(Role role, URI address) {
        this(role, address, Optional.empty());
    }

    /** @param kvAddress where the connector listens, if the instance has registered */
    public Instance(Role role, URI address, Optional<PeerAddress> kvAddress) {
        this(role, address, kvAddress, InstanceSettings.of(role.label(), address));
    }

    /** @param settings in the place of those of the address */
    Instance(Role role, URI address, Optional<PeerAddress> kvAddress, InstanceSettings settings) {
        this.role = role;
        this.address = address;
        this.registered = kvAddress.isPresent();
        this.kvAddress = kvAddress.or(settings::kvAddress);
        this.settings = settings;
        this.host = address.getHost();
        this.tls = "https".equals(address.getScheme());
        this.port = address.getPort() < 0 ? (tls ? 443 : 80) : address.getPort();
        this.url = (tls ? "https://" : "http://") + host + ":" + port;
    }

    /** An instance that is up without a health probe. */
    public static Instance standIn(Role role, URI address, PeerAddress kvAddress) {
        Instance instance = new Instance(role, address, Optional.of(kvAddress));
        instance.down = Optional.empty();
        return instance;
    }

    public Role role() {
        return role;
    }

    public String host() {
        return host;
    }

    public int port() {
        return port;
    }

    /** Whether it is reached by HTTPS. */
    public boolean hasTls() {
        return tls;
    }

    /** The address as operators gave it, with settings. */
    public URI address() {
        return address;
    }

    /** {@code http://host:port} or {@code https://host:port}. */
    public String url() {
        return url;
    }

    /** Its settings beside its address. */
    public InstanceSettings settings() {
        return settings;
    }

    /** Whether it has registered itself. */
    public boolean isRegistered() {
        return registered;
    }

    /** Its connector, by its settings or its last answer; empty if that is not known. */
    public Optional<InstanceConnector> connector() {
        return settings.connector()
                .or(() -> connector)
                .or(() -> registered
                        ? Optional.of(new InstanceConnector(InstanceConnector.OF_REGISTERED, false))
                        : Optional.empty());
    }

    /** Whether it is known to be Baton's. */
    public boolean isBaton() {
        return connector().filter(InstanceConnector::isBaton).isPresent();
    }

    /** Whether its settings say that it is vLLM's. */
    public boolean isVllm() {
        return settings.connector().filter(each -> !each.isBaton()).isPresent();
    }

    /** Drops the connector: the server at this address reports none, so the known one is an earlier server's. */
    void forgetConnector() {
        connector = Optional.empty();
    }

    void learnConnector(InstanceConnector told) {
        connector = Optional.of(told);
    }

    /** Where the connector listens; known of registered instances, and from settings. */
    public Optional<PeerAddress> kvAddress() {
        return kvAddress;
    }

    /** The address of a prefill instance's connector, by the instance's last report. */
    public Optional<ConnectorAddress> connectorAddress() {
        return connectorAddress;
    }

    /** Has no effect while the instance is down: the address may be that of the engine that ended. */
    public synchronized void learnConnectorAddress(ConnectorAddress address) {
        if (isUp()) {
            connectorAddress = Optional.of(address);
        }
    }

    /** The server at this address has no connector address, so a known one is that of an earlier server. */
    public synchronized void forgetConnectorAddress() {
        connectorAddress = Optional.empty();
    }

    /** Another number each time the instance comes up: an engine that was started anew has an empty cache. */
    public long incarnation() {
        return incarnation;
    }

    public boolean isUp() {
        return down.isEmpty();
    }

    /** Since when health probes have found no sign that it works on its requests, in the router's ticker's nanoseconds; empty if the last one has. */
    void silentSince(OptionalLong nanos) {
        silent = nanos;
    }

    /** Whether it has hung since that time, by its health probes. */
    boolean isHungSince(long nanos) {
        OptionalLong since = silent;
        return since.isPresent() && since.getAsLong() - nanos <= 0;
    }

    /** Counts a request to the instance as running until the returned action runs. */
    public RunningRequest begin() {
        begun.increment();
        running.incrementAndGet();
        return new RunningRequest(breaker.began());
    }

    /** A request to the instance; {@link #run} ends its count. */
    public final class RunningRequest implements Runnable {
        private final boolean isTrial;
        private boolean ended;
        private int status;

        private RunningRequest(boolean isTrial) {
            this.isTrial = isTrial;
        }

        /** The instance begins to answer with a status. */
        void answered(int answer) {
            status = answer;
            if (status == 200) {
                served.increment();
            }
            // 503 is an instance that is full or stopping: not at fault.
            if (status < 500) {
                if (breaker.answered()) {
                    recover();
                }
            } else if (status != 503) {
                failed("HTTP " + status);
            }
        }

        /** The answer is complete. */
        void succeeded() {
            if (status < 500) {
                breaker.succeeded();
            }
        }

        /** The instance has not answered, or broken off. */
        void failed(String reason) {
            if (breaker.failed()) {
                log.warn("{} gets no requests for now: {}, the last: {}", Instance.this, breaker, reason);
            }
        }

        @Override
        public void run() {
            if (!ended) {
                ended = true;
                if (isTrial) {
                    breaker.trialEnded();
                }
                running.decrementAndGet();
            }
        }
    }

    /** Whether requests are kept away although it is up; see {@link CircuitBreaker}. */
    public boolean isTripped() {
        return !breaker.allows();
    }

    /** A health probe has succeeded. */
    void probed() {
        breaker.probed();
    }

    /**
     * Sets how it gets its share of the requests.
     *
     * @param fresh whether gradually when it comes up first; later it always does
     */
    void startsBy(SlowStart value, boolean fresh) {
        slowStart = value;
        gradual = fresh;
    }

    /** Sets its share of the requests, compared with other instances; 1 unless set. */
    public void weight(double value) {
        weight = value;
    }

    /** Its share of the requests now, compared with other instances; over 0. */
    public double share() {
        OptionalLong since = recovered;
        if (since.isEmpty()) {
            return weight;
        }
        double part = slowStart.part(since.getAsLong());
        if (part >= 1) {
            recovered = OptionalLong.empty();
        }
        return weight * part;
    }

    private void recover() {
        if (gradual && !slowStart.window().isZero()) {
            recovered = OptionalLong.of(slowStart.ticker().nanos());
        }
        gradual = true;
    }

    /** Whether it gets no new requests, as it is to be stopped. */
    public boolean isDraining() {
        return draining;
    }

    public void drain(boolean on) {
        draining = on;
    }

    /** Whether its requests had better end elsewhere: it is draining, or says that it takes no more. */
    public boolean isLeaving() {
        return draining || stopping;
    }

    /** Moves {@code streams} of its streams to another instance, which has more room. */
    public void giveStreams(Instance to, int streams) {
        moves = Optional.of(new Moves(to, new AtomicInteger(streams)));
    }

    /** No more of its streams are to continue elsewhere. */
    public void keepStreams() {
        moves = Optional.empty();
    }

    /** Whether streams of it are to continue elsewhere. */
    public boolean givesStreams() {
        return moves.filter(each -> each.streams.get() > 0).isPresent();
    }

    /** Where a stream of it is to continue. Each call is for another stream. */
    public Optional<Instance> giveStream() {
        return moves.filter(each -> each.streams.getAndDecrement() > 0).map(Moves::to);
    }

    /** A health probe was answered with 503. */
    synchronized void markStopping(String reason) {
        Optional<ConnectorAddress> known = connectorAddress;
        markDown(reason);
        stopping = true;
        // Its streams hand over from it yet.
        connectorAddress = known;
    }

    public State currentState() {
        return !isUp() ? State.DOWN : draining ? State.DRAINING : isTripped() ? State.TRIPPED : State.UP;
    }

    /** Its state for operators: {@code up}, {@code draining}, or why it gets no requests. */
    public String state() {
        State state = currentState();
        return switch (state) {
            case UP, DRAINING -> state.label();
            case TRIPPED -> "tripped: " + breaker;
            case DOWN -> "down: " + down.orElse("it has just come up");
        };
    }

    /** Running requests of this router to the instance. */
    public int running() {
        return running.get();
    }

    /** Bytes of prompts that it computes as a decode instance, until their first tokens. */
    public long localPrefillBytes() {
        return localPrefillBytes.get();
    }

    public void addLocalPrefill(long bytes) {
        localPrefillBytes.addAndGet(bytes);
    }

    /** Requests of this router to the instance, ended or not. */
    public long begun() {
        return begun.sum();
    }

    /** The number of requests that it has begun to answer with status 200. */
    public long served() {
        return served.sum();
    }

    /** Why the instance is down; empty if it is up. */
    public Optional<String> downReason() {
        return down;
    }

    /** Returns whether the instance was down. */
    public synchronized boolean markUp() {
        boolean wasDown = !isUp();
        stopping = false;
        if (wasDown) {
            connectorAddress = Optional.empty();
            breaker.reset();
            recover();
            incarnation = ThreadLocalRandom.current().nextLong();
            log.info("{} is up", this);
        }
        down = Optional.empty();
        return wasDown;
    }

    public synchronized void markDown(String reason) {
        if (isUp()) {
            log.warn("{} is down: {}", this, reason);
        }
        down = Optional.of(reason);
        // An instance that comes up again may be another engine, with its connector at another port.
        connectorAddress = Optional.empty();
    }

    @Override
    public String toString() {
        return role.label() + " instance " + url;
    }
}
