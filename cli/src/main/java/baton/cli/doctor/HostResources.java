package baton.cli.doctor;

import baton.memory.Processor;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/** The resources of the machine and its operating system. */
record HostResources(Host host) {
    /** Instruction sets that a choice of kernels, of copies or of digests depends on. */
    private static final List<String> INSTRUCTION_SETS = List.of(
            "avx2",
            "fma",
            "avx512f",
            "avx512bw",
            "avx512vl",
            "avx512_vnni",
            "avx512_bf16",
            "vpclmulqdq",
            "amx_tile",
            "amx_bf16",
            "amx_int8");

    private static final long GIB = 1L << 30;

    /** The embedded model with its default KV cache and the JVM's heap needs about this. */
    private static final long LITTLE_MEMORY = 3 * GIB;

    private static final long LITTLE_SHARED_MEMORY = GIB;
    private static final int FEW_FILES = 4096;
    private static final String HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/";
    private static final String NODES = "/sys/devices/system/node";
    private static final String RDMA = "/sys/class/infiniband";

    List<Finding> findings(Processor processor) {
        List<Finding> all = new ArrayList<>();
        all.add(processor(processor));
        all.add(cores());
        all.add(numa());
        all.add(memory());
        all.add(hugePages());
        all.add(sharedHugePages());
        all.add(lockedMemory());
        all.add(openFiles());
        all.add(sharedMemory());
        all.add(rdma());
        all.add(gpu());
        all.add(ucx());
        all.add(redis());
        return all;
    }

    private static Finding processor(Processor processor) {
        String sets = INSTRUCTION_SETS.stream().filter(processor::has).collect(Collectors.joining(" "));
        String found =
                "%s, %s, %s".formatted(processor.platform(), processor.name(), sets.isEmpty() ? "no AVX2" : sets);
        return processor.has("avx2", "fma")
                ? Finding.ok("processor", found)
                : Finding.advice(
                        "processor",
                        found,
                        "take a processor with AVX2 and FMA or better; here LibTorch's operators compute");
    }

    private Finding cores() {
        long machine = host.lines("/proc/cpuinfo").stream()
                .filter(line -> line.startsWith("processor"))
                .count();
        String found = machine > host.processors()
                ? "%d of the machine's %d, by affinity or a container's limit".formatted(host.processors(), machine)
                : Integer.toString(host.processors());
        return host.processors() > 1
                ? Finding.ok("cores", found)
                : Finding.advice(
                        "cores",
                        found,
                        "give this process 2 cores or more (--cpus, resources.limits.cpu): one is shared by computing and answering");
    }

    private Finding numa() {
        List<String> nodes = host.names(NODES, "node[0-9]*");
        if (nodes.size() < 2) {
            return Finding.ok("NUMA nodes", nodes.isEmpty() ? "not told" : "1");
        }
        List<String> cores = nodes.stream()
                .map(node -> host.text(NODES + "/" + node + "/cpulist").orElse("?"))
                .toList();
        return Finding.advice(
                "NUMA nodes",
                "%d, with the cores %s".formatted(nodes.size(), String.join(" | ", cores)),
                "start one instance for each node (numactl --cpunodebind=0 --membind=0 ./baton serve ...), or ranks of one with"
                        + " --tensor-parallel-size %d --cpu-bind '%s'"
                                .formatted(nodes.size(), String.join("|", cores)));
    }

    /** Bytes of memory that a new process can have; empty if the machine does not say. */
    OptionalLong availableMemory() {
        return meminfo("MemAvailable").stream()
                .map(bytes -> Math.min(bytes, memoryLimit().orElse(Long.MAX_VALUE)))
                .findFirst();
    }

    private OptionalLong memoryLimit() {
        return number(host.text("/sys/fs/cgroup/memory.max"));
    }

    private Finding memory() {
        OptionalLong total = meminfo("MemTotal");
        OptionalLong available = meminfo("MemAvailable");
        if (total.isEmpty() || available.isEmpty()) {
            return Finding.ok("memory", "not told");
        }
        OptionalLong limit = memoryLimit();
        String found = "%s, %s available%s"
                .formatted(
                        Finding.size(total.getAsLong()),
                        Finding.size(available.getAsLong()),
                        limit.isPresent() ? ", the container's limit is " + Finding.size(limit.getAsLong()) : "");
        return availableMemory().orElse(0) >= LITTLE_MEMORY
                ? Finding.ok("memory", found)
                : Finding.advice(
                        "memory",
                        found,
                        "start with --kv-cache-memory-bytes 256M and BATON_JAVA_OPTS=-Xmx512m, or add memory");
    }

    private OptionalLong meminfo(String field) {
        return host.lines("/proc/meminfo").stream()
                .filter(line -> line.startsWith(field + ":"))
                .map(line -> number(Optional.of(line.replaceAll("[^0-9]", ""))))
                .findFirst()
                .map(kib -> kib.isPresent() ? OptionalLong.of(kib.getAsLong() << 10) : kib)
                .orElse(OptionalLong.empty());
    }

    private static OptionalLong number(Optional<String> text) {
        try {
            return text.isPresent() ? OptionalLong.of(Long.parseLong(text.get())) : OptionalLong.empty();
        } catch (NumberFormatException _) {
            // Such as "max".
            return OptionalLong.empty();
        }
    }

