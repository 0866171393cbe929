package baton.transfer.embedded;

import baton.transfer.Transfer.Cause;
import baton.transfer.TransferException;
import java.nio.BufferUnderflowException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Optional;

/**
 * The frames between two agents.
 *
 * <p>A frame is a header of 16 bytes, integers in network order: type (1), zero (3), bytes of the payload (4), id (8); and its
 * payload. The connecting agent sends {@link Hello} and is answered {@link Welcome} or {@link Refuse}. From then
 * on the connecting agent is the initiator, the other one the responder. A frame of type {@link #DATA} carries the next bytes of the transfer of that id, of all its ranges one after the other.
 */
sealed interface Frame {
    int HEADER_BYTES = 16;
    byte DATA = 0;
    /** Stands for the id in a {@link Hello}. */
    long MAGIC = 0x4261746f6e547278L;

    int MOST_DATA_BYTES = 1 << 20;

    private static int longestText() {
        return 1024;
    }

    /**
     * Asks to be admitted: contains the secret of the agent called, and the metadata of the one that calls, without its secret.
     *
     * @param secret that of the agent called; where instances have a PeerSecret, which seals this frame, it is not looked at
     */
    record Hello(byte[] secret, String name, byte[] metadata) implements Frame {}

    /** Admits. */
    record Welcome() implements Frame {}

    /** Does not admit. */
    record Refuse(String reason) implements Frame {}

    record Notify(byte[] message) implements Frame {}

    /**
     * Asks for data.
     *
     * @param ranges for each range its address in the memory of the agent asked, and its bytes
     */
    record Read(long id, long timeoutMillis, long[] ranges) implements Frame {}

    /**
     * Asks to take data over.
     *
     * @param grant token of a {@link WriteGrant} of the agent asked; 0 for none
     * @param mapped the agent asked copies from the memory of the one that asks, instead of being sent the data
     * @param ranges for each range its address in the memory of the agent that asks, in that of the agent asked, and its bytes
     */
    record Write(long id, long timeoutMillis, long grant, boolean mapped, long[] ranges) implements Frame {}

    /**
     * The end of a requested operation.
     *
     * @param failure empty if all was done
     */
    record Result(long id, Optional<Failure> failure) implements Frame {}

    /** @param cause empty if the memory of the agent that asked cannot be mapped */
    record Failure(Optional<Cause> cause, String message) {}

    record Cancel(long id) implements Frame {}

    record Ping() implements Frame {}

    record Pong() implements Frame {}

    /** The sender's regions have changed. */
    record Regions(Metadata.Update update) implements Frame {}

    /**
     * A frame's beginning.
     *
     * @param length of its payload
     */
    record Header(byte type, int length, long id) {}

    /** @throws TransferException if there is no such frame, or it may not be that long */
    static Header header(ByteBuffer in, EmbeddedAgent.Limits limits) throws TransferException {
        int first = in.getInt();
        byte type = (byte) (first >>> 24);
        int length = in.getInt();
        long id = in.getLong();
        if ((first & 0xffffff) != 0 || type < DATA || type > 13) {
            throw new TransferException("a frame begins with %08x".formatted(first));
        }
        int most = switch (type) {
            case DATA -> MOST_DATA_BYTES;
            case 1 -> Metadata.MOST_BYTES + 1024;
            case 3, 7 -> longestText() + 1;
            case 4 -> limits.messageBytes();
            case 5 -> Long.BYTES + limits.ranges() * 2 * Long.BYTES;
            case 6 -> 2 * Long.BYTES + 1 + limits.ranges() * 3 * Long.BYTES;
            case 11 -> Metadata.MOST_BYTES;
            case 2, 8, 9, 10 -> 0;
            default -> -1;
        };
        if (length < 0 || length > most) {
            throw new TransferException(
                    "a frame of type=%d has %d bytes, at most %d are allowed".formatted(type, length, most));
        }
        return new Header(type, length, id);
    }

    /** The header of {@link #DATA}. */
    static ByteBuffer dataHeader(long id, int length) {
        return ByteBuffer.allocate(HEADER_BYTES)
                .putInt(DATA << 24)
                .putInt(length)
                .putLong(id)
                .flip();
    }

    /**
     * @param payload all of it, and not of {@link #DATA}
     * @throws TransferException if it is malformed
     */
    static Frame decode(Header header, ByteBuffer payload) throws TransferException {
        try {
            Frame frame = switch (header.type) {
                case 1 -> {
                    if (header.id != MAGIC) {
                        throw new TransferException("the connecting process is no embedded transfer agent");
                    }
                    yield new Hello(
                            take(payload, Metadata.SECRET_BYTES),
                            new String(take(payload, payload.getShort()), StandardCharsets.UTF_8),
                            take(payload, payload.remaining()));
                }
                case 2 -> new Welcome();
                case 3 -> new Refuse(text(payload));
                case 4 -> new Notify(take(payload, payload.remaining()));
                case 5 -> new Read(header.id, payload.getLong(), ranges(payload, 2));
                case 6 -> new Write(header.id, payload.getLong(), payload.getLong(), flag(payload), ranges(payload, 3));
                case 7 -> new Result(header.id, failure(payload));
                case 8 -> new Cancel(header.id);
                case 9 -> new Ping();
                case 10 -> new Pong();
                case 11 -> new Regions(Metadata.parseRegions(payload));
                default -> throw new TransferException("a frame has type=" + header.type);
            };
            if (payload.hasRemaining()) {
                throw new TransferException(
                        "a frame of type=%d has %d bytes too many".formatted(header.type, payload.remaining()));
            }
            return frame;
        } catch (BufferUnderflowException e) {
            throw new TransferException("a frame of type=%d is truncated".formatted(header.type), e);
        }
    }

