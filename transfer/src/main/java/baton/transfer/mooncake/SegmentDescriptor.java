package baton.transfer.mooncake;

import baton.messages.PeerAddress;
import baton.transfer.TransferException;
import java.math.BigInteger;
import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * An engine's description of itself, as {@code TransferMetadata::encodeSegmentDesc} of Mooncake 0.3.13 writes it for its TCP transport.
 *
 * @param name of the segment
 * @param protocol of its transport: {@value #TCP} or another, such as RDMA's, of which only the buffers are read
 * @param dataHost where its data port is; empty: the host of its handshake daemon
 * @param version of the data protocol: 1 without answers to writes, 2 with them
 * @param buffers registered memory
 */
record SegmentDescriptor(
        String name, String protocol, Optional<String> dataHost, int dataPort, int version, List<Buffer> buffers) {
    static final String TCP = "tcp";
    static final int VERSION = 2;

    private static final DateTimeFormatter TIME = DateTimeFormatter.ofPattern("yyyy-MM-dd HH:mm:ss.SSSSSS", Locale.ROOT)
            .withZone(ZoneOffset.UTC);

    SegmentDescriptor {
        buffers = List.copyOf(buffers);
    }

    /** Addresses are those of the process that owns the memory, unsigned. */
    record Buffer(long address, long bytes) {
        boolean holds(long from, long count) {
            long offset = from - address;
            return Long.compareUnsigned(offset, bytes) <= 0 && Long.compareUnsigned(count, bytes - offset) <= 0;
        }
    }

    /** Whether a range is within one of the buffers. */
    boolean holds(long address, long bytes) {
        return buffers.stream().anyMatch(each -> each.holds(address, bytes));
    }

    /** @param now the time in the message, which peers do not use */
    ObjectNode toJson(JsonMapper json, Instant now) {
        ObjectNode node = json.createObjectNode()
                .put("name", name)
                .put("protocol", protocol)
                .put("tcp_data_port", dataPort)
                .put("tcp_proto_version", version)
                .put("rdma_server_name", "")
                .put("timestamp", TIME.format(now));
        dataHost.ifPresent(host -> node.put("tcp_data_host", host));
        ArrayNode all = node.putArray("buffers");
        for (Buffer buffer : buffers) {
            all.addObject()
                    .put("name", name)
                    .put("addr", new BigInteger(Long.toUnsignedString(buffer.address)))
                    .put("length", new BigInteger(Long.toUnsignedString(buffer.bytes)));
        }
        return node;
    }

    /**
     * Reads one that a peer or a metadata server sent.
     *
     * @throws TransferException if it is none
     */
    static SegmentDescriptor parse(JsonMapper json, byte[] text) throws TransferException {
        JsonNode node;
        try {
            node = json.readTree(text);
        } catch (JacksonException e) {
            throw new TransferException("the segment's descriptor is not JSON: " + e.getOriginalMessage(), e);
        }
        String protocol = node.path("protocol").asString("");
        if (protocol.isEmpty()) {
            throw new TransferException("the segment's descriptor has no protocol");
        }
        int port = node.path("tcp_data_port").asInt(0);
        if (protocol.equals(TCP) && (port < 1 || port > 0xffff)) {
            throw new TransferException("tcp_data_port=%s of the segment's descriptor must be 1 to 65535"
                    .formatted(PeerAddress.shown(node.path("tcp_data_port").toString())));
        }
        String host = node.path("tcp_data_host").asString("");
        List<Buffer> buffers = new ArrayList<>();
        for (JsonNode each : node.path("buffers")) {
            buffers.add(new Buffer(unsigned(each, "addr"), unsigned(each, "length")));
        }
        return new SegmentDescriptor(
                node.path("name").asString(""),
                protocol,
                host.isEmpty() ? Optional.empty() : Optional.of(host),
                port,
                node.path("tcp_proto_version").asInt(1),
                buffers);
    }

    /** A number of 64 bits, which must not go through a double, and is not 0. */
    private static long unsigned(JsonNode buffer, String field) throws TransferException {
        JsonNode value = buffer.path(field);
        BigInteger number = value.isIntegralNumber() ? value.bigIntegerValue() : BigInteger.ZERO;
        if (number.signum() <= 0 || number.bitLength() > Long.SIZE) {
            throw new TransferException("buffers[].%s=%s of the segment's descriptor must be 1 to 2^64-1"
                    .formatted(field, PeerAddress.shown(value.toString())));
        }
        return number.longValue();
    }
}