    private Finding hugePages() {
        String found = chosen(host.text(HUGE_PAGES + "enabled"));
        return found.equals("never")
                ? Finding.advice(
                        "huge pages",
                        "transparent ones: never",
                        "echo madvise | sudo tee %senabled: weights and KV caches ask for them".formatted(HUGE_PAGES))
                : Finding.ok("huge pages", "transparent ones: " + found);
    }

    private Finding sharedHugePages() {
        String found = chosen(host.text(HUGE_PAGES + "shmem_enabled"));
        return found.equals("never") || found.equals("deny")
                ? Finding.advice(
                        "huge pages of shared memory",
                        found,
                        "echo advise | sudo tee %sshmem_enabled: KV caches that processes of this host map are shared memory"
                                .formatted(HUGE_PAGES))
                : Finding.ok("huge pages of shared memory", found);
    }

    /** The word in brackets, as in {@code always [madvise] never}. */
    private static String chosen(Optional<String> text) {
        return text.filter(words -> words.contains("[") && words.indexOf(']') > words.indexOf('['))
                .map(words -> words.substring(words.indexOf('[') + 1, words.indexOf(']')))
                .orElse("not told");
    }

    private Finding lockedMemory() {
        String limit = limit("Max locked memory");
        OptionalLong bytes = number(Optional.of(limit));
        String found = bytes.isPresent() ? Finding.size(bytes.getAsLong()) : limit;
        return bytes.isPresent() && !devices().isEmpty()
                ? Finding.advice(
                        "memlock limit",
                        found,
                        "ulimit -l unlimited (systemd: LimitMEMLOCK=infinity): a KV cache registered for RDMA is locked")
                : Finding.ok("memlock limit", found);
    }

    private Finding openFiles() {
        String limit = limit("Max open files");
        OptionalLong files = number(Optional.of(limit));
        return files.isPresent() && files.getAsLong() < FEW_FILES
                ? Finding.advice(
                        "open files limit",
                        limit,
                        "ulimit -n 65536 (systemd: LimitNOFILE=65536): each connection of a client or a peer is one")
                : Finding.ok("open files limit", limit);
    }

    /** The soft limit, as the JVM has set it. */
    private String limit(String name) {
        return host.lines("/proc/self/limits").stream()
                .filter(line -> line.startsWith(name))
                .map(line -> line.substring(name.length()).strip().split("\\s+")[0])
                .findFirst()
                .orElse("not told");
    }

    private Finding sharedMemory() {
        Path directory = host.at("/dev/shm");
        try {
            long bytes = Files.getFileStore(directory).getTotalSpace();
            return bytes >= LITTLE_SHARED_MEMORY
                    ? Finding.ok("/dev/shm", Finding.size(bytes))
                    : Finding.advice(
                            "/dev/shm",
                            Finding.size(bytes),
                            "sudo mount -o remount,size=8G /dev/shm (container: --shm-size 8g, or an emptyDir with medium: Memory),"
                                    + " if memory_share_name is used");
        } catch (IOException _) {
            return Finding.advice(
                    "/dev/shm", "none", "sudo mount -t tmpfs tmpfs /dev/shm, if memory_share_name is used");
        }
    }

    private List<String> devices() {
        return host.names(RDMA, "*");
    }

    private Finding rdma() {
        List<String> found = new ArrayList<>();
        boolean active = false;
        for (String device : devices()) {
            for (String port : host.names(RDMA + "/" + device + "/ports", "*")) {
                String at = RDMA + "/" + device + "/ports/" + port;
                String state = host.text(at + "/state").orElse("?").replaceFirst("^\\d+: *", "");
                active |= state.equals("ACTIVE");
                found.add("%s port %s %s, %s"
                        .formatted(device, port, state, host.text(at + "/rate").orElse("?")));
            }
        }
        if (devices().isEmpty()) {
            return Finding.ok("RDMA devices", "none; between hosts bytes go over TCP");
        }
        String all = found.isEmpty() ? String.join(", ", devices()) + " without a port" : String.join("; ", found);
        if (!active) {
            return Finding.advice(
                    "RDMA devices", all, "sudo ip link set DEVICE up, and look at ibv_devinfo: no port is active");
        }
        return host.names("/dev/infiniband", "uverbs*").isEmpty()
                ? Finding.advice(
                        "RDMA devices",
                        all,
                        "sudo modprobe ib_uverbs, in a container pass /dev/infiniband on: programs cannot reach the devices")
                : Finding.ok("RDMA devices", all);
    }

    private Finding gpu() {
        return Finding.ok(
                "NVIDIA driver",
                host.lines("/proc/driver/nvidia/version").stream().findFirst().orElse("none, and none is needed"));
    }

    private Finding ucx() {
        return Finding.ok(
                "UCX",
                host.library("libucp.so.0")
                        .map(Path::toString)
                        .orElse("no libucp.so.0 of the system; NIXL's wheels bring their own"));
    }

    private Finding redis() {
        return Finding.ok(
                "redis-server",
                Stream.of("redis-server", "valkey-server")
                        .flatMap(name -> host.program(name).stream())
                        .findFirst()
                        .map(Path::toString)
                        .orElse("not on the PATH; needed only to run a shared tier here, or Baton's tests of it"));
    }
}