    /** Header and payload, ready to be sent. */
    default ByteBuffer encode() {
        return switch (this) {
            case Hello(byte[] secret, String name, byte[] metadata) -> {
                byte[] text = name.getBytes(StandardCharsets.UTF_8);
                yield begin(1, secret.length + Short.BYTES + text.length + metadata.length, MAGIC)
                        .put(secret)
                        .putShort((short) text.length)
                        .put(text)
                        .put(metadata)
                        .flip();
            }
            case Welcome() -> begin(2, 0, 0).flip();
            case Refuse(String reason) -> {
                byte[] text = shortened(reason);
                yield begin(3, text.length, 0).put(text).flip();
            }
            case Notify(byte[] message) ->
                begin(4, message.length, 0).put(message).flip();
            case Read(long id, long timeoutMillis, long[] ranges) -> {
                ByteBuffer out =
                        begin(5, Long.BYTES + ranges.length * Long.BYTES, id).putLong(timeoutMillis);
                out.asLongBuffer().put(ranges);
                yield out.rewind();
            }
            case Write(long id, long timeoutMillis, long grant, boolean mapped, long[] ranges) -> {
                ByteBuffer out = begin(6, 2 * Long.BYTES + 1 + ranges.length * Long.BYTES, id)
                        .putLong(timeoutMillis)
                        .putLong(grant)
                        .put((byte) (mapped ? 1 : 0));
                out.asLongBuffer().put(ranges);
                yield out.rewind();
            }
            case Result(long id, Optional<Failure> failure) -> {
                byte[] text = failure.map(each -> shortened(each.message)).orElseGet(() -> new byte[0]);
                ByteBuffer out = begin(7, failure.isPresent() ? 1 + text.length : 0, id);
                failure.ifPresent(each ->
                        out.put(each.cause.map(Frame::code).orElse(UNMAPPED)).put(text));
                yield out.flip();
            }
            case Cancel(long id) -> begin(8, 0, id).flip();
            case Ping() -> begin(9, 0, 0).flip();
            case Pong() -> begin(10, 0, 0).flip();
            case Regions(Metadata.Update update) -> {
                ByteBuffer payload = ByteBuffer.allocate(Metadata.MOST_BYTES);
                Metadata.putRegions(payload, update.revision(), update.regions());
                payload.flip();
                yield begin(11, payload.remaining(), 0).put(payload).flip();
            }
        };
    }

    byte UNMAPPED = 0;

    private static ByteBuffer begin(int type, int length, long id) {
        return ByteBuffer.allocate(HEADER_BYTES + length)
                .putInt(type << 24)
                .putInt(length)
                .putLong(id);
    }

    private static byte[] take(ByteBuffer in, int bytes) throws TransferException {
        if (bytes < 0 || bytes > in.remaining()) {
            throw new TransferException("a frame has %d bytes where %d are announced".formatted(in.remaining(), bytes));
        }
        byte[] taken = new byte[bytes];
        in.get(taken);
        return taken;
    }

    private static String text(ByteBuffer in) throws TransferException {
        return new String(take(in, in.remaining()), StandardCharsets.UTF_8);
    }

    private static byte[] shortened(String text) {
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        return bytes.length <= longestText() ? bytes : Arrays.copyOf(bytes, longestText());
    }

    private static boolean flag(ByteBuffer in) throws TransferException {
        byte value = in.get();
        if (value != 0 && value != 1) {
            throw new TransferException("a frame has a flag of " + value);
        }
        return value == 1;
    }

    private static long[] ranges(ByteBuffer in, int each) throws TransferException {
        int count = in.remaining() / Long.BYTES;
        if (in.remaining() % (each * Long.BYTES) != 0) {
            throw new TransferException("a frame has ranges of %d bytes".formatted(in.remaining()));
        }
        long[] ranges = new long[count];
        in.asLongBuffer().get(ranges);
        in.position(in.limit());
        return ranges;
    }

    private static byte code(Cause cause) {
        return switch (cause) {
            case REFUSED -> 1;
            case PEER_GONE -> 2;
            case TIMEOUT -> 3;
            case CANCELLED -> 4;
            case TRANSPORT -> 5;
            case NOT_PERMITTED -> 6;
        };
    }

    private static Optional<Failure> failure(ByteBuffer in) throws TransferException {
        if (!in.hasRemaining()) {
            return Optional.empty();
        }
        byte code = in.get();
        Optional<Cause> cause =
                Arrays.stream(Cause.values()).filter(each -> code(each) == code).findFirst();
        if (cause.isEmpty() && code != UNMAPPED) {
            throw new TransferException("a frame has cause=" + code);
        }
        return Optional.of(new Failure(cause, text(in)));
    }
}
