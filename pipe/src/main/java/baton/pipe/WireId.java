package baton.pipe;

import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.UnknownHostException;
import java.nio.ByteBuffer;
import java.security.SecureRandom;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;

/**
 * The unique id of an offered wire. Big endian: magic, version, kind, bytes of the address (0, 4 or 16), the address, port, token;
 * {@value #MOST_BYTES} bytes at most. An address is never a name, so that no name of a peer is resolved.
 *
 * @param kind of the offering transport
 * @param address of the listener; empty for every address of its machine
 * @param token that the joining side has to send
 */
public record WireId(Kind kind, Optional<InetAddress> address, int port, byte[] token) {
    /** Bytes of a token. */
    public static final int TOKEN_BYTES = 16;

    /** Bytes of the longest id. */
    public static final int MOST_BYTES = 4 + 1 + 1 + 1 + 16 + 2 + TOKEN_BYTES;

    private static final int MAGIC = 0x42544e57;
    private static final byte VERSION = 1;
    private static final SecureRandom RANDOM = new SecureRandom();

    /** Transports. */
    public enum Kind {
        TCP(1),
        GLOO(2),
        NCCL(3);

        private final byte code;

        Kind(int code) {
            this.code = (byte) code;
        }
    }

    /** @throws IllegalArgumentException if port or token are invalid */
    public WireId {
        if (port < 1 || port > 65535 || token.length != TOKEN_BYTES) {
            throw new IllegalArgumentException("port=%d token.length=%d".formatted(port, token.length));
        }
    }

    /** The id of a listener, with a random token. */
    public static WireId fresh(Kind kind, InetSocketAddress listening) {
        byte[] token = new byte[TOKEN_BYTES];
        RANDOM.nextBytes(token);
        Optional<InetAddress> address = Optional.of(listening.getAddress()).filter(each -> !each.isAnyLocalAddress());
        return new WireId(kind, address, listening.getPort(), token);
    }

    /** The bytes that are sent to the peer. */
    public byte[] encode() {
        byte[] place = address.map(InetAddress::getAddress).orElse(new byte[0]);
        return ByteBuffer.allocate(MOST_BYTES - 16 + place.length)
                .putInt(MAGIC)
                .put(VERSION)
                .put(kind.code)
                .put((byte) place.length)
                .put(place)
                .putShort((short) port)
                .put(token)
                .array();
    }

    /**
     * Reads an id from a peer; untrusted.
     *
     * @throws PipeException if it is no id of that kind
     */
    public static WireId decode(byte[] id, Kind kind) throws PipeException {
        int head = 4 + 1 + 1 + 1;
        if (id.length < head) {
            throw new PipeException("the id of a wire has %d bytes, at least %d".formatted(id.length, head));
        }
        ByteBuffer in = ByteBuffer.wrap(id);
        int magic = in.getInt();
        int version = in.get();
        int code = in.get();
        int place = in.get();
        if (magic != MAGIC || version != VERSION) {
            throw new PipeException("not the id of a wire: it begins with %08x %02x".formatted(magic, version));
        }
        if (code != kind.code) {
            throw new PipeException("the id is not one of " + kind + ", but of kind " + code);
        }
        if (place != 0 && place != 4 && place != 16 || in.remaining() != place + 2 + TOKEN_BYTES) {
            throw new PipeException(
                    "the id of a wire has an address of %d bytes and %d in all".formatted(place, id.length));
        }
        byte[] address = new byte[place];
        in.get(address);
        int port = Short.toUnsignedInt(in.getShort());
        byte[] token = new byte[TOKEN_BYTES];
        in.get(token);
        if (port == 0) {
            throw new PipeException("the id of a wire has port 0");
        }
        try {
            InetAddress at = place == 0 ? null : InetAddress.getByAddress(address);
            return new WireId(kind, Optional.ofNullable(at), port, token);
        } catch (UnknownHostException e) {
            throw new PipeException("the id of a wire has no address", e);
        }
    }

    /**
     * The address to connect to.
     *
     * @param host name or address at which the offering side is known to be
     * @throws PipeException if the id has another host's address, or the host is not known
     */
    public InetSocketAddress at(String host) throws PipeException {
        List<InetAddress> known = resolve(host);
        InetAddress at = address.orElse(known.getFirst());
        if (!known.contains(at)) {
            throw new PipeException("the id of a wire leads to %s, but its peer is at %s %s"
                    .formatted(at.getHostAddress(), host, known));
        }
        return new InetSocketAddress(at, port);
    }

    /**
     * The addresses of a host to connect to.
     *
     * @throws PipeException if it has none, or is the wildcard address
     */
    public static List<InetAddress> resolve(String host) throws PipeException {
        try {
            List<InetAddress> known = Arrays.asList(InetAddress.getAllByName(host));
            if (host.isBlank() || known.getFirst().isAnyLocalAddress()) {
                throw new PipeException("host '" + host + "' is none to connect to: a peer is at one address");
            }
            return known;
        } catch (UnknownHostException e) {
            throw new PipeException("host '" + host + "' has no address", e);
        }
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof WireId id && Arrays.equals(encode(), id.encode());
    }

    @Override
    public int hashCode() {
        return Arrays.hashCode(encode());
    }

    /** Without the token. */
    @Override
    public String toString() {
        return kind + " at " + address.map(InetAddress::getHostAddress).orElse("*") + ":" + port;
    }
}
