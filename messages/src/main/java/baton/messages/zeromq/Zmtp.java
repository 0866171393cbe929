package baton.messages.zeromq;

import baton.messages.PeerAccess;
import baton.messages.SealedChannel;
import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.ByteArrayOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;

/**
 * One side of a connection in ZMTP 3.0 with the NULL mechanism (rfc.zeromq.org/spec/23), as libzmq 4 speaks it; the PING of ZMTP
 * 3.1 (spec/37) is answered. The peer's input is bounded: the size of a command, the frames of a message and their bytes.
 *
 * <p>After the handshake one thread may send while another receives. Blocks as long as the streams do.
 */
final class Zmtp {
    private static final int GREETING_BYTES = 64;
    private static final int MECHANISM_AT = 12;
    private static final int MECHANISM_BYTES = 20;
    private static final byte[] NULL_MECHANISM = ascii("NULL");

    private static final int MORE = 1;
    private static final int LONG = 2;
    private static final int COMMAND = 4;

    private static final int MAX_COMMAND_BYTES = 512;
    private static final int MAX_IDENTITY_BYTES = 255;
    private static final int MAX_PING_CONTEXT_BYTES = 16;
    /** Commands in a row without a message; far more than a peer sends that waits for an answer. */
    private static final int MAX_COMMANDS = 64;

    private final InputStream in;
    private final OutputStream out;
    private final int maxFrames;
    private final long maxMessageBytes;
    /** Sends nothing before the peer's greeting: the called side of a sealed connection, to which a record of the peer shows the secret. */
    private final boolean answers;

    private Zmtp(InputStream in, OutputStream out, int maxFrames, long maxMessageBytes, boolean answers) {
        this.in = new BufferedInputStream(in);
        this.out = out;
        this.answers = answers;
        this.maxFrames = maxFrames;
        this.maxMessageBytes = maxMessageBytes;
    }

    /**
     * One side of a connection between instances, sealed if they have a secret.
     *
     * @param caller whether this side has connected
     * @param maxFrames frames in a received message, the envelope's included
     * @param maxMessageBytes bytes in all frames of a received message
     */
    static Zmtp over(Socket socket, PeerAccess access, boolean caller, int maxFrames, long maxMessageBytes)
            throws IOException {
        InputStream in = socket.getInputStream();
        OutputStream out = socket.getOutputStream();
        boolean seals = access.secret().isPresent();
        if (seals) {
            SealedChannel sealed = SealedChannel.open(
                    access,
                    "messages",
                    caller,
                    String.valueOf(socket.getRemoteSocketAddress()),
                    Channels.newChannel(in),
                    Channels.newChannel(out));
            in = Channels.newInputStream(sealed);
            out = Channels.newOutputStream(sealed);
        }
        return new Zmtp(in, new BufferedOutputStream(out), maxFrames, maxMessageBytes, !caller && seals);
    }

    /** The peer does not keep to the protocol or to the bounds. */
    static final class Violation extends IOException {
        Violation(String message) {
            super(message);
        }
    }

    /** Greets the peer as a socket without an identity. */
    void handshake(String socketType, Set<String> peerTypes) throws IOException {
        String unusedIdentity = handshake(socketType, "", peerTypes);
    }

    /**
     * Greets the peer and sends this socket's type and identity.
     *
     * @param identity ASCII, at most 255 characters; empty for none
     * @param peerTypes socket types that may be at the other end
     * @return the peer's identity, one character for each byte; empty if it gives none
     * @throws Violation if the other side is no such socket
     */
    String handshake(String socketType, String identity, Set<String> peerTypes) throws IOException {
        if (answers) {
            readGreeting();
        }
        out.write(greeting());
        out.flush();
        if (!answers) {
            readGreeting();
        }
        send(COMMAND, ready(socketType, identity));
        out.flush();
        int flags = readFlags();
        if ((flags & COMMAND) == 0) {
            throw new Violation("a message before READY");
        }
        ByteBuffer command = ByteBuffer.wrap(readBody(flags, MAX_COMMAND_BYTES, "command"));
        String name = shortText(command, "command name");
        if (name.equals("ERROR")) {
            throw new Violation("the peer refused: " + shortText(command, "reason"));
        }
        if (!name.equals("READY")) {
            throw new Violation("command '" + printable(name) + "' instead of READY");
        }
        Metadata peer = metadata(command);
        if (!peerTypes.contains(peer.socketType)) {
            throw new Violation("Socket-Type is '" + printable(peer.socketType) + "', must be one of "
                    + String.join(", ", peerTypes));
        }
        return peer.identity;
    }

