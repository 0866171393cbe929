package baton.store.lm;

import io.netty.buffer.ByteBuf;

/**
 * The bytes of LMCache's {@code lm} protocol ({@code lmcache/v1/protocol.py} of 0.5.6). All numbers are int32, little-endian, without
 * padding between them.
 *
 * <pre>
 * request, 186 bytes:  command, length, format, dtype, location, shape 0 to 3; then the key, padded with blanks to 150 bytes
 * reply, 36 bytes:     code, length, format, dtype, shape 0 to 3, location
 * </pre>
 *
 * A PUT's header is followed by its value, and has no reply. A reply to a GET that hits is followed by the value. Requests are answered in
 * their order, and may be sent without waiting for replies.
 *
 * <h2>Additions of {@code baton kv-server}</h2>
 *
 * <p>{@link #BATCH_EXIST} looks up many keys. Its header has the number of keys as shape 0, as its key the common beginning and then the
 * common end of all keys, and as shapes 1 and 2 the bytes of these two. The part between them follows for each key: with shape 3 of 0 its
 * number of bytes as a byte, and the bytes; with shape 3 of {@link #HASHES} 32 bytes that stand for their 64 hexadecimal digits, where the
 * key's beginning ends with {@code @} and its end begins with the only {@code @} in it. The length is that of all of this. The reply has
 * the number of keys as shape 0, and is followed by a bit for each key, the lowest of a byte first, in whole bytes. A client asks for the
 * addition by an EXIST of {@link #PROBE}: a server with it replies with 200 and shape 0 of at least 1, any other server with 400 or shape 0
 * of 0.
 *
 * <p>Where shape 0 of that reply is 2, a client of the same host and user can copy values out of the server's memory, which spares both copies
 * of a socket. {@link #MEMORY}, with any key, has as its reply's value the inode and the bytes of a file as int64, and the file's path in
 * ASCII; or 400. {@link #HOLD} is a GET with a reply that has for each piece of the value an offset in that file and a number of bytes, both int64. The
 * server keeps these bytes until {@link #FREE}, which has no reply, any key, and as shape 0 how many of the values that the connection holds
 * are free, the first held first. The end of the connection frees all of them, and a connection that holds one for longer than the server's
 * timeout is ended: so a client must verify the copied bytes.
 *
 * <p>Before requests to a server with a token both sides prove that they have the token:
 *
 * <pre>
 * client: {@link #GREETING}, {@link #GREETING_VERSION}, a nonce of 32 bytes
 * server: {@link #GREETING}, {@link #GREETING_VERSION}, a nonce of 32 bytes, HMAC-SHA256 {@link #OF_SERVER} over both nonces
 * client: HMAC-SHA256 {@link #OF_CLIENT} over both nonces; requests may follow at once
 * </pre>
 *
 * The HMACs are those of {@link baton.messages.PeerSecret#mac}. A side that finds the other's wrong closes the connection.
 */
public final class LmWire {
    /** Bytes of a request without its value. */
    public static final int REQUEST_BYTES = 186;

    /** Where the key begins in a request. */
    public static final int KEY_AT = 36;

    /** Bytes of a reply without its value. */
    public static final int REPLY_BYTES = 36;

    public static final int PUT = 1;
    public static final int GET = 2;
    public static final int EXIST = 3;
    public static final int LIST = 4;
    public static final int HEALTH = 5;

    /** Baton's addition: looks up many keys. */
    public static final int BATCH_EXIST = 0x7801;

    /** Baton's addition: how processes of the host map the server's memory. */
    public static final int MEMORY = 0x7802;

    /** Baton's addition: the place of a value in the server's memory, where it stays until {@link #FREE}. */
    public static final int HOLD = 0x7803;

    /** Baton's addition: releases held values. */
    public static final int FREE = 0x7804;

    /** The part of a reply to {@link #HOLD} for each piece of a value: offset in the memory and bytes. */
    public static final int PIECE_BYTES = 2 * Long.BYTES;

    /** Shape 0 of the reply to an EXIST of {@link #PROBE}, at least: {@link #BATCH_EXIST}. */
    public static final int ADDS_BATCHES = 1;

    /** The additions of {@link #ADDS_BATCHES}, and {@link #MEMORY}, {@link #HOLD} and {@link #FREE}. */
    public static final int ADDS_MEMORY = 2;

    /** Shape 3 of a {@link #BATCH_EXIST} with hashes. */
    public static final int HASHES = 1;

    public static final int SUCCESS = 200;
    public static final int FAIL = 400;

    /** A key of LMCache's form under which nothing is stored: whether it is there shows the server's additions to the protocol. */
    public static final String PROBE = "baton.kv-server@1@0@0@uint8";

    /** The most keys of a {@link #BATCH_EXIST}. */
    public static final int MOST_BATCH = 16384;

    /** {@code BTKA} in ASCII. */
    public static final int GREETING = 0x414b5442;

    public static final int GREETING_VERSION = 1;

    /** Bytes of a greeting before its nonce. */
    public static final int GREETING_BYTES = 8;

    /** The context of the server's HMAC. */
    public static final String OF_SERVER = "lm server";

    /** The context of the client's HMAC. */
    public static final String OF_CLIENT = "lm client";

    private LmWire() {}

    /** Writes a request's numbers; {@link #writeKey} must follow. */
    static void writeRequest(ByteBuf to, int command, int length, LmMetadata metadata) {
        to.writeIntLE(command);
        to.writeIntLE(length);
        to.writeIntLE(metadata.format());
        to.writeIntLE(metadata.dtype());
        to.writeIntLE(0);
        to.writeIntLE(metadata.shape0());
        to.writeIntLE(metadata.shape1());
        to.writeIntLE(metadata.shape2());
        to.writeIntLE(metadata.shape3());
    }

    /** Writes a key with its padding. */
    static void writeKey(ByteBuf to, byte[] key) {
        to.writeBytes(key);
        pad(to, LmClient.MOST_KEY_BYTES - key.length);
    }

    static void pad(ByteBuf to, int blanks) {
        int left = blanks;
        for (; left >= 8; left -= 8) {
            to.writeLong(0x2020202020202020L);
        }
        for (; left > 0; left--) {
            to.writeByte(' ');
        }
    }

    /** Writes a reply. */
    public static void writeReply(ByteBuf to, int code, int length, LmMetadata metadata) {
        to.writeIntLE(code);
        to.writeIntLE(length);
        to.writeIntLE(metadata.format());
        to.writeIntLE(metadata.dtype());
        to.writeIntLE(metadata.shape0());
        to.writeIntLE(metadata.shape1());
        to.writeIntLE(metadata.shape2());
        to.writeIntLE(metadata.shape3());
        to.writeIntLE(0);
    }
}
