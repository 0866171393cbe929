package baton.messages;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.ReadableByteChannel;
import java.nio.channels.WritableByteChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.function.LongFunction;
import org.assertj.core.api.ThrowableAssert.ThrowingCallable;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Records as they are on the network, and the handling of others. */
class SealedChannelTest {
    @TempDir
    private Path directory;

    private PeerAccess access(String secret) throws IOException {
        Path file = Files.writeString(directory.resolve(secret), secret.repeat(16));
        return PeerAccess.of(
                JsonFields.parse(
                        "extra", "{\"kv_encryption\": \"required\", \"kv_auth_secret_file\": \"" + file + "\"}"),
                "host",
                "127.0.0.1",
                List.of());
    }

    /** The network between two ends: the bytes that each has sent, which a test may change before the other reads them. */
    private static final class Network {
        private final ByteArrayOutputStream toCalled = new ByteArrayOutputStream();
        private final ByteArrayOutputStream toCaller = new ByteArrayOutputStream();
        private byte[] arriving = new byte[0];
        private int at;
        private final SealedChannel caller;
        private final SealedChannel called;

        private Network(PeerAccess callers, PeerAccess calleds, String callersPlane) throws IOException {
            ReadableByteChannel nothing = Channels.newChannel(new ByteArrayInputStream(new byte[0]));
            ReadableByteChannel arrived = new ReadableByteChannel() {
                @Override
                public int read(ByteBuffer into) {
                    int bytes = Math.min(into.remaining(), arriving.length - at);
                    into.put(arriving, at, bytes);
                    at += bytes;
                    return bytes > 0 ? bytes : -1;
                }

                @Override
                public boolean isOpen() {
                    return true;
                }

                @Override
                public void close() {}
            };
            caller = new SealedChannel(callers, callersPlane, true, "b", nothing, Channels.newChannel(toCalled));
            called = new SealedChannel(calleds, "test", false, "a", arrived, Channels.newChannel(toCaller));
            ByteBuffer preamble = caller.preamble();
            caller.agree(called.preamble());
            called.agree(preamble);
        }

        /** The record of some bytes that the caller sends. */
        private byte[] sealed(byte[] plain) throws IOException {
            toCalled.reset();
            assertThat(caller.write(ByteBuffer.wrap(plain))).isEqualTo(plain.length);
            return toCalled.toByteArray();
        }

        private byte[] opened(byte[]... records) throws IOException {
            ByteArrayOutputStream all = new ByteArrayOutputStream();
            for (byte[] record : records) {
                all.writeBytes(record);
            }
            arriving = all.toByteArray();
            at = 0;
            ByteArrayOutputStream read = new ByteArrayOutputStream();
            ByteBuffer some = ByteBuffer.allocate(777);
            while (called.read(some.clear()) >= 0) {
                read.write(some.array(), 0, some.position());
            }
            return read.toByteArray();
        }

        private ThrowingCallable opening(byte[]... records) {
            return () -> {
                var _ = opened(records);
            };
        }
    }

    private Network network() throws IOException {
        return new Network(access("one"), access("one"), "test");
    }

    private static byte[] text(String text) {
        return text.getBytes(StandardCharsets.US_ASCII);
    }

    @Test
    void bytesOfAllSizesArriveInOrderAndAreNotReadableOnTheWay() throws IOException {
        Network network = network();
        Random random = new Random(1);
        ByteArrayOutputStream plain = new ByteArrayOutputStream();
        List<byte[]> records = new ArrayList<>();
        for (int bytes : new int[] {1, 15, 16, 1000, 7680, 20_001, RecordSeal.MOST_BYTES}) {
            byte[] part = new byte[bytes];
            random.nextBytes(part);
            plain.writeBytes(part);
            records.add(network.sealed(part));
        }
        assertThat(network.opened(records.toArray(byte[][]::new))).isEqualTo(plain.toByteArray());
        byte[] again = network.sealed(text("the same words"));
        assertThat(new String(again, StandardCharsets.ISO_8859_1)).doesNotContain("same");
        assertThat(network.sealed(text("the same words"))).isNotEqualTo(again);
    }

    @Test
    void manyBuffersAreWrittenAndReadAtOnceUpToARecord() throws IOException {
        Network network = network();
        byte[] part = new byte[RecordSeal.MOST_BYTES - 10];
        ByteBuffer[] buffers = {ByteBuffer.wrap(text("head")), ByteBuffer.wrap(part), ByteBuffer.wrap(new byte[100])};
        assertThat(network.caller.write(buffers)).isEqualTo(RecordSeal.MOST_BYTES);
        assertThat(buffers[2].position()).isEqualTo(6);
        network.arriving = network.toCalled.toByteArray();
        ByteBuffer[] into = {ByteBuffer.allocate(4), ByteBuffer.allocate(20)};
        assertThat(network.called.read(into)).isEqualTo(24);
        assertThat(into[0].array()).isEqualTo(text("head"));
    }

    @Test
    void everyChangedByteIsRefused() throws IOException {
        byte[] plain = text("keys and values");
        int length = network().sealed(plain).length;
        for (int i = 0; i < length; i++) {
            Network network = network();
            byte[] changed = network.sealed(plain);
            changed[i] ^= 4;
            assertThatThrownBy(network.opening(changed)).isInstanceOf(IOException.class);
        }
        Network network = network();
        byte[] changed = network.sealed(plain);
        changed[RecordSeal.HEADER_BYTES + 3] ^= 1;
        assertThatThrownBy(network.opening(changed))
                .isInstanceOf(SealException.class)
                .hasMessage("record 0 was changed");
    }

