package baton.messages;

import baton.kv.Deadline;
import baton.kv.Ticker;
import java.io.EOFException;
import java.io.IOException;
import java.math.BigInteger;
import java.net.SocketException;
import java.nio.ByteBuffer;
import java.nio.channels.ByteChannel;
import java.nio.channels.GatheringByteChannel;
import java.nio.channels.ReadableByteChannel;
import java.nio.channels.ScatteringByteChannel;
import java.nio.channels.WritableByteChannel;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyPair;
import java.security.KeyPairGenerator;
import java.security.interfaces.XECPublicKey;
import java.security.spec.NamedParameterSpec;
import java.security.spec.XECPublicKeySpec;
import java.time.Duration;
import java.util.Arrays;
import java.util.Optional;
import java.util.function.LongFunction;
import javax.crypto.KeyAgreement;

/**
 * A connection with encrypted and authenticated bytes, for the protocol above it like the connection itself. Each side sends a
 * preamble: a name, and a key of X25519 that it has made for this connection. Keys of both directions are HMACs of the shared
 * {@link PeerSecret} over both keys and the secret that they agree on, so they differ for each connection, and neither the PeerSecret nor
 * a recording gives them away later. All that follows is records ({@link RecordSeal}); the first one of a side shows that it knows the
 * secret. There is no unsealed mode to fall back to.
 *
 * <p>The connection below may be blocking or not: then reads and writes of 0 bytes mean that it is not ready. One thread may read while
 * another one writes.
 */
public final class SealedChannel implements ByteChannel, ScatteringByteChannel, GatheringByteChannel {
    private static final byte[] NAME = "baton-sealed/1\n".getBytes(StandardCharsets.US_ASCII);
    private static final int KEY_BYTES = 32;

    /** Bytes of the preamble. */
    public static final int PREAMBLE_BYTES = NAME.length + KEY_BYTES;

    private static final String SAME_SETTINGS = "kv_auth_secret_file and kv_encryption must be the same on both sides";

    /** Why a connection ends that is not sealed at the other end. */
    public static final String UNSEALED = "it does not encrypt: " + SAME_SETTINGS;

    private static final String CURVE = "X25519";
    private static final Duration WARM_UP = Duration.ofSeconds(3);
    private static final int WARM_UP_RECORDS = 1000;
    private static final int WARM_UP_BYTES = 2 << 10;
    private static final int WARM_UP_LONG_RECORDS = 4;

    /** The time in which compiled code seals and opens a long record, with a margin. */
    private static final long FAST_NANOS = 200_000;

    private final PeerAccess access;
    private final PeerSecret secret;
    private final String plane;
    private final boolean caller;
    private final String peer;
    private final ReadableByteChannel in;
    private final WritableByteChannel out;
    private final KeyPair pair = pair();

    private Optional<RecordSeal> opener = Optional.empty();
    private final byte[] header = new byte[RecordSeal.HEADER_BYTES];
    private final ByteBuffer head = ByteBuffer.wrap(header);
    private ByteBuffer rest = ByteBuffer.allocate(0);
    private byte[] opened = new byte[0];
    private ByteBuffer plain = ByteBuffer.allocate(0);

    private Optional<RecordSeal> sealer = Optional.empty();
    private byte[] gathered = new byte[0];
    private ByteBuffer outgoing = ByteBuffer.allocate(0);

    /**
     * A connection before preambles are exchanged.
     *
     * @param access counts and logs peers with refused records; has a secret
     * @param plane of the protocol above: a connection to a port of another one does not open
     * @param caller whether this side has connected
     * @param peer for errors
     */
    public SealedChannel(
            PeerAccess access,
            String plane,
            boolean caller,
            String peer,
            ReadableByteChannel in,
            WritableByteChannel out) {
        this.access = access;
        this.secret = access.secret().orElseThrow();
        this.plane = plane;
        this.caller = caller;
        this.peer = peer;
        this.in = in;
        this.out = out;
    }

    /** A connection that blocks; exchanges the preambles. */
    public static SealedChannel open(
            PeerAccess access,
            String plane,
            boolean caller,
            String peer,
            ReadableByteChannel in,
            WritableByteChannel out)
            throws IOException {
        SealedChannel sealed = new SealedChannel(access, plane, caller, peer, in, out);
        for (ByteBuffer preamble = sealed.preamble(); preamble.hasRemaining(); ) {
            out.write(preamble);
        }
        ByteBuffer other = ByteBuffer.allocate(PREAMBLE_BYTES);
        while (other.hasRemaining()) {
            if (in.read(other) < 0) {
                throw new EOFException(UNSEALED);
            }
            // Other protocols may send less than a preamble, and then wait.
            sealed.requireNamed(other.array(), Math.min(other.position(), NAME.length));
        }
        sealed.agree(other.flip());
        return sealed;
    }

