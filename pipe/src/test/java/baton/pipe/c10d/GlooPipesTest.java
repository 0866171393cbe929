package baton.pipe.c10d;

import baton.kv.Ticker;
import baton.pipe.LookupBuffer;
import baton.pipe.LookupBufferContract;
import baton.pipe.PipeContract;
import baton.pipe.TestWires;
import baton.pipe.Wire;
import org.junit.jupiter.api.Nested;

/** Pipes and lookup buffers over Gloo. */
class GlooPipesTest {
    @Nested
    class Pipes extends PipeContract {
        @Override
        protected Wire[] wires() throws Exception {
            try (GlooTransport transport = GlooTransport.load(Ticker.system())) {
                return TestWires.offered(transport);
            }
        }
    }

    @Nested
    class Buffers extends LookupBufferContract {
        @Override
        protected Ends ends(LookupBuffer.Settings settings) throws Exception {
            try (GlooTransport transport = GlooTransport.load(Ticker.system())) {
                return TestWires.over(transport, settings);
            }
        }
    }
}
