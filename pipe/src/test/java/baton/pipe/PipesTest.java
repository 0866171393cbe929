package baton.pipe;

import baton.pipe.memory.MemoryTransport;
import baton.pipe.tcp.TcpTransport;
import org.junit.jupiter.api.Nested;

/** Pipes over every transport that needs nothing but the JDK. */
class PipesTest {
    @Nested
    class OverTcp extends PipeContract {
        @Override
        protected Wire[] wires() throws Exception {
            try (TcpTransport transport = new TcpTransport()) {
                return TestWires.offered(transport);
            }
        }
    }

    @Nested
    class InMemory extends PipeContract {
        @Override
        protected Wire[] wires() throws Exception {
            try (MemoryTransport transport = new MemoryTransport()) {
                return TestWires.offered(transport);
            }
        }
    }
}
