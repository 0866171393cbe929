package baton.cli;

import static com.tngtech.archunit.lang.syntax.ArchRuleDefinition.classes;
import static com.tngtech.archunit.lang.syntax.ArchRuleDefinition.noClasses;
import static com.tngtech.archunit.lang.syntax.ArchRuleDefinition.noFields;
import static com.tngtech.archunit.library.Architectures.layeredArchitecture;
import static com.tngtech.archunit.library.dependencies.SlicesRuleDefinition.slices;
import static java.util.Map.entry;
import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.backend.CpuBackend;
import baton.engine.model.CpuModels;
import com.tngtech.archunit.base.DescribedPredicate;
import com.tngtech.archunit.core.domain.AccessTarget.CodeUnitAccessTarget;
import com.tngtech.archunit.core.domain.JavaAccess;
import com.tngtech.archunit.core.domain.JavaClass;
import com.tngtech.archunit.core.domain.JavaClasses;
import com.tngtech.archunit.core.domain.JavaConstructor;
import com.tngtech.archunit.core.domain.JavaField;
import com.tngtech.archunit.core.domain.JavaMethodCall;
import com.tngtech.archunit.core.domain.JavaModifier;
import com.tngtech.archunit.core.importer.ClassFileImporter;
import com.tngtech.archunit.core.importer.ImportOption;
import com.tngtech.archunit.lang.ArchCondition;
import com.tngtech.archunit.lang.ConditionEvents;
import com.tngtech.archunit.lang.SimpleConditionEvent;
import io.soabase.recordbuilder.core.RecordBuilderGenerated;
import java.io.File;
import java.io.IOException;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.locks.Condition;
import java.util.function.BiPredicate;
import java.util.function.Predicate;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;
import org.jspecify.annotations.NullMarked;
import org.junit.jupiter.api.Test;

/** Rules for all main code: layers of modules, cycles, waits, clocks, sizes. */
class FloorsTest {
    private static final JavaClasses CODE = new ClassFileImporter()
            .withImportOption(ImportOption.Predefined.DO_NOT_INCLUDE_TESTS)
            // Tests that other modules use are in jars here.
            .withImportOption(location -> !location.contains("-tests.jar"))
            .importPackages("baton");

    /**
     * A method that waits, in its form without parameters: without a deadline.
     *
     * @param type that declares the method, or a subtype of it
     */
    private record Wait(Class<?> type, String method) {
        boolean isCalled(CodeUnitAccessTarget call) {
            return call.getName().equals(method)
                    && call.getRawParameterTypes().isEmpty()
                    && call.getOwner().isAssignableTo(type);
        }
    }

    private static final List<Wait> WAITS = List.of(
            new Wait(CountDownLatch.class, "await"),
            new Wait(CyclicBarrier.class, "await"),
            new Wait(Condition.class, "await"),
            new Wait(Future.class, "get"),
            new Wait(CompletableFuture.class, "join"),
            new Wait(Thread.class, "join"),
            new Wait(BlockingQueue.class, "take"),
            new Wait(Object.class, "wait"),
            new Wait(Semaphore.class, "acquire"),
            new Wait(Process.class, "waitFor"));

    /** Classes with waits without a deadline, and the awaited events. Nested classes are included, in all these lists. */
    private static final Map<String, String> UNTIMED_WAITS = Map.ofEntries(
            entry("baton.cli.Service", "until a signal"),
            entry("baton.cli.UpCommand", "until a signal, or a process ends"),
            entry("baton.engine.local.GenerationCollector", "a request, which the engine ends"),
            entry("baton.engine.local.EngineThread", "an idle engine: until a command comes"),
            entry("baton.engine.model.CpuModels", "computation of this process"),
            entry("baton.connectors.onesided.ArrivalChecksums", "computation of this process"),
            entry("baton.connectors.onesided.TaskGroup", "computation of this process"),
            entry("baton.connectors.onesided.PeerEngine", "a future that is done"),
            entry("baton.connectors.pynccl.PyNcclWorker", "a copy of this process"),
            entry("baton.messages.zeromq.ZeroMqPeerChannel", "futures with a time-out of their own"),
            entry("baton.pipe.LookupProducer", "until an answer is to be sent, or the end"),
            entry("baton.pipe.WirePipe", "until a message comes, or the end"),
            entry("baton.pipe.c10d.LivenessSocket", "a socket that is closed by then"),
            entry("baton.pipe.c10d.NativeCalls", "a native call that is aborted at its deadline"),
            entry("baton.pipe.p2p.P2pEndpoint", "a step of this process"),
            entry("baton.pipe.tcp.TokenListener", "futures that are done"),
            entry("baton.transfer.embedded.EmbeddedAgent", "until a connection ends, or the agent"),
            entry("baton.memory.Gate", "a copy of this process"),
            entry("baton.transfer.nixl.NixlThread", "a thread that ends at once, before memory is freed"));

