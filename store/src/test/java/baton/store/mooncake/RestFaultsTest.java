package baton.store.mooncake;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.connector.Measurement;
import baton.store.StoreFormat;
import baton.store.StoreTask;
import baton.store.SystemIoThreads;
import baton.store.remote.StoredValues;
import baton.testkit.VirtualTicker;
import java.lang.foreign.Arena;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** A REST service that is away, hangs, is full, talks nonsense, or has damaged objects: misses, counted by their cause. */
@Timeout(300)
class RestFaultsTest {
    private static final StoreFormat FORMAT = StoredValues.format(1 << 14);
    private static final Duration PAUSE = Duration.ofMillis(100);
    private static final Duration LEASE = Duration.ofMillis(150);

    /** Of pauses and leases, which are over when a test says so. */
    private final VirtualTicker ticker = new VirtualTicker();

    private final Random random = new Random(11);
    private final List<Measurement> measured = new ArrayList<>();
    private Arena arena;
    private RestStandIn service;
    private MooncakeBlockStore store;

    @BeforeEach
    void open() throws Exception {
        arena = Arena.ofShared();
        service = new RestStandIn();
        store = MooncakeBlockStore.open(
                FORMAT,
                ObjectFormat.ofRest(FORMAT, new MooncakeNames("", "m", 2, 1)),
                new RestClient(service.url(), Duration.ofSeconds(1)),
                new MooncakeBlockStore.Options(2, PAUSE, LEASE),
                new SystemIoThreads(),
                ticker);
    }

    @AfterEach
    void close() {
        store.close();
        service.close();
        arena.close();
    }

    private StoredValues values(int count) {
        return StoredValues.random(FORMAT, count, arena, random);
    }

    private StoredValues read(StoredValues values, int expected) {
        StoredValues read = StoredValues.empty(FORMAT, values.keys(), arena);
        assertThat(read.get(store).succeededCount()).isEqualTo(expected);
        return read;
    }

    private long failures(String cause) {
        measured.addAll(store.takeMeasurements());
        return measured.stream()
                .filter(each -> each.name().equals("baton:kv_store_failures"))
                .filter(each -> each.labels().equals(Map.of("store", "mooncake", "cause", cause)))
                .mapToLong(each -> (long) each.value())
                .sum();
    }

    @ParameterizedTest
    @CsvSource({
        "body,checksum",
        "header,foreign",
        "short,length",
        "long,length",
        "no_base64,foreign",
        "swapped,wrong_key"
    })
    void aDamagedObjectIsAMissAndIsReplacedWhenItsLeaseIsOver(String damage, String cause) {
        StoredValues values = values(3);
        assertThat(values.put(store).succeededCount()).isEqualTo(3);
        List<String> keys = service.objects.keySet().stream()
                .filter(key -> key.contains("@tp_rank:1@"))
                .sorted()
                .toList();
        String name = keys.stream()
                .filter(key -> key.endsWith(values.keys().get(1).toString()))
                .findFirst()
                .orElseThrow();
        String text = service.objects.getOrDefault(name, "");
        byte[] bytes = Base64.getDecoder().decode(text);
        String damaged = switch (damage) {
            case "body" -> flipped(bytes, bytes.length - 7);
            case "header" -> flipped(bytes, 0);
            case "short" -> text.substring(0, text.length() / 8 * 4);
            case "long" -> Base64.getEncoder().encodeToString(Arrays.copyOf(bytes, bytes.length + 9));
            case "no_base64" -> text.substring(1) + "\u00e4";
            default ->
                service.objects.getOrDefault(
                        keys.stream()
                                .filter(key -> !key.equals(name))
                                .findFirst()
                                .orElseThrow(),
                        "");
        };
        service.leases = true;
        service.objects.put(name, damaged);
        read(values, 2);
        assertThat(failures(cause)).isEqualTo(1);
        // It is not asked for, so that its lease ends; until then nothing takes its place.
        assertThat(values.contains(store).succeededCount()).isEqualTo(2);
        assertThat(values.put(store).succeededCount()).isEqualTo(2);
        assertThat(service.objects).containsEntry(name, damaged);
        service.leases = false;
        service.leased.clear();
        ticker.advance(LEASE);
        StoredValues.until("stored again", () -> values.put(store).succeededCount() == 3);
        assertThat(values.sameAt(1, read(values, 3))).isTrue();
    }