    /**
     * Has the JIT compiler compile the cipher, which takes 50 times as long until then: returns when records are sealed and opened fast, at the
     * latest after {@link #WARM_UP}.
     */
    public static void warmUp() {
        RecordSeal sealer = new RecordSeal(_ -> new byte[KEY_BYTES]);
        RecordSeal opener = new RecordSeal(_ -> new byte[KEY_BYTES]);
        Deadline deadline = Deadline.after(Ticker.system(), WARM_UP);
        long nanos;
        do {
            // Calls are compiled by their number, so most records are short. Lengths differ, as each remainder takes
            // its own branch.
            for (int i = 1; i <= WARM_UP_RECORDS; i++) {
                sealAndOpen(sealer, opener, i * 37 % WARM_UP_BYTES + 1);
            }
            long start = System.nanoTime();
            for (int i = 0; i < WARM_UP_LONG_RECORDS; i++) {
                sealAndOpen(sealer, opener, RecordSeal.MOST_BYTES);
            }
            nanos = (System.nanoTime() - start) / WARM_UP_LONG_RECORDS;
        } while (nanos > FAST_NANOS && !deadline.isOver());
    }

    private static void sealAndOpen(RecordSeal sealer, RecordSeal opener, int bytes) {
        byte[] record = new byte[RecordSeal.recordBytes(bytes)];
        byte[] plain = new byte[bytes];
        sealer.seal(plain, bytes, record);
        try {
            byte[] ciphertext = Arrays.copyOfRange(record, RecordSeal.HEADER_BYTES, record.length);
            var _ = opener.open(record, ciphertext, opener.restBytes(record), plain);
        } catch (SealException e) {
            throw new IllegalStateException("AES-GCM does not open a record that it has sealed", e);
        }
    }

    /** The bytes that this side sends first. */
    public ByteBuffer preamble() {
        return ByteBuffer.wrap(concatenated(NAME, publicKey()));
    }

    private static byte[] concatenated(byte[] first, byte[] second) {
        byte[] both = Arrays.copyOf(first, first.length + second.length);
        System.arraycopy(second, 0, both, first.length, second.length);
        return both;
    }

    private static KeyPair pair() {
        try {
            return KeyPairGenerator.getInstance(CURVE).generateKeyPair();
        } catch (GeneralSecurityException e) {
            throw new AssertionError("every Java has " + CURVE, e);
        }
    }

    /** The public key as RFC 7748 encodes it: little endian. */
    private byte[] publicKey() {
        byte[] big = ((XECPublicKey) pair.getPublic()).getU().toByteArray();
        byte[] key = new byte[KEY_BYTES];
        for (int i = 0; i < Math.min(KEY_BYTES, big.length); i++) {
            key[i] = big[big.length - 1 - i];
        }
        return key;
    }

    /**
     * Takes the peer's preamble; from now on bytes may be written and read.
     *
     * @throws SealException if it is none
     */
    public void agree(ByteBuffer preamble) throws SealException {
        byte[] name = new byte[NAME.length];
        preamble.get(name);
        requireNamed(name, NAME.length);
        byte[] other = new byte[KEY_BYTES];
        preamble.get(other);
        byte[] agreed = agreed(other);
        byte[] own = publicKey();
        RecordSeal toCaller = new RecordSeal(keys("to the caller", caller ? own : other, caller ? other : own, agreed));
        RecordSeal toCalled = new RecordSeal(keys("to the called", caller ? own : other, caller ? other : own, agreed));
        sealer = Optional.of(caller ? toCalled : toCaller);
        opener = Optional.of(caller ? toCaller : toCalled);
    }

    private void requireNamed(byte[] received, int bytes) throws SealException {
        if (!Arrays.equals(received, 0, bytes, NAME, 0, bytes)) {
            throw refused(UNSEALED);
        }
    }

    private LongFunction<byte[]> keys(String direction, byte[] callers, byte[] calleds, byte[] agreed) {
        byte[] over = direction.getBytes(StandardCharsets.US_ASCII);
        return number -> secret.mac(
                "sealed connection, " + plane,
                over,
                callers,
                calleds,
                agreed,
                ByteBuffer.allocate(Long.BYTES).putLong(number).array());
    }

    private byte[] agreed(byte[] publicKey) throws SealException {
        byte[] big = new byte[KEY_BYTES];
        for (int i = 0; i < KEY_BYTES; i++) {
            big[i] = publicKey[KEY_BYTES - 1 - i];
        }
        big[0] &= 0x7f;
        try {
            KeyAgreement agreement = KeyAgreement.getInstance(CURVE);
            agreement.init(pair.getPrivate());
            agreement.doPhase(
                    KeyFactory.getInstance(CURVE)
                            .generatePublic(new XECPublicKeySpec(NamedParameterSpec.X25519, new BigInteger(1, big))),
                    true);
            return agreement.generateSecret();
        } catch (GeneralSecurityException e) {
            throw refused("it sends a key of " + CURVE + " that gives no secret");
        }
    }

