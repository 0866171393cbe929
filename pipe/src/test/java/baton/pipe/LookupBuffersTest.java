package baton.pipe;

import baton.pipe.memory.MemoryTransport;
import baton.pipe.tcp.TcpTransport;
import org.junit.jupiter.api.Nested;

/** Lookup buffers within a process, and over pipes of every transport that needs nothing but the JDK. */
class LookupBuffersTest {
    @Nested
    class InProcess extends LookupBufferContract {
        @Override
        protected Ends ends(LookupBuffer.Settings settings) {
            LookupBuffer buffer = new InProcessLookupBuffer(settings);
            return new Ends(buffer, buffer);
        }
    }

    @Nested
    class OverTcp extends LookupBufferContract {
        @Override
        protected Ends ends(LookupBuffer.Settings settings) throws Exception {
            try (TcpTransport transport = new TcpTransport()) {
                return TestWires.over(transport, settings);
            }
        }
    }

    @Nested
    class OverMemory extends LookupBufferContract {
        @Override
        protected Ends ends(LookupBuffer.Settings settings) throws Exception {
            try (MemoryTransport transport = new MemoryTransport()) {
                return TestWires.over(transport, settings);
            }
        }
    }
}