    @Test
    void repeatedMissingAndSwappedRecordsAreRefused() throws IOException {
        Network repeated = network();
        byte[] first = repeated.sealed(text("first"));
        assertThatThrownBy(repeated.opening(first, first))
                .isInstanceOf(SealException.class)
                .hasMessage("record 0 is repeated: the next one is 1");
        Network missing = network();
        byte[] unusedLost = missing.sealed(text("first"));
        byte[] second = missing.sealed(text("second"));
        assertThatThrownBy(missing.opening(second))
                .isInstanceOf(SealException.class)
                .hasMessage("record 1 comes where 0 is the next one");
        assertThatThrownBy(missing.opening(second)).hasMessage("the peer was refused");
    }

    @Test
    void aCutRecordIsAnErrorAndTheEndBetweenTwoIsNot() throws IOException {
        Network network = network();
        assertThatThrownBy(network.opening())
                .hasMessageContainingAll("before its first record", "kv_auth_secret_file and kv_encryption");
        assertThat(network.opened(network.sealed(text("first")))).isEqualTo(text("first"));
        byte[] record = network.sealed(text("second"));
        assertThatThrownBy(network.opening(Arrays.copyOf(record, record.length - 1)))
                .isInstanceOf(IOException.class)
                .hasMessage("the connection ended within a record");
    }

    @Test
    void recordsOfAnotherConnectionSecretDirectionOrPlaneAreRefused() throws IOException {
        byte[] another = network().sealed(text("of an earlier incarnation"));
        String refused = "a record is of another connection, kv_auth_secret_file or kv_encryption";
        assertThatThrownBy(network().opening(another)).hasMessage(refused);
        Network secrets = new Network(access("two"), access("one"), "test");
        assertThatThrownBy(secrets.opening(secrets.sealed(text("x")))).hasMessage(refused);
        Network planes = new Network(access("one"), access("one"), "another");
        assertThatThrownBy(planes.opening(planes.sealed(text("x")))).hasMessage(refused);
        Network reflected = network();
        reflected.called.write(ByteBuffer.wrap(text("x")));
        assertThatThrownBy(reflected.opening(reflected.toCaller.toByteArray())).hasMessage(refused);
    }

    @Test
    void aPeerThatDoesNotSealIsRefusedAndCounted() throws IOException {
        PeerAccess access = access("one");
        WritableByteChannel out = Channels.newChannel(new ByteArrayOutputStream());
        byte[] plain = new byte[SealedChannel.PREAMBLE_BYTES];
        plain[0] = (byte) 0xff;
        assertThatThrownBy(() -> SealedChannel.open(
                        access, "test", false, "a", Channels.newChannel(new ByteArrayInputStream(plain)), out))
                .isInstanceOf(SealException.class)
                .hasMessage(SealedChannel.UNSEALED);
        assertThatThrownBy(() -> SealedChannel.open(
                        access, "test", true, "a", Channels.newChannel(new ByteArrayInputStream(new byte[3])), out))
                .hasMessage(SealedChannel.UNSEALED);
        byte[] weak = new SealedChannel(
                        access, "test", true, "a", Channels.newChannel(new ByteArrayInputStream(plain)), out)
                .preamble()
                .array();
        Arrays.fill(weak, weak.length - 32, weak.length, (byte) 0);
        assertThatThrownBy(() -> SealedChannel.open(
                        access, "test", false, "a", Channels.newChannel(new ByteArrayInputStream(weak)), out))
                .hasMessageContaining("gives no secret");
        assertThat(access.takeRefused()).isEqualTo(3);
    }

    @Test
    void keysAreReplacedAndBothSidesReplaceThemTogether() throws SealException {
        List<Long> asked = new ArrayList<>();
        LongFunction<byte[]> keys = number -> {
            asked.add(number);
            return new byte[] {(byte) number, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        };
        RecordSeal sealer = new RecordSeal(keys, (1 << 20) - 2);
        RecordSeal opener = new RecordSeal(keys, (1 << 20) - 2);
        byte[] record = new byte[RecordSeal.recordBytes(1)];
        for (int i = 0; i < 4; i++) {
            sealer.seal(new byte[] {7}, 1, record);
            byte[] rest = Arrays.copyOfRange(record, RecordSeal.HEADER_BYTES, record.length);
            byte[] opened = new byte[1];
            assertThat(opener.open(record, rest, opener.restBytes(record), opened))
                    .isEqualTo(1);
            assertThat(opened).containsExactly(7);
        }
        assertThat(asked).containsExactly(-1L, -1L, 0L, 0L, 1L, 1L);
    }

    @Test
    void encryptionNeedsASecretAndATransportOfBatonsOwn() throws IOException {
        assertThatThrownBy(() -> PeerAccess.of(
                        JsonFields.parse("extra", "{\"kv_encryption\": \"required\"}"), "host", "127.0.0.1", List.of()))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("kv_encryption: is required, but there is no secret");
        assertThatThrownBy(() -> PeerAccess.of(
                        JsonFields.parse("extra", "{\"kv_encryption\": \"maybe\"}"), "host", "127.0.0.1", List.of()))
                .hasMessageContaining("off, required");
        PeerAccess access = access("one");
        access.requireSafe("host", "0.0.0.0");
        assertThatThrownBy(() -> access.requireSafeByAddress("kv_ip", "127.0.0.1"))
                .hasMessageContaining("kv_encryption is required");
        assertThatThrownBy(() -> access.requireSafeEverywhere("transport", "gloo"))
                .hasMessageContaining("kv_encryption is required");
    }
}