    /** Methods that give the bytes of a KV pool, which must be the host's then. */
    private static final Set<String> HOST_BYTES = Set.of(
            "baton.kv.KvCache.host",
            "baton.kv.KvCache.block",
            "baton.kv.KvCache.layer",
            "baton.kv.KvMemory.host",
            "baton.kv.KvMemory$Host.host");

    private static final Set<String> KV_MEMORY = Set.of("baton.kv.KvCache", "baton.kv.KvMemory");

    /** Classes that read or write the pool's bytes, and the reason why they need not with a device's pool. */
    private static final Map<String, String> HOST_MEMORY = Map.ofEntries(
            entry("baton.kv.BlockCopy", "a copy by the host, over a staging pool"),
            entry("baton.kv.staging.StagedWorker", "the staging pool itself"),
            entry("baton.connectors.bykey.PoolRanges", "stores take host memory, over a staging pool"),
            entry("baton.connectors.mooncake.WritePlan", "digests by the host; copies blocks of a device"),
            entry("baton.connectors.onesided.BlockChecksums", "digests by the host; a device digests its own"),
            entry("baton.connectors.onesided.RearrangedBlocks", "rearranges by the host; copies blocks of a device"),
            entry("baton.connectors.sglang.SglangPages", "copies by the host, over a staging pool"),
            entry("baton.engine.kernel.KernelCheck", "a check of the processor's kernels"),
            entry("baton.engine.kernel.PagedAttention", "a kernel of the processor"),
            entry("baton.engine.kernel.RowKernels", "a kernel of the processor"),
            entry("baton.engine.kernel.TileDecodeAttention", "a kernel of the processor"),
            entry("baton.engine.kernel.VectorDecodeAttention", "a kernel of the processor"),
            entry("baton.engine.model.LoadedKv", "part of a forward pass of the processor"),
            entry("baton.engine.model.SdpaAttention", "a kernel of the processor"),
            entry("baton.engine.model.TorchKernels", "a kernel of the processor"),
            entry("baton.testkit.RefusingMemory", "a device's own bytes, for agents of tests"),
            entry("baton.transfer.Region", "the host's memory, which agents ask for"),
            entry(
                    "baton.transfer.embedded.EmbeddedAgent",
                    "asks whether host memory is confined; of a device it copies within it"),
            entry("baton.transfer.embedded.MemoryRegistry", "of a device it has the address only"),
            entry("baton.transfer.mooncake.MooncakeAgent", "refuses memory of a device"));

    /** Modules that are given their clock. */
    private static final List<String> CLOCKED = List.of(
            "connectors",
            "pipe",
            "transfer",
            "router",
            "trace",
            "engine",
            "cuda",
            "server",
            "store",
            "kvserver",
            "cluster");

    private static final Set<String> CLOCKS =
            Set.of("java.lang.System.nanoTime", "java.lang.System.currentTimeMillis", "java.time.Instant.now");

    /** Classes of these modules that read the system's clock themselves. */
    private static final Map<String, String> OWN_CLOCKS = Map.of(
            "baton.engine.kernel.Bf16Rate", "a measurement of the processor",
            "baton.engine.kernel.ThreadTeam", "the time for which a thread spins",
            "baton.engine.model.MachineLimits", "a measurement of the processor",
            "baton.engine.model.OperatorTimes", "a measurement of the processor",
            "baton.store.FileOperations", "the clock that gives files their times");

