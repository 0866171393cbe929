package baton.cli.doctor;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.doctor.Finding.Level;
import baton.memory.Platform;
import baton.memory.Processor;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Machines made of files. */
class HostResourcesTest {
    private static final Platform LINUX = Platform.of("Linux", "amd64");

    @TempDir
    private Path root;

    @BeforeEach
    void aMachineWithNothingToChange() throws IOException {
        write("proc/cpuinfo", "processor\t: 0\nprocessor\t: 1\n");
        write("proc/meminfo", "MemTotal:       16777216 kB\nMemAvailable:   12582912 kB\n");
        limits("unlimited", "65536");
        write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
        write("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size [advise] never deny force\n");
        write("sys/devices/system/node/node0/cpulist", "0-1\n");
        Files.createDirectories(root.resolve("dev/shm"));
    }

    private void write(String file, String text) throws IOException {
        Path path = root.resolve(file);
        Files.createDirectories(path.getParent());
        Files.writeString(path, text);
    }

    private void limits(String memlock, String files) throws IOException {
        write("proc/self/limits", """
                Limit                     Soft Limit           Hard Limit           Units
                Max open files            %s                 65536                files
                Max locked memory         %s              unlimited              bytes
                """.formatted(files, memlock));
    }

    private Finding finding(String name) {
        return finding(name, 2, Set.of("avx2", "fma"));
    }

    private Finding finding(String name, int processors, Set<String> flags) {
        return new HostResources(new Host(root, Map.of("PATH", "/usr/bin"), processors))
                .findings(new Processor(LINUX, "a processor", flags)).stream()
                        .filter(finding -> finding.name().equals(name))
                        .findFirst()
                        .orElseThrow();
    }

    @Test
    void nothingIsToBeChanged() {
        assertThat(new HostResources(new Host(root, Map.of(), 2))
                        .findings(new Processor(LINUX, "a processor", Set.of("avx2", "fma"))))
                .allSatisfy(finding -> assertThat(finding.advice())
                        .as("%s", finding)
                        .matches(advice -> advice.isEmpty() || finding.name().equals("/dev/shm")));
        assertThat(finding("memory").found()).isEqualTo("16.0 GiB, 12.0 GiB available");
        assertThat(finding("open files limit").found()).isEqualTo("65536");
    }

    @Test
    void aMachineThatTellsNothingIsNoFailure() throws IOException {
        Path empty = Files.createDirectory(root.resolve("empty"));
        assertThat(new HostResources(new Host(empty, Map.of(), 1)).findings(new Processor(LINUX, "unknown", Set.of())))
                .noneMatch(finding -> finding.level() == Level.BROKEN)
                .anyMatch(finding -> finding.found().equals("not told"));
    }

    @Test
    void ranksAreBoundToNodes() throws IOException {
        write("sys/devices/system/node/node1/cpulist", "2-3\n");
        Finding numa = finding("NUMA nodes");
        assertThat(numa.found()).isEqualTo("2, with the cores 0-1 | 2-3");
        assertThat(numa.advice().orElseThrow()).contains("--tensor-parallel-size 2 --cpu-bind '0-1|2-3'");
    }

    @Test
    void coresThatAreHeldBackAreReported() {
        assertThat(finding("cores", 1, Set.of()).found()).contains("1 of the machine's 2");
        assertThat(finding("cores", 1, Set.of()).level()).isEqualTo(Level.ADVICE);
    }

    @Test
    void hugePagesThatAreOffAreToBeTurnedOn() throws IOException {
        write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
        assertThat(finding("huge pages").advice().orElseThrow())
                .contains("echo madvise", "/sys/kernel/mm/transparent_hugepage/enabled");
    }

    @Test
    void lockedMemoryMattersWithRdma() throws IOException {
        limits("8388608", "65536");
        assertThat(finding("memlock limit").level()).isEqualTo(Level.OK);
        write("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
        write("sys/class/infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)\n");
        assertThat(finding("memlock limit").advice().orElseThrow()).contains("LimitMEMLOCK=infinity");
        assertThat(finding("RDMA devices").found()).isEqualTo("mlx5_0 port 1 ACTIVE, 100 Gb/sec (4X EDR)");
        assertThat(finding("RDMA devices").advice().orElseThrow()).contains("ib_uverbs");
        write("dev/infiniband/uverbs0", "");
        assertThat(finding("RDMA devices").level()).isEqualTo(Level.OK);
    }

    @Test
    void fewFilesAndLittleMemoryAreReported() throws IOException {
        limits("unlimited", "1024");
        assertThat(finding("open files limit").advice().orElseThrow()).contains("LimitNOFILE");
        write("sys/fs/cgroup/memory.max", "1073741824\n");
        assertThat(finding("memory").found()).contains("the container's limit is 1.0 GiB");
        assertThat(finding("memory").advice().orElseThrow()).contains("--kv-cache-memory-bytes");
    }

    @Test
    void aProcessorWithoutVectorsIsReported() {
        assertThat(finding("processor", 2, Set.of("sse2")).level()).isEqualTo(Level.ADVICE);
    }

    @ParameterizedTest
    @CsvSource({"2.36, OK", "2.35, OK", "3.0, OK", "2.31, BROKEN", "2.4, BROKEN", "'', BROKEN"})
    void glibcMustBeNewEnough(String version, Level level) {
        Finding finding = Software.glibc(LINUX, Optional.of(version).filter(text -> !text.isEmpty()));
        assertThat(finding.level()).isEqualTo(level);
    }
}
