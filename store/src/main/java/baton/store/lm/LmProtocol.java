package baton.store.lm;

import baton.kv.Ticker;
import baton.messages.PeerSecret;
import baton.store.remote.RemoteClient;
import baton.store.remote.RemoteConnection;
import baton.store.remote.RemoteProtocol;
import baton.store.remote.RemoteServer;
import baton.store.remote.RemoteSession;
import baton.store.remote.StoreCounters;
import io.netty.channel.Channel;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicBoolean;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The {@code lm} protocol of a server, as the settings say. */
final class LmProtocol implements RemoteProtocol<LmRequest> {
    private static final Logger log = LoggerFactory.getLogger(LmProtocol.class);
    private static final long WINDOW = 64L << 20;

    private final LmSettings settings;
    private final Optional<PeerSecret> token;
    private final AtomicBoolean notMappedSaid = new AtomicBoolean();

    private LmProtocol(LmSettings settings) {
        this.settings = settings;
        token = settings.tokenFile().map(file -> PeerSecret.read("token_file", file));
    }

    /**
     * Begins to connect.
     *
     * @throws baton.kv.ConfigException if the settings cannot be used
     */
    static RemoteClient<LmRequest> client(LmSettings settings, StoreCounters counters, Ticker ticker) {
        RemoteServer server =
                RemoteServer.of(settings.url(), settings.host(), settings.port(), settings.tls(), settings.limits());
        return new RemoteClient<>(server, WINDOW, new LmProtocol(settings), counters, ticker);
    }

    @Override
    public RemoteSession<LmRequest> session(RemoteConnection<LmRequest> connection) {
        return new LmSession(connection, this);
    }

    Optional<PeerSecret> token() {
        return token;
    }

    /** Whether values are copied out of the memory of the server at the other end. */
    boolean mapsMemoryOf(Channel channel) {
        return settings.sharedMemory()
                && !settings.tls()
                && ServerMemory.isOfThisHost(channel.localAddress(), channel.remoteAddress());
    }

    /** Logged once, as it stays so. */
    void notMapped(Exception cause) {
        if (notMappedSaid.compareAndSet(false, true)) {
            log.info(
                    "{}: its memory cannot be mapped, so values come over connections: {}",
                    settings.url(),
                    cause.toString());
        }
    }
}
