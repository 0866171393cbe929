package baton.bench.gpu;

import baton.cluster.JavaCommand;
import baton.cuda.driver.Driver;
import baton.cuda.driver.Gpu;
import baton.cuda.driver.NativeDriver;
import baton.cuda.driver.NativeDriver.Search;
import baton.kv.TemporaryDirectory;
import java.io.File;
import java.io.IOException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.ServiceLoader;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.Supplier;
import java.util.stream.Stream;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/**
 * Runs {@link GpuStep}s, each in a process of its own with a deadline, and collects their results: a failure of one does not hide the
 * others.
 *
 * @param model checkpoint of tiny-ledger, with its golden.json
 * @param tests directory with the jars of the module cuda's tests and of JUnit; empty: the step is left out
 * @param simulated whether the simulated device of the module cuda's tests takes the GPU's place, with the smallest sizes; steps that need
 *     more are left out
 * @param progress receives a line for each step
 */
public record GpuCheck(Path model, Optional<Path> tests, boolean simulated, Consumer<String> progress) {
    private static final String NONE = "-";
    private static final JsonMapper JSON = JsonMapper.builder().build();

    /** Field of the report with the reason for which a step did not run. */
    static final String LEFT_OUT = "left_out";

    /** @param report gets an object for each step; saved after each by {@code save} */
    public void run(List<GpuStep> steps, ObjectNode report, Save save) throws IOException, InterruptedException {
        for (GpuStep step : steps) {
            progress.accept(step.label());
            ObjectNode result = inProcess(step, "");
            report.set(step.label(), result);
            if (result.has("error")) {
                progress.accept("  failed: " + result.path("error").asString());
            }
            save.save(report);
        }
    }

    /** Writes the report as far as it is. */
    public interface Save {
        void save(ObjectNode report) throws IOException;
    }

    /** Runs a step in another process. */
    ObjectNode inProcess(GpuStep step, String argument) throws IOException, InterruptedException {
        long begun = System.nanoTime();
        try (TemporaryDirectory directory = TemporaryDirectory.create("baton-gpu")) {
            Path out = directory.path().resolve("result.json");
            Path log = directory.path().resolve("log");
            JavaCommand java = JavaCommand.likeThisProcess(GpuCheck.class.getName());
            if (simulated && tests.isPresent()) {
                java = java.withOptions(List.of(
                        "-cp", tests.get().resolve("*") + File.pathSeparator + System.getProperty("java.class.path")));
            }
            List<String> command = java.with(List.of(
                    step.name(),
                    out.toString(),
                    model.toString(),
                    tests.map(Path::toString).orElse(NONE),
                    Boolean.toString(simulated),
                    argument));
            String end = outcome(command, log, step);
            ObjectNode result = Files.exists(out)
                    ? (ObjectNode) JSON.readTree(Files.readString(out))
                    : JsonNodeFactory.instance.objectNode();
            if (!end.isEmpty()) {
                if (!result.has("error")) {
                    result.put("error", end);
                }
                result.put("log", lastLines(log));
            }
            return result.put("seconds", (System.nanoTime() - begun) * 1e-9);
        }
    }

    /** Why a process failed; empty if it did not. */
    private static String outcome(List<String> command, Path log, GpuStep step)
            throws IOException, InterruptedException {
        Process process = new ProcessBuilder(command)
                .redirectErrorStream(true)
                .redirectOutput(log.toFile())
                .start();
        try {
            if (!process.waitFor(step.timeout().toMillis(), TimeUnit.MILLISECONDS)) {
                return "not done after " + step.timeout().toSeconds() + " s";
            }
            return process.exitValue() == 0 ? "" : "the process ended with status " + process.exitValue();
        } finally {
            process.descendants().forEach(ProcessHandle::destroyForcibly);
            process.destroyForcibly();
        }
    }

    /** The last part of a file. */
    static String lastLines(Path file) throws IOException {
        if (!Files.exists(file)) {
            return "";
        }
        try (Stream<String> lines = Files.lines(file)) {
            List<String> all = lines.toList();
            return String.join("\n", all.subList(Math.max(0, all.size() - 60), all.size()));
        }
    }

    /** A process that runs one step: its name, file of results, model, directory of tests, whether it is simulated, an argument. */
    public static void main(String[] args) throws IOException {
        GpuStep step = GpuStep.valueOf(args[0]);
        Path out = Path.of(args[1]);
        GpuCheck check = new GpuCheck(
                Path.of(args[2]),
                Optional.of(args[3]).filter(tests -> !tests.equals(NONE)).map(Path::of),
                Boolean.parseBoolean(args[4]),
                System.err::println);
        ObjectNode json = JsonNodeFactory.instance.objectNode();
        Runtime.getRuntime().halt(check.runHere(step, args[5], json, out) ? 0 : 1);
    }

    private boolean runHere(GpuStep step, String argument, ObjectNode json, Path out) throws IOException {
        try {
            if (argument.isEmpty()) {
                step.run(this, json);
            } else {
                DriverSteps.readPeer(this, argument, json);
            }
            return true;
        } catch (Exception | LinkageError | AssertionError | OutOfMemoryError e) {
            StringWriter trace = new StringWriter();
            e.printStackTrace(new PrintWriter(trace));
            json.put("error", e.toString()).put("trace", trace.toString());
            return false;
        } finally {
            Files.writeString(out, json.toString());
        }
    }

    /** The first device. */
    Gpu gpu() {
        return gpu(0);
    }

    Gpu gpu(int ordinal) {
        return new Gpu(driver(), ordinal);
    }

    /** The driver that is found, the same one each time. */
    Supplier<Search> search() {
        Search found = simulated ? new Search.Found(simulator()) : NativeDriver.find();
        return () -> found;
    }

    private static Driver simulator() {
        return ServiceLoader.load(Driver.class)
                .findFirst()
                .orElseThrow(() -> new IllegalStateException("the simulated device is not among the tests' jars"));
    }

    private Driver driver() {
        return switch (search().get()) {
            case Search.Found(Driver driver) -> driver;
            case Search.Absent(String why) -> throw new IllegalStateException(why + "; " + NativeDriver.REMEDY);
        };
    }

    /** The names of steps, as they are parsed. */
    public static List<GpuStep> parse(List<String> names) {
        List<GpuStep> steps = new ArrayList<>();
        for (GpuStep step : GpuStep.values()) {
            if (names.isEmpty() || names.contains(step.label())) {
                steps.add(step);
            }
        }
        return steps;
    }
}
