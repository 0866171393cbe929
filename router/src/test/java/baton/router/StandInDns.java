package baton.router;

import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.DatagramPacket;
import java.net.DatagramSocket;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/** A DNS server for tests (RFC 1035, RFC 2782): it answers questions for A and SRV records of its names by UDP. */
final class StandInDns implements AutoCloseable {
    private static final int A = 1;
    private static final int SRV = 33;
    private static final int ANSWER = 0x8580;
    private static final int NO_SUCH_NAME = 3;
    private static final int TTL_SECONDS = 0;

    /** The name of the question, at its place in the message. */
    private static final int POINTER = 0xc00c;

    record Target(int priority, int weight, int port, String host) {}

    private final DatagramSocket socket;
    private final Thread thread;
    private final Map<String, List<String>> addresses = new ConcurrentHashMap<>();
    private final Map<String, List<Target>> services = new ConcurrentHashMap<>();

    StandInDns() {
        try {
            socket = new DatagramSocket(0, InetAddress.getLoopbackAddress());
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        thread = Thread.ofVirtual().start(this::run);
    }

    InetSocketAddress address() {
        return new InetSocketAddress(InetAddress.getLoopbackAddress(), socket.getLocalPort());
    }

    /** From now on; no addresses: the name is not found. */
    void address(String name, String... ip) {
        addresses.put(name + ".", List.of(ip));
    }

    /** From now on; no targets: the name is not found. */
    void service(String name, Target... targets) {
        services.put(name + ".", List.of(targets));
    }

    private void run() {
        byte[] buffer = new byte[1500];
        while (!socket.isClosed()) {
            DatagramPacket packet = new DatagramPacket(buffer, buffer.length);
            try {
                socket.receive(packet);
                byte[] answer = answer(Arrays.copyOf(buffer, packet.getLength()));
                socket.send(new DatagramPacket(answer, answer.length, packet.getSocketAddress()));
            } catch (IOException e) {
                if (!socket.isClosed()) {
                    throw new UncheckedIOException(e);
                }
            }
        }
    }

    private byte[] answer(byte[] asked) throws IOException {
        ByteBuffer question = ByteBuffer.wrap(asked);
        int id = question.getShort();
        question.position(12);
        StringBuilder name = new StringBuilder();
        for (int length = question.get(); length > 0; length = question.get()) {
            byte[] label = new byte[length];
            question.get(label);
            name.append(new String(label, StandardCharsets.US_ASCII)).append('.');
        }
        int type = question.getShort();
        int end = question.position() + 2;
        List<String> ips = addresses.getOrDefault(name.toString(), List.of());
        List<Target> targets = services.getOrDefault(name.toString(), List.of());
        int count = type == A ? ips.size() : type == SRV ? targets.size() : 0;
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (DataOutputStream out = new DataOutputStream(bytes)) {
            out.writeShort(id);
            out.writeShort(ANSWER | (ips.isEmpty() && targets.isEmpty() ? NO_SUCH_NAME : 0));
            out.writeShort(1);
            out.writeShort(count);
            out.writeInt(0);
            out.write(asked, 12, end - 12);
            if (type == A) {
                for (String ip : ips) {
                    record(out, A, InetAddress.getByName(ip).getAddress());
                }
            } else if (type == SRV) {
                for (Target target : targets) {
                    record(out, SRV, data(target));
                }
            }
        }
        return bytes.toByteArray();
    }

    private static void record(DataOutputStream out, int type, byte[] data) throws IOException {
        out.writeShort(POINTER);
        out.writeShort(type);
        out.writeShort(1);
        out.writeInt(TTL_SECONDS);
        out.writeShort(data.length);
        out.write(data);
    }

    private static byte[] data(Target target) throws IOException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (DataOutputStream out = new DataOutputStream(bytes)) {
            out.writeShort(target.priority);
            out.writeShort(target.weight);
            out.writeShort(target.port);
            for (String label : target.host.split("\\.")) {
                out.writeByte(label.length());
                out.write(label.getBytes(StandardCharsets.US_ASCII));
            }
            out.writeByte(0);
        }
        return bytes.toByteArray();
    }

    @Override
    public void close() throws InterruptedException {
        socket.close();
        thread.join(10_000);
    }
}
