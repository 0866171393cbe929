package baton.pipe;

import static baton.pipe.WireContract.background;
import static baton.pipe.WireContract.result;

import baton.pipe.memory.MemoryTransport;
import baton.pipe.tcp.TcpTransport;
import java.time.Duration;
import java.util.concurrent.FutureTask;
import org.junit.jupiter.api.Nested;

/** Pipes over every transport that needs nothing but the JDK. */
class PipesTest {
    @Nested
    class OverTcp extends PipeContract {
        @Override
        protected Wire[] wires() throws Exception {
            try (TcpTransport transport = new TcpTransport()) {
                return offered(transport);
            }
        }
    }

    @Nested
    class InMemory extends PipeContract {
        @Override
        protected Wire[] wires() throws Exception {
            try (MemoryTransport transport = new MemoryTransport()) {
                return offered(transport);
            }
        }
    }

    static Wire[] offered(WireTransport transport) throws Exception {
        Duration wait = Duration.ofSeconds(60);
        try (WireTransport.Offer offer = transport.offer("127.0.0.1")) {
            FutureTask<Wire> joining = background(() -> transport.join(offer.id(), "127.0.0.1", wait));
            Wire first = offer.accept(wait);
            return new Wire[] {first, result(joining)};
        }
    }
}
