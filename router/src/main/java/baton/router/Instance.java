package baton.router;

import java.net.URI;
import java.util.Optional;
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
    private volatile Optional<String> down = Optional.of("not probed yet");

    Instance(Role role, URI address) {
        this.role = role;
        this.host = address.getHost();
        this.port = address.getPort() < 0 ? 80 : address.getPort();
        this.url = "http://" + host + ":" + port;
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

    boolean isUp() {
        return down.isEmpty();
    }

    /** Why it is down. */
    Optional<String> downReason() {
        return down;
    }

    synchronized void markUp() {
        if (!isUp()) {
            log.info("{} is up", this);
        }
        down = Optional.empty();
    }

    synchronized void markDown(String reason) {
        if (isUp()) {
            log.warn("{} is down: {}", this, reason);
        }
        down = Optional.of(reason);
    }

    @Override
    public String toString() {
        return role.label + " instance " + url;
    }
}
