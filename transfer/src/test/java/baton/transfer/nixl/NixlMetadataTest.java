package baton.transfer.nixl;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.KvCopier;
import baton.kv.KvDevice;
import baton.kv.KvFence;
import baton.kv.KvMemory;
import baton.transfer.Region;
import baton.transfer.TransferException;
import baton.transfer.nixl.NixlMemory.Kind;
import java.io.ByteArrayOutputStream;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.junit.jupiter.api.Test;

/** Kinds of memory in NIXL's serialization, and of regions. */
class NixlMetadataTest {
    private static final int BLOCK_SEGMENT = 2;

    private final ByteArrayOutputStream out = new ByteArrayOutputStream();

    private void field(String tag, byte[] value) {
        out.writeBytes(tag.getBytes(StandardCharsets.US_ASCII));
        out.writeBytes(number(value.length));
        out.writeBytes(value);
        out.write('|');
    }

    private static byte[] number(long value) {
        return ByteBuffer.allocate(Long.BYTES)
                .order(ByteOrder.LITTLE_ENDIAN)
                .putLong(value)
                .array();
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.US_ASCII);
    }

    private void section(int kind, long address, long length, long device) {
        field("bknd", bytes("UCX"));
        field("nixlDList", bytes("nixlSDList"));
        field(
                "t",
                ByteBuffer.allocate(Integer.BYTES)
                        .order(ByteOrder.LITTLE_ENDIAN)
                        .putInt(kind)
                        .array());
        field("n", number(1));
        field(
                "",
                ByteBuffer.allocate(3 * Long.BYTES)
                        .order(ByteOrder.LITTLE_ENDIAN)
                        .putLong(address)
                        .putLong(length)
                        .putLong(device)
                        .array());
    }

    @Test
    void memoryOfTheHostAndOfCudaDevicesIsKeptApart() throws TransferException {
        out.writeBytes(bytes("nixlSerDes|"));
        field("Agent", bytes("a"));
        field("Conns", number(1));
        field("t", bytes("UCX"));
        field("c", new byte[] {1});
        field("", bytes("MemSection"));
        field("nixlSecElms", number(3));
        section(Kind.DRAM_TYPE, 4096, 100, 0);
        section(Kind.VRAM_TYPE, 8192, 200, 3);
        section(BLOCK_SEGMENT, 12_288, 300, 1);
        assertThat(NixlMetadata.parse(out.toByteArray()).memory())
                .containsExactly(
                        new NixlMemory(Kind.DRAM, 4096, 100), new NixlMemory(new Kind(Kind.VRAM_TYPE, 3), 8192, 200));
    }

    private static Region device(String kind, int number) {
        KvCopier none = new KvCopier() {
            @Override
            public KvFence toHost(List<Range> ranges, MemorySegment host, KvFence after) {
                throw new AssertionError("registering copies nothing");
            }

            @Override
            public KvFence toDevice(List<Range> ranges, MemorySegment host, KvFence after) {
                throw new AssertionError("registering copies nothing");
            }
        };
        return new Region(new KvMemory.Device(1 << 20, 4096, new KvDevice(kind, number), none), false);
    }

    @Test
    void aCudaDeviceIsVramOfItsNumberAndOtherDevicesAreRefused() throws TransferException {
        assertThat(NixlMemory.of(device("cuda", 2)))
                .isEqualTo(new NixlMemory(new Kind(Kind.VRAM_TYPE, 2), 1 << 20, 4096));
        assertThatThrownBy(() -> NixlMemory.of(device("refusing", 0)))
                .isInstanceOf(TransferException.class)
                .hasMessageContaining("refusing:0");
    }

    @Test
    void agentsThatCopyByTheHostRefuseADevice() {
        assertThatThrownBy(() -> device("cuda", 0).requireHost("the embedded agent"))
                .isInstanceOf(TransferException.class)
                .hasMessage(
                        "the embedded agent cannot register memory of cuda:0: it reads and writes the host's memory only");
    }
}