    /** Fields of {@code kv_transfer_params}, which are the connectors'. */
    private static final Pattern CONNECTOR_FIELDS = Pattern.compile("do_remote_|\\bremote_[a-z]|\"transfer_id\\b");

    private static final Pattern LOCKED = Pattern.compile("\\bsynchronized (\\(|\\w)");

    /** Classes with a {@code synchronized} that guards something else than a field of the class. */
    private static final Map<String, String> LOCKS_OF_NO_FIELD = Map.of(
            "baton.bench.ConnectorBench", "an iterator that threads share",
            "baton.cluster.LocalCluster", "a file that is written once",
            "baton.kv.TemporaryDirectory", "a directory that is removed once",
            "baton.kvserver.KeyBatch", "several calls of a cache, under its lock",
            "baton.messages.zeromq.BoundSocket", "connections that are counted and added at once",
            "baton.messages.zeromq.Zmtp", "a stream, to which a message is written at a time",
            "baton.pipe.nccl.NcclWire", "a wire, to which a message is written at a time",
            "baton.transfer.embedded.Initiator", "several calls of the registry of memory, under its lock",
            "baton.transfer.embedded.Responder", "several calls of the registry of memory, under its lock",
            "baton.transfer.mooncake.MooncakeAgent", "publications of registered memory, one after the other");

    private static final int MOST_PARAMETERS = 7;

    private static final Map<String, String> LONG_CONSTRUCTORS = Map.of();

    /** Simple names that several classes have, and why each of them cannot have another. */
    private static final Map<String, String> SHARED_NAMES = Map.of();

    private static final int MOST_LINES = 700;

    private static final Map<String, String> LONG_FILES = Map.of();

    @Test
    void everyModuleIsChecked() {
        for (String module : List.of(
                "kv",
                "trace",
                "jinja",
                "grammar",
                "memory",
                "messages",
                "pipe",
                "store",
                "kvserver",
                "transfer",
                "connectors",
                "engine",
                "cuda",
                "server",
                "router",
                "cluster",
                "bench",
                "cli")) {
            assertThat(CODE.stream().anyMatch(type -> type.getPackageName().startsWith("baton." + module)))
                    .as(module)
                    .isTrue();
        }
    }

    @Test
    void aModuleUsesOnlyModulesBelowIt() {
        layeredArchitecture()
                .consideringOnlyDependenciesInAnyPackage("baton..")
                .ensureAllClassesAreContainedInArchitecture()
                .layer("cli")
                .definedBy("baton.cli..")
                .layer("server")
                .definedBy("baton.server..")
                .layer("router")
                .definedBy("baton.router..")
                .layer("bench")
                .definedBy("baton.bench..")
                .layer("cluster")
                .definedBy("baton.cluster..")
                .layer("cuda")
                .definedBy("baton.cuda..")
                .layer("engine")
                .definedBy("baton.engine..")
                .layer("connectors")
                .definedBy("baton.connectors..")
                .layer("store")
                .definedBy("baton.store..")
                .layer("kvserver")
                .definedBy("baton.kvserver..")
                .layer("transfer")
                .definedBy("baton.transfer..")
                .layer("pipe")
                .definedBy("baton.pipe..")
                .layer("messages")
                .definedBy("baton.messages..")
                .layer("memory")
                .definedBy("baton.memory..")
                .layer("jinja")
                .definedBy("baton.jinja..")
                .layer("grammar")
                .definedBy("baton.grammar..")
                .layer("trace")
                .definedBy("baton.trace..")
                .layer("kv")
                .definedBy("baton.kv..")
                .optionalLayer("testkit")
                .definedBy("baton.testkit..")
                .whereLayer("cli")
                .mayNotBeAccessedByAnyLayer()
                .whereLayer("server")
                .mayOnlyBeAccessedByLayers("cli")
                .whereLayer("router")
                .mayOnlyBeAccessedByLayers("cli")
                .whereLayer("bench")
                .mayOnlyBeAccessedByLayers("cli")
                .whereLayer("cluster")
                .mayOnlyBeAccessedByLayers("bench", "cli")
                // The router speaks HTTP, so that it can front other servers too.
                .whereLayer("cuda")
                .mayOnlyBeAccessedByLayers("bench", "cli")
                .whereLayer("engine")
                .mayOnlyBeAccessedByLayers("cuda", "server", "bench", "cli")
                // The engine finds connectors by name and never names one.
                .whereLayer("connectors")
                .mayNotBeAccessedByAnyLayer()
                .whereLayer("store")
                .mayOnlyBeAccessedByLayers("connectors", "kvserver", "bench", "cli", "testkit")
                .whereLayer("kvserver")
                .mayOnlyBeAccessedByLayers("cli")
                .whereLayer("jinja")
                .mayOnlyBeAccessedByLayers("engine")
                .whereLayer("grammar")
                .mayOnlyBeAccessedByLayers("engine", "server", "bench", "cli")
                .whereLayer("transfer")
                .mayOnlyBeAccessedByLayers("connectors", "engine", "bench", "cli", "testkit")
                .whereLayer("pipe")
                .mayOnlyBeAccessedByLayers("connectors", "bench", "cli", "testkit")
                .whereLayer("messages")
                .mayOnlyBeAccessedByLayers(
                        "pipe", "transfer", "store", "kvserver", "connectors", "router", "bench", "cli", "testkit")
                .whereLayer("trace")
                .mayOnlyBeAccessedByLayers("server", "router", "cli")
                .whereLayer("memory")
                .mayOnlyBeAccessedByLayers(
                        "pipe",
                        "transfer",
                        "store",
                        "kvserver",
                        "connectors",
                        "engine",
                        "cuda",
                        "bench",
                        "cli",
                        "testkit")
                .whereLayer("testkit")
                .mayNotBeAccessedByAnyLayer()
                .check(CODE);
    }

