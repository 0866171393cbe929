package baton.router.trace;

import static org.assertj.core.api.Assertions.assertThat;

import baton.router.trace.RequestTrace.PromptTokens;
import baton.router.trace.RequestTrace.Snapshot;
import baton.trace.TraceContext;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

class RequestTracesTest {
    private final AtomicLong nanos = new AtomicLong(1_000_000);

    private RequestTrace trace(String id, Optional<String> client) {
        return new RequestTrace(
                new RequestTrace.Head(
                        id,
                        TraceContext.of(List.of(), true),
                        TraceContext.newSpanId(),
                        "POST",
                        "/v1/completions",
                        client,
                        7),
                nanos::incrementAndGet);
    }

    private static void answer(RequestTrace trace) {
        var _ = trace.sent(RequestTrace.PREFILL, "http://one:1", "round robin");
        trace.failed(RequestTrace.PREFILL, "http://one:1", "connection refused: \u00fc");
        var _ = trace.sent(RequestTrace.PREFILL, "http://two:2", "the next");
        trace.answered(RequestTrace.PREFILL, 200);
        trace.promptTokens(RequestTrace.PREFILL, new PromptTokens(100, 32));
        var _ = trace.sent(RequestTrace.DECODE, "http://three:3", "least loaded");
        trace.firstByte();
        trace.sent(10, 1);
        trace.sent(20, 1);
        trace.answered(RequestTrace.DECODE, 200);
        trace.ended("ok", 200);
    }

    @Test
    void anEndedRequestIsKeptAsItWas() {
        RequestTraces traces = new RequestTraces(10, 10_000, nanos::get);
        RequestTrace trace = trace("one", Optional.of("team"));
        traces.started(trace);
        answer(trace);
        Snapshot before = trace.snapshot();
        traces.ended(trace);
        nanos.addAndGet(500);
        Snapshot kept = traces.find("one", _ -> true).orElseThrow();
        assertThat(kept).usingRecursiveComparison().ignoringFields("age").isEqualTo(before);
        assertThat(kept.age()).isBetween(before.age() + 500, before.age() + 510);
        assertThat(traces.running(10, _ -> true)).isEmpty();
        assertThat(traces.find("one", each -> each.head().client().equals(Optional.of("another"))))
                .isEmpty();
    }

    @Test
    void aRequestOfWhichNothingHappenedIsKeptToo() {
        RequestTraces traces = new RequestTraces(10, 10_000, nanos::get);
        RequestTrace trace = trace("none", Optional.empty());
        traces.started(trace);
        traces.ended(trace);
        assertThat(traces.find("none", _ -> true).orElseThrow())
                .usingRecursiveComparison()
                .ignoringFields("age")
                .isEqualTo(trace.snapshot());
    }

    @Test
    void theLastOnesAreKept() {
        RequestTraces traces = new RequestTraces(3, 100_000, nanos::get);
        for (int i = 0; i < 10; i++) {
            traces.ended(trace("r" + i, Optional.empty()));
        }
        assertThat(traces.ended(10, _ -> true))
                .extracting(each -> each.head().id())
                .containsExactly("r9", "r8", "r7");
        assertThat(traces.ended(2, _ -> true))
                .extracting(each -> each.head().id())
                .containsExactly("r9", "r8");
        assertThat(traces.find("r6", _ -> true)).isEmpty();
    }

    @Test
    void theLatestOfTwoWithOneIdIsFound() {
        RequestTraces traces = new RequestTraces(10, 100_000, nanos::get);
        traces.ended(trace("same", Optional.of("first")));
        traces.ended(trace("same", Optional.of("second")));
        assertThat(traces.find("same", _ -> true).orElseThrow().head().client()).contains("second");
        traces.started(trace("same", Optional.of("third")));
        assertThat(traces.find("same", _ -> true).orElseThrow().head().client()).contains("third");
    }

    /** Values of random sizes in little memory: the last ones are kept, each whole. */
    @Test
    void longValuesTakeThePlaceOfOlderOnes() {
        Random random = new Random(5);
        ByteRing ring = new ByteRing(20, 1000);
        List<byte[]> added = new java.util.ArrayList<>();
        for (int i = 0; i < 5000; i++) {
            byte[] value = new byte[random.nextInt(random.nextBoolean() ? 40 : 400)];
            random.nextBytes(value);
            ring.add(i, value);
            added.add(value);
            List<byte[]> kept = ring.all();
            assertThat(kept).hasSizeBetween(1, 20);
            int last = i;
            assertThat(IntStream.range(0, kept.size()))
                    .allSatisfy(age -> assertThat(kept.get(age)).isEqualTo(added.get(last - age)));
            assertThat(kept.stream().mapToInt(each -> each.length).sum()).isLessThanOrEqualTo(1000);
            assertThat(ring.withKey(i)).containsExactly(value);
        }
        ring.add(-1, new byte[1001]);
        assertThat(ring.withKey(-1)).isEmpty();
        assertThat(ring.all()).isNotEmpty();
    }
}
