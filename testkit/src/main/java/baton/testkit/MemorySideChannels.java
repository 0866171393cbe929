package baton.testkit;

import baton.messages.MessageException;
import baton.messages.SideChannel;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;

/** Side channels between instances in one process: real frames, answered at once by the asking thread. For one thread at a time. */
public final class MemorySideChannels {
    private static final int FIRST_FREE_PORT = 7001;

    private record Address(InetAddress host, int port) {}

    private final Fault fault;
    private final Map<Address, SideChannel.Reception> listeners = new HashMap<>();
    private int nextPort = FIRST_FREE_PORT;

    /** Sees each question before its listener does. */
    @FunctionalInterface
    public interface Fault {
        /** @throws MessageException if the question is to fail so */
        void beforeAnswer(List<byte[]> question) throws MessageException;
    }

    public MemorySideChannels(Fault fault) {
        this.fault = fault;
    }

    /**
     * A channel of one instance.
     *
     * @param from an address or {@code localhost}, from which its questions come
     */
    public SideChannel open(String from) {
        return new Channel(resolve(from));
    }

    private static InetAddress resolve(String host) {
        try {
            return host.equals("localhost") ? InetAddress.ofLiteral("127.0.0.1") : InetAddress.getByName(host);
        } catch (UnknownHostException e) {
            throw new IllegalArgumentException("host=" + host + " must be an address or localhost", e);
        }
    }

    private final class Channel implements SideChannel {
        private final InetAddress self;
        private final List<Listener> own = new ArrayList<>();

        private Channel(InetAddress self) {
            this.self = self;
        }

        @Override
        public Listener receive(String host, int port, Reception reception) throws MessageException {
            Address address = new Address(resolve(host), port == 0 ? nextPort++ : port);
            if (listeners.putIfAbsent(address, reception) != null) {
                throw new MessageException("address in use");
            }
            Listener listener = new Listener() {
                @Override
                public int port() {
                    return address.port();
                }

                @Override
                public void close() {
                    listeners.remove(address, reception);
                }
            };
            own.add(listener);
            return listener;
        }

        @Override
        public CompletableFuture<List<byte[]>> ask(String host, int port, List<byte[]> frames, Duration timeout) {
            try {
                Reception reception = listeners.get(new Address(resolve(host), port));
                if (reception == null) {
                    throw new MessageException("nothing listens at " + host + ":" + port);
                }
                Handler handler = reception.arrived(self);
                fault.beforeAnswer(frames);
                List<byte[]> answer = handler.answer(frames);
                if (answer.isEmpty()) {
                    throw new MessageException(host + ":" + port + " has closed the connection");
                }
                return CompletableFuture.completedFuture(answer);
            } catch (MessageException e) {
                return CompletableFuture.failedFuture(e);
            }
        }

        @Override
        public void close() {
            own.forEach(Listener::close);
        }
    }
}
