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
            LookupBuffer buffer = LookupBuffers.inProcess(settings);
            return new Ends(buffer, buffer);
        }
    }

    @Nested
    class OverTcp extends LookupBufferContract {
        @Override
        protected Ends ends(LookupBuffer.Settings settings) throws Exception {
            try (TcpTransport transport = new TcpTransport()) {
                return over(transport, settings);
            }
        }
    }

    @Nested
    class OverMemory extends LookupBufferContract {
        @Override
        protected Ends ends(LookupBuffer.Settings settings) throws Exception {
            try (MemoryTransport transport = new MemoryTransport()) {
                return over(transport, settings);
            }
        }
    }

    static LookupBufferContract.Ends over(WireTransport transport, LookupBuffer.Settings settings) throws Exception {
        Wire[] requests = PipesTest.offered(transport);
        Wire[] answers = PipesTest.offered(transport);
        WirePipe.Settings pipe = WirePipe.Settings.DEFAULT;
        return new LookupBufferContract.Ends(
                LookupBuffers.producer(
                        WirePipe.receiver(requests[0], pipe), WirePipe.sender(answers[0], pipe), settings),
                LookupBuffers.consumer(WirePipe.sender(requests[1], pipe), WirePipe.receiver(answers[1], pipe)));
    }
}
