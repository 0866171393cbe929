package baton.kv.connector;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.DType;
import java.lang.foreign.MemorySegment;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.junit.jupiter.api.Test;

/** Reports of several ranks as one, as vLLM's KVOutputAggregator makes them. */
class ReportMergerTest {
    private static WorkerReport report(Set<String> sent, Set<String> received, Integer... invalid) {
        return new WorkerReport(sent, received, Set.of(invalid), List.of());
    }

    @Test
    void aHiddenStateFromOneRankIsReportedWhenAllHaveReceivedTheRequest() {
        ReportMerger merger = new ReportMerger(2);
        HiddenState state = new HiddenState(DType.F32, MemorySegment.ofArray(new float[] {1}));
        WorkerReport withState =
                new WorkerReport(Set.of(), Set.of("a"), Set.of(), List.of()).withHidden(Map.of("a", state));
        WorkerReport early = merger.merge(List.of(WorkerReport.NOTHING, withState));
        assertThat(early.hidden()).isEmpty();
        WorkerReport complete = merger.merge(List.of(report(Set.of(), Set.of("a")), WorkerReport.NOTHING));
        assertThat(complete.received()).containsExactly("a");
        assertThat(complete.hidden()).containsExactly(Map.entry("a", state));
        assertThat(merger.merge(List.of(withState, report(Set.of(), Set.of("a"))))
                        .hidden())
                .containsExactly(Map.entry("a", state));
    }

    @Test
    void metadataIsNotMerged() {
        record Stored(int job) implements WorkerMetadata {}
        WorkerReport withMetadata = WorkerReport.NOTHING.withMetadata(Optional.of(new Stored(1)));
        assertThat(new ReportMerger(1).merge(List.of(withMetadata))).isEqualTo(WorkerReport.NOTHING);
        assertThat(new ReportMerger(2)
                        .merge(List.of(withMetadata, withMetadata))
                        .metadata())
                .isEmpty();
    }

    @Test
    void aRequestIsDoneWhenAllRanksHaveSaidSo() {
        ReportMerger merger = new ReportMerger(3);
        Set<String> none = Set.of();
        WorkerReport first = merger.merge(
                List.of(report(Set.of("a"), none), report(Set.of("a", "b"), Set.of("c")), report(none, none)));
        assertThat(first.sent()).isEmpty();
        assertThat(first.received()).isEmpty();
        WorkerReport second =
                merger.merge(List.of(report(none, Set.of("c")), report(none, none), report(Set.of("a"), Set.of("c"))));
        assertThat(second.sent()).containsExactly("a");
        assertThat(second.received()).containsExactly("c");
        // Sent is not received, and a rank that says so twice is one rank.
        WorkerReport third =
                merger.merge(List.of(report(none, Set.of("b")), report(Set.of("b"), none), report(none, none)));
        assertThat(third.sent()).isEmpty();
        WorkerReport fourth =
                merger.merge(List.of(report(Set.of("b"), none), report(none, none), report(Set.of("b"), none)));
        assertThat(fourth.sent()).containsExactly("b");
        // The same id again begins from nothing.
        assertThat(merger.merge(List.of(report(Set.of("a"), none), report(none, none), report(none, none)))
                        .sent())
                .isEmpty();
    }

    @Test
    void invalidBlocksAreTheStepsUnionAndMeasurementsAddUp() {
        ReportMerger merger = new ReportMerger(2);
        Measurement one = Measurement.count("x", 1);
        Measurement two = Measurement.count("x", 2);
        WorkerReport merged = merger.merge(List.of(
                new WorkerReport(Set.of(), Set.of(), Set.of(1, 2), List.of(one)),
                new WorkerReport(Set.of(), Set.of(), Set.of(2, 3), List.of(two))));
        assertThat(merged.invalidBlocks()).containsExactlyInAnyOrder(1, 2, 3);
        assertThat(merged.measurements()).containsExactly(one, two);
        assertThat(merger.merge(List.of(report(Set.of(), Set.of(), 7), WorkerReport.NOTHING))
                        .invalidBlocks())
                .containsExactly(7);
    }
}
