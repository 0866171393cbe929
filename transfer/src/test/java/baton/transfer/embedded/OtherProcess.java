package baton.transfer.embedded;

import baton.memory.Platform;
import baton.transfer.Range;
import baton.transfer.Region;
import baton.transfer.Transfer;
import baton.transfer.TransferAgent.Notification;
import baton.transfer.TransferAgent.Operation;
import baton.transfer.TransferAgent.Peer;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import java.util.SplittableRandom;
import java.util.concurrent.TimeUnit;

/**
 * A process with an agent and a pool. It prints its metadata and its pool's address, fills the pool on command and ends at the end of its
 * input.
 */
final class OtherProcess implements AutoCloseable {
    /** The name of its pool, in the mappings of processes. */
    static final String POOL = "two processes";

    private static final Duration LONG = Duration.ofMinutes(2);

    private final Process process;
    private final BufferedReader out;
    final byte[] metadata;
    final long address;

    /** @param platform that it behaves as */
    OtherProcess(EmbeddedAgent.Transport transport, long bytes, Platform platform) throws IOException {
        process = new ProcessBuilder(
                        Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                        "--enable-native-access=ALL-UNNAMED",
                        "-XX:TieredStopAtLevel=1",
                        "-D" + Platform.PROPERTY + "=" + platform,
                        "-cp",
                        System.getProperty("java.class.path"),
                        OtherProcess.class.getName(),
                        transport.name(),
                        String.valueOf(bytes))
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        out = process.inputReader(StandardCharsets.UTF_8);
        metadata = HexFormat.of().parseHex(line());
        address = Long.parseLong(line());
    }

    private String line() throws IOException {
        String line = out.readLine();
        if (line == null) {
            throw new IOException("the other process has ended");
        }
        return line;
    }

    /** Has it do something and returns its answer. */
    String tell(String command) throws IOException {
        process.outputWriter(StandardCharsets.UTF_8)
                .append(command)
                .append('\n')
                .flush();
        return line();
    }

    long pid() {
        return process.pid();
    }

    /** Ends it as a crash does. */
    void kill() {
        process.destroyForcibly();
    }

    @Override
    public void close() {
        process.destroyForcibly();
        try {
            if (!process.waitFor(120, TimeUnit.SECONDS)) {
                throw new IllegalStateException("the other process does not end");
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    /** The content of its pool. */
    static byte[] pattern(long seed, int bytes) {
        byte[] pattern = new byte[bytes];
        new SplittableRandom(seed).nextBytes(pattern);
        return pattern;
    }

    public static void main(String[] args) throws Exception {
        EmbeddedAgent.Settings settings =
                EmbeddedAgent.Settings.at("127.0.0.1").withTransport(EmbeddedAgent.Transport.valueOf(args[0]));
        int bytes = Integer.parseInt(args[1]);
        try (Arena arena = Arena.ofShared();
                EmbeddedAgent agent = EmbeddedAgent.open("other", settings)) {
            Region pool = Region.allocate(arena, bytes, POOL);
            agent.register(pool);
            System.out.println(HexFormat.of().formatHex(agent.metadata()));
            System.out.println(pool.memory().address());
            BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                String[] words = line.split(" ");
                System.out.println(
                        switch (words[0]) {
                            case "fill" -> {
                                byte[] pattern = pattern(Long.parseLong(words[1]), bytes);
                                MemorySegment.copy(MemorySegment.ofArray(pattern), 0, pool.memory(), 0, bytes);
                                yield "filled";
                            }
                            case "is" ->
                                pool.memory().mismatch(MemorySegment.ofArray(pattern(Long.parseLong(words[1]), bytes)))
                                        == -1;
                            case "take" -> take(agent);
                            case "read" -> read(agent, pool.memory(), words);
                            default -> throw new IllegalArgumentException(line);
                        });
            }
        } catch (UncheckedIOException e) {
            System.exit(1);
        }
    }

    private static String take(EmbeddedAgent agent) {
        StringBuilder all = new StringBuilder();
        for (Notification each : agent.takeNotifications()) {
            all.append(new String(each.message(), StandardCharsets.UTF_8)).append(' ');
        }
        return all.toString().strip();
    }

    /** Reads all of the asking agent's pool. */
    private static String read(EmbeddedAgent agent, MemorySegment pool, String[] words) throws Exception {
        Peer peer = agent.connect(HexFormat.of().parseHex(words[1]), LONG);
        Transfer transfer = agent.start(
                Operation.READ,
                peer,
                List.of(new Range(pool.address(), Long.parseLong(words[2]), pool.byteSize())),
                Optional.empty(),
                LONG);
        while (transfer.state() instanceof Transfer.State.UnderWay) {
            Thread.onSpinWait();
        }
        return peer + " " + transfer.state();
    }
}
