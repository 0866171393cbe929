package baton.messages;

import baton.kv.ConfigException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermission;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.security.SecureRandom;
import java.util.Arrays;
import java.util.Set;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A secret that instances share and by which they authenticate each other. It is never sent: the proofs are HMACs over nonces of
 * both sides, a purpose and the authenticated message.
 */
public final class PeerSecret {
    /** Bytes of a nonce. */
    public static final int NONCE_BYTES = 32;

    /** Bytes of {@link #mac}. */
    public static final int MAC_BYTES = 32;

    private static final Logger log = LoggerFactory.getLogger(PeerSecret.class);
    private static final String ALGORITHM = "HmacSHA256";
    private static final byte[] DOMAIN = "baton-kv-auth/1".getBytes(StandardCharsets.US_ASCII);
    private static final int LEAST_BYTES = 16;
    private static final int MOST_BYTES = 4096;

    private final byte[] bytes;

    private PeerSecret(byte[] bytes) {
        this.bytes = bytes;
    }

    /**
     * The content of a file, without white space at its end.
     *
     * @param field for errors
     * @throws ConfigException if it cannot be read, or has fewer than 16 or more than 4096 bytes
     */
    public static PeerSecret read(String field, Path file) {
        byte[] bytes;
        try {
            if (Files.size(file) > MOST_BYTES) {
                throw new ConfigException(
                        field, "is " + file + ", which has more than " + MOST_BYTES + " bytes, the most of a secret");
            }
            bytes = Files.readAllBytes(file);
        } catch (IOException e) {
            throw new ConfigException(field, "is " + file + ", which cannot be read: " + e, e);
        }
        int end = bytes.length;
        while (end > 0 && (bytes[end - 1] == '\n' || bytes[end - 1] == '\r' || bytes[end - 1] == ' ')) {
            end--;
        }
        if (end < LEAST_BYTES) {
            throw new ConfigException(
                    field,
                    "is " + file + ", which has " + end + " bytes, must have a secret of at least " + LEAST_BYTES
                            + ", such as 'openssl rand -hex 32' writes");
        }
        warnIfOthersCanRead(field, file);
        return new PeerSecret(Arrays.copyOf(bytes, end));
    }

    private static void warnIfOthersCanRead(String field, Path file) {
        try {
            Set<PosixFilePermission> given = Files.getPosixFilePermissions(file);
            if (given.contains(PosixFilePermission.OTHERS_READ)) {
                log.warn("{}: every user of this machine can read {}; chmod 600 lets only its owner", field, file);
            }
        } catch (IOException | UnsupportedOperationException e) {
            log.debug("{}: the permissions of {} are not known", field, file, e);
        }
    }

    /** Random bytes that were never used before. */
    public static byte[] nonce() {
        byte[] nonce = new byte[NONCE_BYTES];
        new SecureRandom().nextBytes(nonce);
        return nonce;
    }

    /**
     * An HMAC with the secret as its key.
     *
     * @param purpose of the proof; an HMAC for one purpose is not valid for another
     */
    public byte[] mac(String purpose, byte[]... parts) {
        try {
            Mac hmac = Mac.getInstance(ALGORITHM);
            hmac.init(new SecretKeySpec(bytes, ALGORITHM));
            add(hmac, DOMAIN);
            add(hmac, purpose.getBytes(StandardCharsets.UTF_8));
            for (byte[] part : parts) {
                add(hmac, part);
            }
            return hmac.doFinal();
        } catch (GeneralSecurityException e) {
            throw new AssertionError("every Java has " + ALGORITHM, e);
        }
    }

    /** Adds a part with its length, so that different lists of parts never give the same bytes. */
    private static void add(Mac hmac, byte[] part) {
        hmac.update(ByteBuffer.allocate(Integer.BYTES).putInt(part.length).flip());
        hmac.update(part);
    }

    /** Whether that is the {@link #mac}; compares in constant time. */
    public boolean isMac(byte[] shown, String purpose, byte[]... parts) {
        return MessageDigest.isEqual(mac(purpose, parts), shown);
    }

    @Override
    public String toString() {
        return "a secret";
    }
}
