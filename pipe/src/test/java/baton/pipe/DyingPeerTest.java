package baton.pipe;

import static baton.pipe.WireContract.background;
import static baton.pipe.WireContract.result;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.FreePorts;
import baton.kv.Ticker;
import baton.pipe.select.WireTransports;
import java.io.BufferedReader;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** A peer in a process of its own is killed: calls that wait for it fail long before their deadlines. */
class DyingPeerTest {
    private static final Duration LONG = Duration.ofMinutes(5);
    /** Gloo does not always notice that its peer has died; then only the deadline ends the wait. */
    private static final Duration GLOO = Duration.ofSeconds(6);

    private static final long BYTES = 64 << 20;

    @ParameterizedTest
    @ValueSource(strings = {"tcp", "gloo"})
    void aPeerDiesInTheMiddleOfReceiving(String transport) throws Exception {
        meetOther(transport, "receive", (wire, other) -> {
            try (Arena arena = Arena.ofShared()) {
                MemorySegment data = arena.allocate(BYTES);
                FutureTask<Boolean> sending = background(() -> {
                    for (int i = 0; i < 1_000_000; i++) {
                        wire.send(data, deadline(transport));
                    }
                    return true;
                });
                assertThat(other.line()).contains("moved");
                other.process.destroyForcibly();
                assertThatThrownBy(() -> result(sending)).isInstanceOf(PipeException.class);
            }
        });
    }

    @ParameterizedTest
    @ValueSource(strings = {"tcp", "gloo"})
    void aPeerDiesInTheMiddleOfSending(String transport) throws Exception {
        meetOther(transport, "send", (wire, other) -> {
            try (Arena arena = Arena.ofShared()) {
                MemorySegment data = arena.allocate(BYTES);
                FutureTask<Boolean> receiving = background(() -> {
                    for (int i = 0; i < 1_000_000; i++) {
                        wire.receive(data, deadline(transport));
                    }
                    return true;
                });
                assertThat(other.line()).contains("moved");
                other.process.destroyForcibly();
                assertThatThrownBy(() -> result(receiving)).isInstanceOf(PipeException.class);
            }
        });
    }

    @ParameterizedTest
    @ValueSource(strings = {"tcp", "gloo"})
    void aPeerDiesWhileAPipeIsIdle(String transport) throws Exception {
        meetOther(transport, "pipe", (wire, other) -> {
            try (Pipe receiver = WirePipe.receiver(wire, settings(transport), Ticker.system())) {
                Tensor came = receiver.receive(TensorMemory.HOST, LONG);
                came.close();
                assertThat(came.shape()).isEqualTo(List.of(3L));
                FutureTask<Tensor> receiving = background(() -> receiver.receive(TensorMemory.HOST, LONG));
                assertThatThrownBy(() -> receiving.get(100, TimeUnit.MILLISECONDS))
                        .isInstanceOf(TimeoutException.class);
                other.process.destroyForcibly();
                assertThatThrownBy(() -> result(receiving)).isInstanceOf(PipeException.class);
            }
        });
    }

    private static Duration deadline(String transport) {
        return transport.equals("gloo") ? GLOO : LONG;
    }

    private static WirePipe.Settings settings(String transport) {
        return transport.equals("gloo") ? WirePipe.Settings.DEFAULT.withSilence(GLOO) : WirePipe.Settings.DEFAULT;
    }

    private interface Body {
        void run(Wire wire, Other other) throws Exception;
    }

    private static void meetOther(String name, String does, Body body) throws Exception {
        int port = FreePorts.inARow(1);
        try (WireTransport transport = WireTransports.named("transport", name);
                Other other = new Other(name, port, does);
                Wire wire = transport.meet("127.0.0.1", port, 0, LONG)) {
            body.run(wire, other);
        }
    }

    private static final class Other implements AutoCloseable {
        private final Process process;
        private final BufferedReader out;

        Other(String name, int port, String does) throws IOException {
            process = new ProcessBuilder(
                            Path.of(System.getProperty("java.home"), "bin", "java")
                                    .toString(),
                            "--enable-native-access=ALL-UNNAMED",
                            "-XX:TieredStopAtLevel=1",
                            "-cp",
                            System.getProperty("java.class.path"),
                            DyingPeerTest.class.getName(),
                            name,
                            String.valueOf(port),
                            does)
                    .redirectError(ProcessBuilder.Redirect.INHERIT)
                    .start();
            out = process.inputReader(StandardCharsets.UTF_8);
        }

        /** The next line of the test; Gloo prints lines as well. */
        private String line() throws IOException {
            String line = out.readLine();
            while (line != null && !line.contains("moved")) {
                line = out.readLine();
            }
            return String.valueOf(line);
        }

        @Override
        public void close() throws InterruptedException {
            process.destroyForcibly();
            assertThat(process.waitFor(60, TimeUnit.SECONDS)).isTrue();
        }
    }

    /** The peer process: rank 1. */
    public static void main(String[] args) throws Exception {
        try (Arena arena = Arena.ofShared();
                WireTransport transport = WireTransports.named("transport", args[0]);
                Wire wire = transport.meet("127.0.0.1", Integer.parseInt(args[1]), 1, LONG)) {
            if (args[2].equals("pipe")) {
                Pipe sender = WirePipe.sender(wire, settings(args[0]), Ticker.system());
                sender.send(new Tensor(Tensor.Type.U8, List.of(3L), arena.allocate(3)), LONG);
                while (System.in.read() >= 0) {
                    // Lives until it is killed.
                }
                return;
            }
            MemorySegment data = arena.allocate(BYTES);
            for (int i = 0; i < 1_000_000; i++) {
                if (args[2].equals("send")) {
                    wire.send(data, LONG);
                } else {
                    wire.receive(data, LONG);
                }
                System.out.println("moved " + i);
            }
        }
    }
}
