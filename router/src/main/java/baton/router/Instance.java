package baton.router;

import baton.messages.PeerAddress;
import java.net.URI;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicInteger;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** One prefill or decode instance, and whether it can be used. Any thread. */
final class Instance {
    private static final Logger log = LoggerFactory.getLogger(Instance.class);

    /** What an instance is used for. */
    enum Role {
        PREFILL("prefill"),
        DECODE("decode");

        final String label;

        Role(String label) {
            this.label = label;
        }
    }

    private final Role role;
    private final String url;
    private final String host;
    private final int port;
    private final Optional<PeerAddress> kvAddress;
    private final AtomicInteger underWay = new AtomicInteger();
    private volatile Optional<String> down = Optional.of("not probed yet");
    private volatile Optional<String> pushTarget = Optional.empty();

    Instance(Role role, URI address) {
        this(role, address, Optional.empty());
    }

    /** @param kvAddress where its connector listens, if it has registered with that */
    Instance(Role role, URI address, Optional<PeerAddress> kvAddress) {
        this.role = role;
        this.kvAddress = kvAddress;
        this.host = address.getHost();
        this.port = address.getPort() < 0 ? 80 : address.getPort();
        this.url = "http://" + host + ":" + port;
    }

    /** One that is up without having been probed. */
    static Instance standIn(Role role, URI address, PeerAddress kvAddress) {
        Instance instance = new Instance(role, address, Optional.of(kvAddress));
        instance.down = Optional.empty();
        return instance;
    }

    Role role() {
        return role;
    }

    String host() {
        return host;
    }

    int port() {
        return port;
    }

    /** {@code http://host:port}. */
    String url() {
        return url;
    }

    /** Where its connector listens; known of registered instances only. */
    Optional<PeerAddress> kvAddress() {
        return kvAddress;
    }

    /** The {@code kv_transfer_params} by which a decode instance asks this prefill instance to push, as JSON. */
    Optional<String> pushTarget() {
        return pushTarget;
    }

    /** Has no effect while it is down: then it may be about what it no longer is. */
    synchronized void learnPushTarget(String params) {
        if (isUp()) {
            pushTarget = Optional.of(params);
        }
    }

    /** What was learnt is of another server than the one there now. */
    synchronized void forgetPushTarget() {
        pushTarget = Optional.empty();
    }

    boolean isUp() {
        return down.isEmpty();
    }

    /** Counts a request to it as under way, until what is returned has run. */
    Runnable begin() {
        underWay.incrementAndGet();
        return underWay::decrementAndGet;
    }

    /** Requests of this router's to it that have no end yet. */
    int underWay() {
        return underWay.get();
    }

    /** Why it is down. */
    Optional<String> downReason() {
        return down;
    }

    /** Returns whether it was down. */
    synchronized boolean markUp() {
        boolean wasDown = !isUp();
        if (wasDown) {
            log.info("{} is up", this);
        }
        down = Optional.empty();
        return wasDown;
    }

    synchronized void markDown(String reason) {
        if (isUp()) {
            log.warn("{} is down: {}", this, reason);
        }
        down = Optional.of(reason);
        // When it comes back it is another engine, perhaps at another port.
        pushTarget = Optional.empty();
    }

    @Override
    public String toString() {
        return role.label + " instance " + url;
    }
}