    /** The processes of a cluster are started by command lines, so that any program can be one. */
    @Test
    void clusterUsesTheVocabularyOnly() {
        noClasses()
                .that()
                .resideInAPackage("baton.cluster..")
                .should()
                .dependOnClassesThat(new DescribedPredicate<>("are of other modules than kv") {
                    @Override
                    public boolean test(JavaClass type) {
                        String name = type.getPackageName();
                        return name.startsWith("baton.")
                                && !name.equals("baton.cluster")
                                && !name.startsWith("baton.kv");
                    }
                })
                .check(CODE);
    }

    @Test
    void everyWaitHasADeadline() {
        assertOnly(
                UNTIMED_WAITS,
                accesses(access -> access.getTarget() instanceof CodeUnitAccessTarget call
                        && WAITS.stream().anyMatch(wait -> wait.isCalled(call))));
    }

    /** Code that can be simulated under a virtual clock reads the clock that it is given. */
    @Test
    void noClockIsReadDirectly() {
        assertOnly(
                OWN_CLOCKS,
                accesses(access -> access instanceof JavaMethodCall
                        && CLOCKED.stream()
                                .anyMatch(module ->
                                        access.getOriginOwner().getPackageName().startsWith("baton." + module))
                        && CLOCKS.contains(access.getTargetOwner().getName() + "."
                                + access.getTarget().getName())));
    }

    @Test
    void constructorsHaveAtMostSevenParameters() {
        Map<String, List<String>> found = new TreeMap<>();
        for (JavaClass type : CODE) {
            // Captured variables of local classes are parameters, too.
            if (type.isRecord()
                    || type.isEnum()
                    || type.isLocalClass()
                    || type.isAnonymousClass()
                    || type.isAnnotatedWith(RecordBuilderGenerated.class)) {
                continue;
            }
            for (JavaConstructor constructor : type.getConstructors()) {
                if (constructor.getRawParameterTypes().size() > MOST_PARAMETERS) {
                    add(found, type, constructor.getFullName());
                }
            }
        }
        assertOnly(LONG_CONSTRUCTORS, found);
    }

