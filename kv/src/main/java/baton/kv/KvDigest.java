package baton.kv;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Locale;
import java.util.Optional;
import java.util.stream.Collectors;
import java.util.zip.CRC32C;

/** Kinds of digests by which a reader detects that the bytes of a block are not those of its owner. */
public enum KvDigest {
    /** No digest: a reader detects a block that was reused, but no damage. */
    NONE(0),
    CRC32C(Integer.BYTES),
    /** {@link Sum61}, which the threads of a device can compute. */
    SUM61(Long.BYTES);

    private final int bytes;

    KvDigest(int bytes) {
        this.bytes = bytes;
    }

    /** Its name in settings and messages. */
    public String label() {
        return name().toLowerCase(Locale.ROOT);
    }

    /** Bytes of a digest. */
    public int bytes() {
        return bytes;
    }

    /** @return empty if no kind has the label */
    public static Optional<KvDigest> find(String label) {
        return Arrays.stream(values())
                .filter(kind -> kind.label().equals(label))
                .findFirst();
    }

    /** All labels, for errors. */
    public static String labels() {
        return Arrays.stream(values()).map(KvDigest::label).collect(Collectors.joining(", "));
    }

    /** A digest of several runs of bytes, one after the other. */
    public interface Running {
        /** Adds the bytes between the buffer's position and its limit. */
        void add(ByteBuffer run);

        /** The digest of all runs so far, in {@link KvDigest#bytes} bytes. */
        long value();
    }

    /** Begins a digest. */
    public Running begin() {
        return switch (this) {
            case NONE -> new Nothing();
            case CRC32C -> new Crc(new CRC32C());
            case SUM61 -> new Sum61();
        };
    }

    private record Nothing() implements Running {
        @Override
        public void add(ByteBuffer run) {}

        @Override
        public long value() {
            return 0;
        }
    }

    private record Crc(CRC32C crc) implements Running {
        @Override
        public void add(ByteBuffer run) {
            crc.update(run);
        }

        @Override
        public long value() {
            return crc.getValue();
        }
    }
}
