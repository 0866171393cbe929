package baton.cuda;

import static org.junit.platform.engine.discovery.ClassNameFilter.includeClassNamePatterns;
import static org.junit.platform.engine.discovery.DiscoverySelectors.selectPackage;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.platform.engine.TestExecutionResult;
import org.junit.platform.launcher.TestExecutionListener;
import org.junit.platform.launcher.TestIdentifier;
import org.junit.platform.launcher.core.LauncherDiscoveryRequestBuilder;
import org.junit.platform.launcher.core.LauncherFactory;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/** Runs this module's tests without Maven, on the device that {@code BATON_CUDA_TESTS} says; {@code bench gpu} starts it. */
public final class DeviceTests {
    private DeviceTests() {}

    /** @param args a file, which gets the results as JSON after each test, and names of packages below this one; none: all */
    public static void main(String[] args) throws IOException {
        Path out = Path.of(args[0]);
        ObjectNode json = JsonMapper.builder().build().createObjectNode();
        ArrayNode failed = json.putArray("failed");
        ArrayNode skipped = json.putArray("skipped");
        AtomicInteger passed = new AtomicInteger();
        LauncherDiscoveryRequestBuilder request = LauncherDiscoveryRequestBuilder.request()
                .filters(includeClassNamePatterns(".*Test"))
                .configurationParameter("junit.jupiter.extensions.autodetection.enabled", "true");
        if (args.length == 1) {
            request.selectors(selectPackage("baton.cuda"));
        }
        for (int i = 1; i < args.length; i++) {
            request.selectors(selectPackage(DeviceTests.class.getPackageName() + "." + args[i]));
        }
        LauncherFactory.create().execute(request.build(), new TestExecutionListener() {
            @Override
            public void executionFinished(TestIdentifier test, TestExecutionResult result) {
                if (result.getStatus() == TestExecutionResult.Status.FAILED) {
                    failed.addObject()
                            .put("test", test.getUniqueId())
                            .put(
                                    "error",
                                    result.getThrowable().map(DeviceTests::text).orElse(""));
                } else if (result.getStatus() == TestExecutionResult.Status.ABORTED) {
                    skipped.addObject()
                            .put("test", test.getUniqueId())
                            .put(
                                    "why",
                                    result.getThrowable().map(DeviceTests::text).orElse(""));
                } else if (test.isTest()) {
                    passed.incrementAndGet();
                }
                save(out, json.put("passed", passed.get()));
            }
        });
        save(out, json.put("passed", passed.get()));
        System.exit(failed.isEmpty() && passed.get() > 0 ? 0 : 1);
    }

    private static String text(Throwable e) {
        String text = e.toString();
        return text.substring(0, Math.min(1000, text.length()));
    }

    private static void save(Path out, ObjectNode json) {
        try {
            Files.writeString(out, json.toString());
        } catch (IOException e) {
            throw new AssertionError(e);
        }
    }
}