    /** Sends one message. */
    void send(List<byte[]> frames) throws IOException {
        synchronized (out) {
            for (int i = 0; i < frames.size(); i++) {
                send(i + 1 < frames.size() ? MORE : 0, frames.get(i));
            }
            out.flush();
        }
    }

    /**
     * Waits for the next message's first byte, so that the rest can have a time limit.
     *
     * @return false if the peer closed the connection in good order
     */
    boolean awaitMessage() throws IOException {
        in.mark(1);
        if (in.read() < 0) {
            return false;
        }
        in.reset();
        return true;
    }

    /**
     * As {@link #awaitMessage}, for a peer that may send nothing but commands for as long as it likes, such as a subscriber's
     * heartbeats. They are dealt with.
     */
    boolean awaitMessageAfterCommands() throws IOException {
        while (awaitMessage()) {
            in.mark(1);
            int flags = readFlags();
            in.reset();
            if ((flags & COMMAND) == 0) {
                return true;
            }
            onCommand(ByteBuffer.wrap(readBody(readFlags(), MAX_COMMAND_BYTES, "command")));
        }
        return false;
    }

    /** The next message; commands before it are dealt with. */
    List<byte[]> receive() throws IOException {
        List<byte[]> frames = new ArrayList<>(4);
        long left = maxMessageBytes;
        int commands = 0;
        while (true) {
            int flags = readFlags();
            if ((flags & COMMAND) != 0) {
                if (++commands > MAX_COMMANDS) {
                    throw new Violation("more than " + MAX_COMMANDS + " commands in a row");
                }
                onCommand(ByteBuffer.wrap(readBody(flags, MAX_COMMAND_BYTES, "command")));
                continue;
            }
            if (frames.size() == maxFrames) {
                throw new Violation("a message has more than " + maxFrames + " frames");
            }
            byte[] frame = readBody(flags, left, "message");
            frames.add(frame);
            left -= frame.length;
            if ((flags & MORE) == 0) {
                return frames;
            }
        }
    }

    private static byte[] greeting() {
        byte[] greeting = new byte[GREETING_BYTES];
        greeting[0] = (byte) 0xff;
        // Libzmq's way to be understood by its version 2 as well: a frame of one byte.
        greeting[8] = 1;
        greeting[9] = 0x7f;
        greeting[10] = 3;
        System.arraycopy(NULL_MECHANISM, 0, greeting, MECHANISM_AT, NULL_MECHANISM.length);
        return greeting;
    }

    private void readGreeting() throws IOException {
        byte[] signature = readFully(10);
        if ((signature[0] & 0xff) != 0xff || (signature[9] & 1) == 0) {
            throw new Violation(
                    "no ZMTP greeting; a peer with kv_auth_secret_file talks only to those with the same secret");
        }
        int major = readFully(1)[0] & 0xff;
        if (major < 3) {
            throw new Violation("ZMTP version " + major + ", must be 3 or later");
        }
        byte[] rest = readFully(GREETING_BYTES - 11);
        byte[] mechanism = Arrays.copyOfRange(rest, 1, 1 + MECHANISM_BYTES);
        if (!Arrays.equals(mechanism, Arrays.copyOf(NULL_MECHANISM, MECHANISM_BYTES))) {
            throw new Violation("mechanism '" + printable(text(mechanism).trim()) + "', must be NULL");
        }
    }

    private static byte[] ready(String socketType, String identity) {
        ByteArrayOutputStream command = new ByteArrayOutputStream();
        shortText(command, "READY");
        property(command, "Socket-Type", socketType);
        property(command, "Identity", identity);
        return command.toByteArray();
    }

    private record Metadata(String socketType, String identity) {}