    private SealException refused(String why) {
        access.refuse(plane + ": " + peer, why);
        return new SealException(why);
    }

    /** @return 0 if the connection below does not block and has no whole record; -1 at its end */
    @Override
    public long read(ByteBuffer[] into, int offset, int length) throws IOException {
        while (!plain.hasRemaining()) {
            int bytes = readRecord(opener.orElseThrow(() -> new SealException("the peer was refused")));
            if (bytes <= 0) {
                return bytes;
            }
        }
        long count = 0;
        for (int i = offset; i < offset + length && plain.hasRemaining(); i++) {
            int bytes = Math.min(into[i].remaining(), plain.remaining());
            into[i].put(plain.slice(plain.position(), bytes));
            plain.position(plain.position() + bytes);
            count += bytes;
        }
        return count;
    }

    @Override
    public long read(ByteBuffer[] into) throws IOException {
        return read(into, 0, into.length);
    }

    @Override
    public int read(ByteBuffer into) throws IOException {
        return (int) read(new ByteBuffer[] {into}, 0, 1);
    }

    /** Reads no byte of the record after it. */
    private int readRecord(RecordSeal seal) throws IOException {
        try {
            if (head.hasRemaining()) {
                int count = seal.isUnused() ? fillFirst() : fill(head, head.position() == 0);
                if (count <= 0) {
                    return count;
                }
                int bytes = seal.restBytes(header);
                if (rest.capacity() < bytes) {
                    rest = ByteBuffer.allocate(bytes);
                }
                rest.clear().limit(bytes);
            }
            if (rest.hasRemaining() && fill(rest, false) <= 0) {
                return 0;
            }
            if (opened.length < rest.limit()) {
                opened = new byte[rest.limit()];
            }
            plain = ByteBuffer.wrap(opened, 0, seal.open(header, rest.array(), rest.limit(), opened));
            head.clear();
            return 1;
        } catch (SealException e) {
            opener = Optional.empty();
            access.refuse(plane + ": " + peer, String.valueOf(e.getMessage()));
            throw e;
        }
    }

    /** The header of the first record, which a peer with another secret never sends. */
    private int fillFirst() throws IOException {
        try {
            return fill(head, false);
        } catch (EOFException | SocketException e) {
            throw new IOException(
                    "it ended the connection before its first record (" + e.getMessage() + "): " + SAME_SETTINGS, e);
        }
    }

    /** @return 1 if the buffer is full, 0 if the connection below is not ready, -1 at an end that is in order */
    private int fill(ByteBuffer buffer, boolean mayEnd) throws IOException {
        while (buffer.hasRemaining()) {
            int count = in.read(buffer);
            if (count < 0 && mayEnd) {
                return -1;
            } else if (count < 0) {
                throw new EOFException("the connection ended within a record");
            } else if (count == 0) {
                return 0;
            }
        }
        return 1;
    }

    /**
     * Seals one record and sends as much of it as the connection below takes; {@link #flush} sends the rest.
     *
     * @return bytes that were sealed; 0 if a record before is not sent yet
     */
    @Override
    public long write(ByteBuffer[] from, int offset, int length) throws IOException {
        if (!flush()) {
            return 0;
        }
        long all = 0;
        for (int i = offset; i < offset + length; i++) {
            all += from[i].remaining();
        }
        int bytes = (int) Math.min(all, RecordSeal.MOST_BYTES);
        if (bytes == 0) {
            return 0;
        }
        if (gathered.length < bytes) {
            gathered = new byte[bytes];
            outgoing = ByteBuffer.allocate(RecordSeal.recordBytes(bytes));
        }
        int at = 0;
        for (int i = offset; at < bytes; i++) {
            int part = Math.min(from[i].remaining(), bytes - at);
            from[i].get(gathered, at, part);
            at += part;
        }
        sealer.orElseThrow().seal(gathered, bytes, outgoing.array());
        outgoing.clear().limit(RecordSeal.recordBytes(bytes));
        boolean unusedSent = flush();
        return bytes;
    }

    @Override
    public long write(ByteBuffer[] from) throws IOException {
        return write(from, 0, from.length);
    }

    @Override
    public int write(ByteBuffer from) throws IOException {
        return (int) write(new ByteBuffer[] {from}, 0, 1);
    }

    /** Sends the rest of the last record; returns false if the connection below does not take all of it now. */
    public boolean flush() throws IOException {
        while (outgoing.hasRemaining()) {
            if (out.write(outgoing) == 0) {
                return false;
            }
        }
        return true;
    }

    @Override
    public boolean isOpen() {
        return in.isOpen();
    }

    @Override
    public void close() throws IOException {
        try (in;
                out) {
            // Both are closed, whatever the first one throws.
        }
    }
}
