package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.SkipReport.Skip;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.FileTime;
import java.time.Instant;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class SkipReportTest {
    private static final Instant START = Instant.parse("2026-01-01T00:00:00Z");

    @TempDir
    Path root;

    @Test
    void assumptionsAndConditionsAreReadFromTheReportsOfThisBuild() throws IOException {
        report("pipe", "baton.pipe.PipeTest", START, """
                <testcase name="one" classname="baton.pipe.PipeTest" time="0.0">
                  <skipped type="org.opentest4j.TestAbortedException"><![CDATA[org.opentest4j.TestAbortedException: Assumption failed: there is no GPU; two are needed
                \tat org.junit.jupiter.api.Assumptions.throwAssumptionFailed(Assumptions.java:340)
                ]]></skipped>
                </testcase>
                <testcase name="two" classname="baton.pipe.PipeTest" time="0.0"><skipped message="the processor lacks amx_bf16"/></testcase>
                <testcase name="three" classname="baton.pipe.PipeTest" time="0.1"/>
                """);
        report("store", "baton.store.OldTest", START.minusSeconds(1), """
                <testcase name="one" classname="baton.store.OldTest" time="0.0"><skipped message="an earlier build"/></testcase>
                """);
        assertThat(SkipReport.skips(root, START))
                .containsExactly(
                        new Skip("pipe", "PipeTest", "there is no GPU; two are needed"),
                        new Skip("pipe", "PipeTest", "the processor lacks amx_bf16"));
    }

    @Test
    void testsAreListedByTheirReason() {
        String text = SkipReport.text(List.of(
                new Skip("store", "RedisTest", "redis-server is not on the PATH"),
                new Skip("store", "RedisTest", "redis-server is not on the PATH"),
                new Skip("bench", "StoreTest", "redis-server is not on the PATH"),
                new Skip("store", "MemoryTest", "does not apply: values end with their store"),
                new Skip("engine", "TileTest", "the processor lacks one of amx_tile, amx_bf16")));
        assertThat(text).isEqualToNormalizingNewlines("""
                Skipped: 4 tests. Missing here:
                - redis-server is not on the PATH
                    bench StoreTest, store RedisTest (2)
                - the processor lacks one of amx_tile, amx_bf16
                    engine TileTest
                1 more do not apply to their store, agent, connector or processor.
                Tests tagged thorough, peers, fleets and soak run in the profiles of these names only.
                """);
    }

    private void report(String module, String name, Instant modified, String cases) throws IOException {
        Path directory = Files.createDirectories(root.resolve(module).resolve("target/surefire-reports"));
        Path file = Files.writeString(
                directory.resolve("TEST-" + name + ".xml"),
                "<testsuite name=\"" + name + "\">" + cases + "</testsuite>");
        Files.setLastModifiedTime(file, FileTime.from(modified));
    }
}