    /** A name has one meaning in the whole code. */
    @Test
    void simpleNamesOfTopLevelClassesAreUnique() {
        Map<String, List<String>> found = new TreeMap<>();
        for (JavaClass type : CODE) {
            if (type.isTopLevelClass() && !type.getSimpleName().equals("package-info")) {
                found.computeIfAbsent(type.getSimpleName(), _ -> new ArrayList<>())
                        .add(type.getName());
            }
        }
        found.values().removeIf(types -> types.size() == 1);
        assertOnly(SHARED_NAMES, found);
    }

    @Test
    void filesHaveAtMostSevenHundredLines() throws IOException {
        assertOnly(LONG_FILES, sources((_, lines) -> lines.size() > MOST_LINES));
    }

    /** The engine asks the connector for the meaning of a request's parameters. */
    @Test
    void theEngineReadsNoFieldOfAConnector() throws IOException {
        assertOnly(
                Map.of(),
                sources((type, lines) ->
                        type.startsWith("baton.engine.") && lines.stream().anyMatch(CONNECTOR_FIELDS.asPredicate())));
    }

    /** Error Prone checks {@code @GuardedBy} in the profile {@code checks}. */
    @Test
    void fieldsThatALockGuardsSaySo() throws IOException {
        assertOnly(
                LOCKS_OF_NO_FIELD,
                sources((type, lines) -> !type.startsWith("baton.router.")
                        && !type.startsWith("baton.connectors.")
                        && lines.stream().anyMatch(LOCKED.asPredicate())
                        && lines.stream().noneMatch(line -> line.contains("@GuardedBy("))));
    }

    /** Source files of main code that match, by the top-level class in them, with their numbers of lines. */
    private static Map<String, List<String>> sources(BiPredicate<String, List<String>> matching) throws IOException {
        Map<String, List<String>> found = new TreeMap<>();
        List<Path> sources;
        try (DirectoryStream<Path> modules = Files.newDirectoryStream(Program.ROOT)) {
            sources = StreamSupport.stream(modules.spliterator(), false)
                    .map(module -> module.resolve("src/main/java"))
                    .filter(Files::isDirectory)
                    .toList();
        }
        assertThat(sources).hasSizeGreaterThan(10);
        for (Path source : sources) {
            try (Stream<Path> files = Files.walk(source)) {
                for (Path file :
                        files.filter(each -> each.toString().endsWith(".java")).toList()) {
                    List<String> lines = Files.readAllLines(file);
                    String type = source.relativize(file)
                            .toString()
                            .replace(".java", "")
                            .replace(File.separatorChar, '.');
                    if (matching.test(type, lines)) {
                        found.put(type, List.of(lines.size() + " lines"));
                    }
                }
            }
        }
        return found;
    }

    /** Accesses by main code that match, by the top-level class that they are in. */
    private static Map<String, List<String>> accesses(Predicate<JavaAccess<?>> matching) {
        Map<String, List<String>> found = new TreeMap<>();
        for (JavaClass type : CODE) {
            for (JavaAccess<?> access : type.getAccessesFromSelf()) {
                if (matching.test(access)) {
                    add(found, type, access.getDescription());
                }
            }
        }
        return found;
    }

    private static void add(Map<String, List<String>> found, JavaClass type, String description) {
        // The class file's name of a nested class begins with that of its top-level class.
        String name = type.getName();
        int nested = name.indexOf('$');
        found.computeIfAbsent(nested < 0 ? name : name.substring(0, nested), _ -> new ArrayList<>())
                .add(description);
    }

    /** Exactly the listed classes break the rule: an entry that is no longer needed is to be removed. */
    private static void assertOnly(Map<String, String> reasons, Map<String, List<String>> found) {
        assertThat(found.keySet())
                .as(() -> found.entrySet().stream().map(Object::toString).collect(Collectors.joining("\n")))
                .isEqualTo(reasons.keySet());
    }

    @Test
    void onlyTheModelPackageAndTheC10dWireUseLibTorch() {
        noClasses()
                .that()
                .resideOutsideOfPackages("baton.engine.model..", "baton.pipe.c10d..")
                .should()
                .dependOnClassesThat()
                .resideInAPackage("org.bytedeco..")
                .check(CODE);
        // Whatever else of the package is loaded does without LibTorch's jars.
        noClasses()
                .that()
                .resideInAPackage("baton.engine.model..")
                .and()
                .haveNameNotMatching(
                        "baton\\.engine\\.model\\.(LibTorch|Torch(Kernels|Linear)|SdpaAttention|OneDnn|Blas|MachineLimits)([$].*)?")
                .should()
                .dependOnClassesThat()
                .resideInAPackage("org.bytedeco..")
                .check(CODE);
    }

