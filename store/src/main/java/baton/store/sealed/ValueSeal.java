package baton.store.sealed;

import baton.kv.BlockHash;
import baton.kv.Sha256;
import baton.messages.PeerSecret;
import baton.store.StoreFormat;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.security.GeneralSecurityException;
import java.security.SecureRandom;
import java.util.HexFormat;
import java.util.List;
import javax.crypto.AEADBadTagException;
import javax.crypto.Cipher;
import javax.crypto.spec.GCMParameterSpec;
import javax.crypto.spec.SecretKeySpec;

/**
 * Seals values of one format: a random nonce of 12 bytes, the ciphertext of AES-256-GCM, the tag of 16 bytes. The key of a value is an HMAC
 * of the format and the value's hash, which the tenant's salt is part of. So a value under another hash, or of another model, does not open.
 * Thread-safe.
 */
final class ValueSeal {
    private static final int NONCE_BYTES = 12;
    private static final int TAG_BITS = 128;
    private static final int NAME_BYTES = 8;

    private final PeerSecret secret;
    private final byte[] format;
    private final SecureRandom random = new SecureRandom();

    /** @param format of the plain values */
    ValueSeal(PeerSecret secret, StoreFormat format) {
        this.secret = secret;
        this.format = Sha256.of(format.describe());
    }

    /** Tells keys apart, and nothing of them. */
    static String name(PeerSecret secret) {
        return HexFormat.of().formatHex(secret.mac("name of the key of stored values"), 0, NAME_BYTES);
    }

    /** @param value in pieces */
    void seal(BlockHash key, List<MemorySegment> value, MemorySegment sealed) {
        byte[] nonce = new byte[NONCE_BYTES];
        random.nextBytes(nonce);
        ByteBuffer to = sealed.asByteBuffer().put(nonce);
        try {
            Cipher cipher = cipher(Cipher.ENCRYPT_MODE, key, nonce);
            for (MemorySegment piece : value) {
                cipher.update(piece.asByteBuffer(), to);
            }
            cipher.doFinal(ByteBuffer.allocate(0), to);
        } catch (GeneralSecurityException e) {
            throw new IllegalStateException("the value of " + key + " cannot be sealed", e);
        }
    }

    /** Whether it is this key's value as it was sealed; the bytes of {@code value} are undefined if not. */
    boolean open(BlockHash key, MemorySegment sealed, MemorySegment value) {
        ByteBuffer from = sealed.asByteBuffer();
        byte[] nonce = new byte[NONCE_BYTES];
        from.get(nonce);
        try {
            cipher(Cipher.DECRYPT_MODE, key, nonce).doFinal(from, value.asByteBuffer());
            return true;
        } catch (AEADBadTagException e) {
            return false;
        } catch (GeneralSecurityException e) {
            throw new IllegalStateException("the value of " + key + " cannot be opened", e);
        }
    }

    private Cipher cipher(int mode, BlockHash key, byte[] nonce) throws GeneralSecurityException {
        Cipher cipher = Cipher.getInstance("AES/GCM/NoPadding");
        byte[] bytes = secret.mac("stored value", format, key.toBytes());
        cipher.init(mode, new SecretKeySpec(bytes, "AES"), new GCMParameterSpec(TAG_BITS, nonce));
        return cipher;
    }
}
