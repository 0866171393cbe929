package baton.pipe.p2p;

import baton.messages.MessageException;
import baton.messages.PeerAddress;
import baton.messages.PeerChannel;
import baton.messages.p2p.Registration;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Registers an instance with the proxy, again every few seconds; so a proxy that starts or restarts later knows it soon. */
public final class ProxyRegistration implements AutoCloseable {
    private static final Logger log = LoggerFactory.getLogger(ProxyRegistration.class);
    private static final Duration EVERY = Duration.ofSeconds(3);

    private final PeerChannel channel;
    private final PeerAddress proxy;
    private final Registration registration;
    private final CountDownLatch closing = new CountDownLatch(1);
    private boolean known;
    private boolean complained;

    private ProxyRegistration(PeerChannel channel, PeerAddress proxy, Registration registration) {
        this.channel = channel;
        this.proxy = proxy;
        this.registration = registration;
    }

    /** Starts; {@link #close} closes the channel. */
    public static ProxyRegistration start(PeerChannel channel, PeerAddress proxy, Registration registration) {
        ProxyRegistration started = new ProxyRegistration(channel, proxy, registration);
        Thread.ofVirtual().name("p2p-registration").start(started::run);
        return started;
    }

    private void run() {
        Optional<PeerChannel.Call> call = Optional.empty();
        try {
            do {
                call = tell(call);
            } while (!closing.await(EVERY.toNanos(), TimeUnit.NANOSECONDS));
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private Optional<PeerChannel.Call> tell(Optional<PeerChannel.Call> before) {
        try {
            PeerChannel.Call call = before.isPresent() && before.get().isOpen()
                    ? before.get()
                    : channel.call(
                            proxy.host(), proxy.port(), registration.control().toString(), EVERY, () -> {});
            call.tell(List.of(registration.encode()), EVERY);
            if (!known) {
                log.info("registered with the proxy at {} as {}", proxy, registration);
            }
            known = true;
            complained = false;
            return Optional.of(call);
        } catch (MessageException e) {
            if (!complained) {
                log.warn("cannot register with the proxy at {}, trying again: {}", proxy, e.getMessage());
            }
            complained = true;
            known = false;
            return before;
        }
    }

    @Override
    public void close() {
        closing.countDown();
        channel.close();
    }
}
