package baton.pipe;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.kv.Ticker;
import baton.pipe.memory.MemoryTransport;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.parallel.Isolated;

/** Native memory of entries that are on their way when a lookup buffer ends. */
@Isolated("It measures the memory of the process.")
@Timeout(300)
class LookupMemoryTest {
    private static final Duration LONG = Duration.ofSeconds(60);
    /** The size of an entry, large enough that freeing it returns it to the system at once. */
    private static final long SIZE = 48 << 20;

    private static final WirePipe.Settings ONE_AT_A_TIME = WirePipe.Settings.DEFAULT.withBufferBytes(1);

    private final MemoryTransport transport = new MemoryTransport();

    @Test
    void anEntryMatchedForAnEndedConsumerIsFreed() throws Exception {
        Wire[] requests = TestWires.offered(transport);
        Wire[] answers = TestWires.offered(transport);
        try (LookupBuffer producer = LookupBuffers.producer(
                        WirePipe.receiver(requests[0], WirePipe.Settings.DEFAULT, Ticker.system()),
                        WirePipe.sender(answers[0], ONE_AT_A_TIME, Ticker.system()),
                        LookupBuffer.Settings.DEFAULT,
                        Ticker.system());
                Pipe asking = WirePipe.sender(requests[1], ONE_AT_A_TIME, Ticker.system())) {
            // When the last one is on its way, those before the one before it have been dealt with.
            for (int i = 0; i < 6; i++) {
                ask(asking, i);
            }
            long before = resident();
            for (int i = 0; i < 4; i++) {
                producer.insert(
                        new LookupBuffer.Entry(new int[] {i}, new boolean[] {true}, part(SIZE), part(1), part(1)),
                        LONG);
            }
            // The first one is stuck because the consumer does not receive answers.
            assertThat(resident() - before).isGreaterThan(3 * SIZE);
            asking.close();
            answers[1].close();
            awaitFreed(before);
        }
    }

    @Test
    void anEntryWithoutLookupIsFreed() throws Exception {
        Wire[] requests = TestWires.offered(transport);
        Wire[] answers = TestWires.offered(transport);
        try (LookupBuffer consumer = LookupBuffers.consumer(
                        WirePipe.sender(requests[0], WirePipe.Settings.DEFAULT, Ticker.system()),
                        WirePipe.receiver(answers[0], WirePipe.Settings.DEFAULT, Ticker.system()),
                        TensorMemory.HOST,
                        Ticker.system());
                Pipe answering = WirePipe.sender(answers[1], WirePipe.Settings.DEFAULT, Ticker.system())) {
            long before = resident();
            answering.send(
                    new LookupMessage(LookupMessage.What.FOUND, 7, new int[] {1}, new boolean[] {true}).encode(), LONG);
            for (int i = 0; i < 3; i++) {
                answering.send(part(SIZE), LONG);
            }
            assertThatThrownBy(() -> consumer.dropSelect(new int[] {1}, new boolean[] {true}, LONG))
                    .isInstanceOf(PipeException.class)
                    .hasMessageContaining("the lookup buffer has ended");
            awaitFreed(before);
        }
    }

    private static void ask(Pipe asking, int number) throws PipeException {
        asking.send(
                new LookupMessage(LookupMessage.What.SELECT, number, new int[] {number}, new boolean[] {true}).encode(),
                LONG);
    }

    private static Tensor part(long bytes) {
        return TensorMemory.HOST.allocate(Tensor.Type.U8, List.of(bytes));
    }

    private static void awaitFreed(long before) throws IOException {
        long end = System.nanoTime() + LONG.toNanos();
        while (resident() - before > 2 * SIZE && System.nanoTime() < end) {
            LockSupport.parkNanos(1_000_000);
        }
        assertThat(resident() - before).isLessThanOrEqualTo(2 * SIZE);
    }

    /** Bytes of this process in memory. */
    private static long resident() throws IOException {
        Path status = Path.of("/proc/self/status");
        assumeTrue(Files.exists(status), () -> "there is no " + status);
        return Files.readAllLines(status).stream()
                .filter(line -> line.startsWith("VmRSS:"))
                .mapToLong(line -> Long.parseLong(line.replaceAll("[^0-9]", "")) << 10)
                .findFirst()
                .orElseThrow();
    }
}
