package baton.messages;

import baton.kv.Ticker;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.time.Duration;
import java.util.Arrays;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/**
 * The addresses of names. They are resolved in the background, by one thread at most, so that nothing waits for a name server:
 * the result of the last look-up counts. Any thread.
 */
final class NameLookups {
    private static final Duration FRESH = Duration.ofMinutes(1);

    /** Connections from unknown addresses cause at most one look-up in that time. */
    private static final Duration AGAIN = Duration.ofSeconds(2);

    /** Looks a name up; may take long. */
    @FunctionalInterface
    interface Resolver {
        InetAddress[] addresses(String name) throws UnknownHostException;
    }

    private final Set<String> names;
    private final Resolver resolver;
    private final Ticker ticker;
    private final Map<String, Set<InetAddress>> found = new ConcurrentHashMap<>();

    @GuardedBy("this")
    private boolean looking;

    @GuardedBy("this")
    private boolean looked;

    @GuardedBy("this")
    private long lookedAt;

    NameLookups(Set<String> names, Resolver resolver, Ticker ticker) {
        this.names = Set.copyOf(names);
        this.resolver = resolver;
        this.ticker = ticker;
    }

    /** Whether one of the names was found to resolve to the address; looks up again if that may have changed. */
    boolean resolveTo(InetAddress address) {
        boolean known = found.values().stream().anyMatch(each -> each.contains(address));
        lookUpUnlessSince(known ? FRESH : AGAIN);
        return known;
    }

    /** Starts to resolve the names, unless that was done a moment ago. */
    void lookUp() {
        lookUpUnlessSince(AGAIN);
    }

    private synchronized void lookUpUnlessSince(Duration age) {
        boolean recent = looked && ticker.nanos() - lookedAt < age.toNanos();
        if (!names.isEmpty() && !looking && !recent) {
            looking = true;
            // A look-up would hold a virtual thread's carrier.
            Thread.ofPlatform().daemon().name("allowed-peers").start(this::lookUpAll);
        }
    }

    private void lookUpAll() {
        try {
            for (String name : names) {
                try {
                    found.put(name, Set.copyOf(Arrays.asList(resolver.addresses(name))));
                } catch (UnknownHostException e) {
                    found.remove(name);
                }
            }
        } finally {
            synchronized (this) {
                looking = false;
                looked = true;
                lookedAt = ticker.nanos();
            }
        }
    }
}
