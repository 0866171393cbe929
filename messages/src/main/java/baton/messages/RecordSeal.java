package baton.messages;

import java.nio.ByteBuffer;
import java.security.GeneralSecurityException;
import java.util.function.LongFunction;
import javax.crypto.Cipher;
import javax.crypto.spec.GCMParameterSpec;
import javax.crypto.spec.SecretKeySpec;

/**
 * One direction of a {@link SealedChannel}: records of AES-256-GCM. A record is a header of {@value #HEADER_BYTES} bytes, integers in
 * network order: bytes of the rest (4), mark of the direction (4), sequence number from 0 (8); the ciphertext; and the tag, which covers the
 * header too. The nonce is the sequence number, so none is used twice with a key. A new key begins every 2^20 records. Not for
 * concurrent use.
 */
final class RecordSeal {
    static final int HEADER_BYTES = 16;
    /**
     * The limit of plain bytes in a record. From 64 KiB on the JDK's cipher takes another path, which is slow until it has been compiled,
     * too.
     */
    static final int MOST_BYTES = 32 << 10;

    private static final int TAG_BYTES = 16;
    private static final int NONCE_BYTES = 12;
    private static final int RECORDS_OF_A_KEY_BITS = 20;

    private final LongFunction<byte[]> keys;
    private final int mark;
    private final Cipher cipher;
    private Key key = new Key(-1, new SecretKeySpec(new byte[1], "AES"));
    private long sequence;

    private record Key(long number, SecretKeySpec bytes) {}

    /** @param keys of 32 bytes, by their number; number -1 is the mark's */
    RecordSeal(LongFunction<byte[]> keys) {
        this(keys, 0);
    }

    /** @param sequence number of the first record */
    RecordSeal(LongFunction<byte[]> keys, long sequence) {
        this.keys = keys;
        this.sequence = sequence;
        this.mark = ByteBuffer.wrap(keys.apply(-1)).getInt();
        try {
            this.cipher = Cipher.getInstance("AES/GCM/NoPadding");
        } catch (GeneralSecurityException e) {
            throw new AssertionError("every Java has AES-GCM", e);
        }
    }

    /** Whether no record was sealed or opened yet. */
    boolean isUnused() {
        return sequence == 0;
    }

    static int recordBytes(int plainBytes) {
        return HEADER_BYTES + plainBytes + TAG_BYTES;
    }

    /**
     * Seals the next record.
     *
     * @param record has {@link #recordBytes} bytes
     */
    void seal(byte[] plain, int bytes, byte[] record) {
        ByteBuffer.wrap(record).putInt(bytes + TAG_BYTES).putInt(mark).putLong(sequence);
        try {
            begin(Cipher.ENCRYPT_MODE, record);
            cipher.doFinal(plain, 0, bytes, record, HEADER_BYTES);
        } catch (GeneralSecurityException e) {
            throw new IllegalStateException("record " + sequence + " cannot be sealed", e);
        }
        sequence++;
    }

    /**
     * The bytes after a header that was received.
     *
     * @throws SealException if it is not that of the next record
     */
    int restBytes(byte[] header) throws SealException {
        ByteBuffer in = ByteBuffer.wrap(header);
        int rest = in.getInt();
        if (in.getInt() != mark) {
            throw new SealException("a record is of another connection, kv_auth_secret_file or kv_encryption");
        }
        long received = in.getLong();
        if (received != sequence) {
            throw new SealException(
                    received >= 0 && received < sequence
                            ? "record %d is repeated: the next one is %d".formatted(received, sequence)
                            : "record %d comes where %d is the next one".formatted(received, sequence));
        }
        if (rest < TAG_BYTES || rest > MOST_BYTES + TAG_BYTES) {
            throw new SealException("record %d has %d bytes, must have %d to %d"
                    .formatted(received, rest, TAG_BYTES, MOST_BYTES + TAG_BYTES));
        }
        return rest;
    }

    /**
     * Opens the next record, of which {@link #restBytes} has seen the header.
     *
     * @return bytes in {@code plain}
     * @throws SealException if header, ciphertext or tag are not those that were sealed
     */
    int open(byte[] header, byte[] rest, int bytes, byte[] plain) throws SealException {
        try {
            begin(Cipher.DECRYPT_MODE, header);
            int opened = cipher.doFinal(rest, 0, bytes, plain, 0);
            sequence++;
            return opened;
        } catch (GeneralSecurityException e) {
            throw new SealException("record " + sequence + " was changed", e);
        }
    }

    private void begin(int mode, byte[] header) throws GeneralSecurityException {
        long number = sequence >>> RECORDS_OF_A_KEY_BITS;
        if (key.number != number) {
            key = new Key(number, new SecretKeySpec(keys.apply(number), "AES"));
        }
        byte[] nonce = new byte[NONCE_BYTES];
        ByteBuffer.wrap(nonce).putLong(NONCE_BYTES - Long.BYTES, sequence);
        cipher.init(mode, key.bytes, new GCMParameterSpec(TAG_BYTES * Byte.SIZE, nonce));
        cipher.updateAAD(header, 0, HEADER_BYTES);
    }
}
