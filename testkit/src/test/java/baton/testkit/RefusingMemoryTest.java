package baton.testkit;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.DType;
import baton.kv.KvCache;
import baton.kv.KvCopier;
import baton.kv.KvCopier.Range;
import baton.kv.KvCopier.Runs;
import baton.kv.KvDigest;
import baton.kv.KvFence;
import baton.kv.KvLayout;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.List;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;

class RefusingMemoryTest {
    @AutoClose
    private final Arena arena = Arena.ofConfined();

    private final MemorySegment bytes = arena.allocate(64);
    private final MemorySegment host = arena.allocate(64);
    private final RefusingMemory device = new RefusingMemory(bytes);

    @Test
    void aPoolOfADeviceHasOffsetsButNoBytes() {
        KvLayout layout = new KvLayout(2, 1, 2, 2, DType.F32);
        KvCache cache = new KvCache(device.memory(), layout, 1, List.of("0", "1"));
        assertThat(cache.layerStart(0, 1)).isEqualTo(layout.layerBytes());
        assertThatThrownBy(cache::host).hasMessageContaining("64 bytes of refusing:0 at 0xde");
        assertThatThrownBy(() -> cache.block(0)).isInstanceOf(IllegalStateException.class);
        assertThatThrownBy(() -> cache.layer(0, 1)).isInstanceOf(IllegalStateException.class);
    }

    @Test
    void aCopyIsThereWhenItsFenceIsPassed() {
        bytes.fill((byte) 7);
        KvFence copied = device.toHost(List.of(new Range(8, 0, 16)), host, KvFence.PASSED);
        assertThat(copied.isPassed()).isFalse();
        assertThat(host.get(ValueLayout.JAVA_BYTE, 0)).isZero();
        copied.await();
        assertThat(copied.isPassed()).isTrue();
        assertThat(host.asSlice(0, 16).mismatch(bytes.asSlice(8, 16))).isEqualTo(-1);
        assertThat(host.get(ValueLayout.JAVA_BYTE, 16)).isZero();
    }

    @Test
    void digestsAreOfTheRunsAndThereWhenTheirFenceIsPassed() {
        for (int i = 0; i < 64; i++) {
            bytes.set(ValueLayout.JAVA_BYTE, i, (byte) (i * i));
        }
        for (KvDigest kind : KvDigest.values()) {
            long[] digests = new long[2];
            KvFence digested =
                    device.digest(kind, List.of(new Runs(0, 32, 2, 8), new Runs(8, 16, 3, 4)), digests, KvFence.PASSED);
            digested.await();
            assertThat(digests).as(kind.label()).containsExactly(digest(kind, 8, 0, 32), digest(kind, 4, 8, 24, 40));
        }
        long[] late = new long[1];
        KvFence digested = device.digest(KvDigest.SUM61, List.of(new Runs(0, 0, 1, 8)), late, KvFence.PASSED);
        assertThat(digested.isPassed()).isFalse();
        assertThat(late[0]).isZero();
    }

    @Test
    void digestsOfMoreThanIsCopiedAtOnceAreRight() {
        long value = KvCopier.DIGESTED_AT_ONCE / 2 + 4;
        MemorySegment large = arena.allocate(3 * value);
        for (long at = 0; at < large.byteSize(); at += 1000) {
            large.set(ValueLayout.JAVA_BYTE, at, (byte) (at / 1000 % 127));
        }
        long[] digests = new long[3];
        List<Runs> values = IntStream.range(0, 3)
                .mapToObj(i -> new Runs(i * value, value / 2, 2, value / 2))
                .toList();
        new RefusingMemory(large)
                .digest(KvDigest.CRC32C, values, digests, KvFence.PASSED)
                .await();
        for (int i = 0; i < 3; i++) {
            KvDigest.Running digest = KvDigest.CRC32C.begin();
            digest.add(large.asSlice(i * value, value).asByteBuffer());
            assertThat(digests[i]).isEqualTo(digest.value());
        }
    }

    private long digest(KvDigest kind, long length, long... offsets) {
        KvDigest.Running digest = kind.begin();
        for (long offset : offsets) {
            digest.add(bytes.asSlice(offset, length).asByteBuffer());
        }
        return digest.value();
    }

    @Test
    void copiesKeepTheirOrderAndAwaitTheFencesBeforeThem() {
        host.fill((byte) 1);
        KvFence in = device.toDevice(List.of(new Range(0, 0, 64)), host, KvFence.PASSED);
        MemorySegment back = arena.allocate(64);
        KvFence out = device.toHost(List.of(new Range(0, 0, 32), new Range(40, 32, 8)), back, in);
        out.await();
        assertThat(in.isPassed()).isTrue();
        assertThat(back.get(ValueLayout.JAVA_BYTE, 39)).isEqualTo((byte) 1);
        assertThat(back.get(ValueLayout.JAVA_BYTE, 40)).isZero();
    }
}