    /** Engines, benches and servers get their backend from {@code ModelBackends}. */
    @Test
    void noClassNamesABackendOfComputation() {
        noClasses()
                .that()
                .resideOutsideOfPackages("baton.engine.model..", "baton.engine.backend..")
                .should()
                .dependOnClassesThat()
                .belongToAnyOf(CpuModels.class, CpuBackend.class)
                .check(CODE);
    }

    /** Over a device's pool these classes do not run, or run over a staging pool. */
    @Test
    void theListedClassesReadOrWriteThePoolsBytes() {
        assertOnly(
                HOST_MEMORY,
                accesses(access -> access.getTarget() instanceof CodeUnitAccessTarget
                        && KV_MEMORY.stream().noneMatch(access.getOriginOwner().getName()::startsWith)
                        && HOST_BYTES.contains(access.getTargetOwner().getName() + "."
                                + access.getTarget().getName())));
    }

    @Test
    void connectorsUseNeitherSocketsNorFilesNorNativeLibraries() {
        noClasses()
                .that()
                .resideInAPackage("baton.connectors..")
                .should()
                .dependOnClassesThat(in("java.net", "java.nio.channels", "java.nio.file")
                        .and(DescribedPredicate.not(named("java.nio.file.Path"))))
                .orShould()
                .dependOnClassesThat(named("java.lang.foreign.Linker", "java.lang.foreign.SymbolLookup"))
                .check(CODE);
    }

    @Test
    void nothingOnAWireIsJavaSerialization() {
        noClasses()
                .should()
                .dependOnClassesThat()
                .belongToAnyOf(ObjectInputStream.class, ObjectOutputStream.class)
                .check(CODE);
    }

    @Test
    void noStateIsStatic() {
        noFields()
                .that()
                .areDeclaredInClassesThat()
                .resideInAPackage("baton..")
                .should(beMutableStatics())
                .check(CODE);
    }

    @Test
    void packagesHaveNoCycles() {
        slices().matching("baton.(**)").should().beFreeOfCycles().check(CODE);
    }

    @Test
    void everyPackageIsNullMarked() {
        classes()
                .that(new DescribedPredicate<JavaClass>("are top level") {
                    @Override
                    public boolean test(JavaClass type) {
                        return type.isTopLevelClass() && !type.getSimpleName().equals("package-info");
                    }
                })
                .should(new ArchCondition<JavaClass>("be in a package that is @NullMarked") {
                    @Override
                    public void check(JavaClass type, ConditionEvents events) {
                        boolean marked = type.getPackage()
                                .tryGetPackageInfo()
                                .map(info -> info.isAnnotatedWith(NullMarked.class))
                                .orElse(false);
                        events.add(
                                new SimpleConditionEvent(type, marked, type.getPackageName() + " is not @NullMarked"));
                    }
                })
                .check(CODE);
    }

    private static DescribedPredicate<JavaClass> in(String... packages) {
        return new DescribedPredicate<>("are in " + List.of(packages)) {
            @Override
            public boolean test(JavaClass type) {
                return List.of(packages).contains(type.getPackageName());
            }
        };
    }

    private static DescribedPredicate<JavaClass> named(String... names) {
        return new DescribedPredicate<>("are " + List.of(names)) {
            @Override
            public boolean test(JavaClass type) {
                return List.of(names).contains(type.getName());
            }
        };
    }

    private static ArchCondition<JavaField> beMutableStatics() {
        return new ArchCondition<>("be static and not final") {
            @Override
            public void check(JavaField field, ConditionEvents events) {
                boolean mutable = field.getModifiers().contains(JavaModifier.STATIC)
                        && !field.getModifiers().contains(JavaModifier.FINAL);
                events.add(new SimpleConditionEvent(field, mutable, field.getFullName()));
            }
        };
    }
}
