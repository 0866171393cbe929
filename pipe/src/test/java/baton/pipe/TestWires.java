package baton.pipe;

import static baton.pipe.WireContract.background;
import static baton.pipe.WireContract.result;

import baton.kv.Ticker;
import java.time.Duration;
import java.util.concurrent.FutureTask;

/** Connected ends, for tests. */
public final class TestWires {
    private TestWires() {}

    /** Both ends of a wire. */
    public static Wire[] offered(WireTransport transport) throws Exception {
        Duration wait = Duration.ofSeconds(60);
        try (WireTransport.Offer offer = transport.offer("127.0.0.1")) {
            FutureTask<Wire> joining = background(() -> transport.join(offer.id(), "127.0.0.1", wait));
            Wire first = offer.accept(wait);
            return new Wire[] {first, result(joining)};
        }
    }

    /** A producer and a consumer with wires between them. */
    public static LookupBufferContract.Ends over(WireTransport transport, LookupBuffer.Settings settings)
            throws Exception {
        Wire[] requests = offered(transport);
        Wire[] answers = offered(transport);
        WirePipe.Settings pipe = WirePipe.Settings.DEFAULT;
        return new LookupBufferContract.Ends(
                LookupBuffers.producer(
                        WirePipe.receiver(requests[0], pipe, Ticker.system()),
                        WirePipe.sender(answers[0], pipe, Ticker.system()),
                        settings,
                        Ticker.system()),
                LookupBuffers.consumer(
                        WirePipe.sender(requests[1], pipe, Ticker.system()),
                        WirePipe.receiver(answers[1], pipe, Ticker.system()),
                        TensorMemory.HOST,
                        Ticker.system()));
    }
}