    private static String flipped(byte[] bytes, int at) {
        bytes[at] ^= 4;
        return Base64.getEncoder().encodeToString(bytes);
    }

    @Test
    void anObjectThatIsMissingMakesItsValueAMiss() {
        StoredValues values = values(2);
        values.put(store);
        service.objects
                .keySet()
                .removeIf(key -> key.contains("@tp_rank:0@")
                        && key.endsWith(values.keys().getFirst().toString()));
        assertThat(values.contains(store).succeeded(0)).isFalse();
        assertThat(values.contains(store).succeeded(1)).isTrue();
        read(values, 1);
        assertThat(values.put(store).succeededCount()).isEqualTo(2);
        assertThat(values.sameAt(0, read(values, 2))).isTrue();
    }

    @Test
    void aServiceThatIsAwayCostsOneAttemptPerPauseAndIsUsedWhenItIsBack() throws Exception {
        StoredValues values = values(40);
        values.put(store);
        service.stop();
        assertThat(values.contains(store).succeededCount()).isZero();
        assertThat(values.contains(store).succeededCount()).isZero();
        assertThat(failures("unavailable")).isGreaterThanOrEqualTo(40);
        assertThat(failures("paused") + failures("unavailable")).isEqualTo(80);
        service.restart();
        untilUsedAgain(values);
        read(values, 40);
    }

    private void untilUsedAgain(StoredValues values) {
        StoredValues.until("used again", () -> {
            ticker.advance(PAUSE);
            return values.contains(store).succeededCount() == values.keys().size();
        });
    }

    @Test
    void aServiceThatHangsCostsOneDeadline() {
        StoredValues values = values(10);
        values.put(store);
        service.halt();
        StoredValues read = StoredValues.empty(FORMAT, values.keys(), arena);
        StoreTask task =
                StoredValues.quiet(store.get(values.keys(), read.ranges(), StoredValues.within(Duration.ofSeconds(1))));
        assertThat(task.succeededCount()).isZero();
        assertThat(failures("timeout")).isEqualTo(10);
        assertThat(values.contains(store).succeededCount()).isZero();
        assertThat(failures("paused")).isEqualTo(10);
        service.resume();
        untilUsedAgain(values);
    }

    @Test
    void aFullStoreFailsPutsAndReadsGoOn() {
        StoredValues first = values(2);
        first.put(store);
        service.full = true;
        StoredValues second = values(2);
        assertThat(second.put(store).succeededCount()).isZero();
        assertThat(failures("error")).isEqualTo(2);
        assertThat(second.put(store).succeededCount()).isZero();
        assertThat(failures("paused")).isEqualTo(2);
        read(first, 2);
        service.full = false;
        ticker.advance(PAUSE);
        StoredValues.until("stored", () -> second.put(store).succeededCount() == 2);
    }

    @ParameterizedTest
    @CsvSource({"x", "{}", "[1]", "'{\"exists\": 1}'"})
    void answersThatAreNoneAreErrors(String answer) {
        StoredValues values = values(2);
        values.put(store);
        service.nonsense = answer;
        assertThat(values.contains(store).succeededCount()).isZero();
        assertThat(failures("error")).isEqualTo(2);
        StoredValues read = StoredValues.empty(FORMAT, values.keys(), arena);
        assertThat(read.get(store).succeededCount()).isZero();
    }

    @Test
    void closingAStoreEndsWaitingOperations() {
        StoredValues values = values(10);
        values.put(store);
        service.halt();
        StoredValues read = StoredValues.empty(FORMAT, values.keys(), arena);
        StoreTask task = store.get(values.keys(), read.ranges(), StoredValues.soon());
        store.close();
        assertThat(task.isDone()).isTrue();
        assertThat(task.isQuiet()).isTrue();
        assertThat(task.succeededCount()).isZero();
    }
}