    private static Metadata metadata(ByteBuffer metadata) throws Violation {
        String type = "";
        String identity = "";
        while (metadata.hasRemaining()) {
            String name = shortText(metadata, "property name");
            if (metadata.remaining() < Integer.BYTES) {
                throw new Violation("READY ends inside a property");
            }
            int length = metadata.getInt();
            if (length < 0 || length > metadata.remaining()) {
                throw new Violation("property " + printable(name) + " is longer than its command");
            }
            byte[] value = new byte[length];
            metadata.get(value);
            if (name.equalsIgnoreCase("Socket-Type")) {
                type = text(value);
            } else if (name.equalsIgnoreCase("Identity")) {
                identity = text(value);
            }
        }
        if (identity.length() > MAX_IDENTITY_BYTES) {
            throw new Violation(
                    "Identity has " + identity.length() + " bytes, must have at most " + MAX_IDENTITY_BYTES);
        }
        return new Metadata(type, identity);
    }

    private void onCommand(ByteBuffer command) throws IOException {
        String name = shortText(command, "command name");
        if (name.equals("ERROR")) {
            throw new Violation("the peer refused: " + printable(shortText(command, "reason")));
        }
        // Two bytes of time to live, then the bytes that the answer repeats.
        if (name.equals("PING") && command.remaining() >= Short.BYTES) {
            command.getShort();
            byte[] context = new byte[Math.min(command.remaining(), MAX_PING_CONTEXT_BYTES)];
            command.get(context);
            ByteArrayOutputStream pong = new ByteArrayOutputStream();
            shortText(pong, "PONG");
            pong.writeBytes(context);
            synchronized (out) {
                send(COMMAND, pong.toByteArray());
                out.flush();
            }
        }
    }

    private void send(int flags, byte[] body) throws IOException {
        ByteBuffer header = ByteBuffer.allocate(9);
        if (body.length <= 255) {
            header.put((byte) flags).put((byte) body.length);
        } else {
            header.put((byte) (flags | LONG)).putLong(body.length);
        }
        out.write(header.array(), 0, header.position());
        out.write(body);
    }

    private int readFlags() throws IOException {
        int flags = readFully(1)[0] & 0xff;
        if ((flags & ~(MORE | LONG | COMMAND)) != 0 || (flags & (MORE | COMMAND)) == (MORE | COMMAND)) {
            throw new Violation("frame flags are 0x" + Integer.toHexString(flags));
        }
        return flags;
    }

    private byte[] readBody(int flags, long most, String what) throws IOException {
        long length =
                (flags & LONG) != 0 ? ByteBuffer.wrap(readFully(Long.BYTES)).getLong() : readFully(1)[0] & 0xff;
        if (length < 0 || length > most) {
            throw new Violation("a frame of " + Long.toUnsignedString(length) + " bytes makes the " + what
                    + " larger than allowed");
        }
        return readFully((int) length);
    }

    private byte[] readFully(int bytes) throws IOException {
        // Memory is taken as bytes arrive, not as they are announced.
        byte[] read = in.readNBytes(bytes);
        if (read.length < bytes) {
            throw new EOFException("the peer closed the connection");
        }
        return read;
    }

    private static void property(ByteArrayOutputStream to, String name, String value) {
        shortText(to, name);
        to.writeBytes(ByteBuffer.allocate(Integer.BYTES).putInt(value.length()).array());
        to.writeBytes(ascii(value));
    }

    private static void shortText(ByteArrayOutputStream to, String text) {
        to.write(text.length());
        to.writeBytes(ascii(text));
    }

    private static String shortText(ByteBuffer from, String what) throws Violation {
        int length = from.hasRemaining() ? from.get() & 0xff : 0;
        if (length > from.remaining()) {
            throw new Violation(what + " is longer than its command");
        }
        byte[] bytes = new byte[length];
        from.get(bytes);
        return text(bytes);
    }

    private static byte[] ascii(String text) {
        return text.getBytes(StandardCharsets.US_ASCII);
    }

    private static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.ISO_8859_1);
    }

    /** Text that a peer sent, fit for a log. */
    private static String printable(String text) {
        return text.replaceAll("[^ -~]", "?");
    }
}
