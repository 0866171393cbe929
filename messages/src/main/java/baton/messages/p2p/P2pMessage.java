package baton.messages.p2p;

import baton.kv.InvalidFieldException;
import baton.kv.KvDigest;
import baton.messages.MsgpackWriter;
import baton.messages.PeerAddress;
import java.io.IOException;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import org.jspecify.annotations.Nullable;
import org.msgpack.core.MessageBufferPacker;

/**
 * A message from an instance to another one's control address: one frame with a msgpack map, as vLLM's P2pNcclEngine sends it. The sending
 * DEALER socket's identity is the sender's control address.
 */
public sealed interface P2pMessage {
    /** Bytes of NCCL's unique id; none is longer. */
    int MOST_UNIQUE_ID_BYTES = 128;

    /** Dimensions of a tensor, at most. */
    int MOST_DIMENSIONS = 8;

    /** UTF-16 units of a tensor's id, at most. */
    int LONGEST_TENSOR_ID = 1024;

    /**
     * Requests a connection for tensors' bytes: {@code {"cmd": "NEW", "unique_id": bytes}}. Not answered.
     *
     * @param uniqueId of the offered connection, see {@code WireTransport.Offer}
     */
    record New(byte[] uniqueId) implements P2pMessage {
        @Override
        public byte[] encode() {
            return MsgpackWriter.bytes(packer -> {
                packer.packMapHeader(2);
                packer.packString("cmd").packString("NEW");
                packer.packString("unique_id").packBinaryHeader(uniqueId.length).writePayload(uniqueId);
            });
        }

        @Override
        public boolean equals(@Nullable Object other) {
            return other instanceof New that && Arrays.equals(uniqueId, that.uniqueId);
        }

        @Override
        public int hashCode() {
            return Arrays.hashCode(uniqueId);
        }

        @Override
        public String toString() {
            return "New[uniqueId=" + HexFormat.of().formatHex(uniqueId) + "]";
        }
    }

    /**
     * Announces a tensor: {@code {"cmd": "PUT", "tensor_id": text, "shape": [sizes], "dtype": text}}. Answered by a
     * {@link PutReply}; if that is {@link PutReply#TAKEN}, the tensor's bytes follow on the connection.
     */
    record Put(String tensorId, TensorHead head) implements P2pMessage {
        @Override
        public byte[] encode() {
            return MsgpackWriter.bytes(packer -> {
                packer.packMapHeader(4 + head.extraFields());
                packer.packString("cmd").packString("PUT");
                packer.packString("tensor_id").packString(tensorId);
                head.pack(packer);
            });
        }
    }

    /** Requests a tensor: {@code {"cmd": "GET", "tensor_id": text}}. Answered by a {@link GetReply}. */
    record Get(String tensorId) implements P2pMessage {
        @Override
        public byte[] encode() {
            return MsgpackWriter.bytes(packer -> {
                packer.packMapHeader(2);
                packer.packString("cmd").packString("GET");
                packer.packString("tensor_id").packString(tensorId);
            });
        }
    }

    byte[] encode();

    /** @throws InvalidFieldException if the bytes are no such message */
    static P2pMessage decode(byte[] message) {
        Fields fields = Fields.read("message", message);
        String command = fields.required("cmd", fields.command);
        return switch (command) {
            case "NEW" -> new New(fields.required("unique_id", fields.uniqueId));
            case "PUT" -> new Put(fields.required("tensor_id", fields.tensorId), fields.head());
            case "GET" -> new Get(fields.required("tensor_id", fields.tensorId));
            default ->
                throw new InvalidFieldException(
                        "message.cmd", "is '" + PeerAddress.shown(command) + "', must be NEW, PUT or GET");
        };
    }

    /**
     * The metadata of a tensor.
     *
     * @param dtype torch's name of its elements' type
     * @param shape sizes of its dimensions
     * @param origin fields that only Baton sends; vLLM ignores them
     * @param checksum the same, as a field of the kind's name: {@code "crc32c": number} or {@code "sum61": number}
     */
    record TensorHead(String dtype, List<Long> shape, Optional<Origin> origin, Optional<Checksum> checksum) {
        public TensorHead {
            shape = List.copyOf(shape);
        }

        /** Without a checksum. */
        public TensorHead(String dtype, List<Long> shape, Optional<Origin> origin) {
            this(dtype, shape, origin, Optional.empty());
        }

        public TensorHead withChecksum(Checksum sum) {
            return new TensorHead(dtype, shape, origin, Optional.of(sum));
        }

        private int extraFields() {
            return (origin.isPresent() ? 2 : 0) + (checksum.isPresent() ? 1 : 0);
        }

        private void pack(MessageBufferPacker packer) throws IOException {
            packer.packString("shape").packArrayHeader(shape.size());
            for (long size : shape) {
                packer.packLong(size);
            }
            packer.packString("dtype").packString(dtype);
            if (origin.isPresent()) {
                packer.packString("tp_size").packInt(origin.get().tensorParallelSize);
                packer.packString("digest").packString(origin.get().digest);
            }
            if (checksum.isPresent()) {
                packer.packString(checksum.get().kind.label());
                packer.packLong(Integer.toUnsignedLong(checksum.get().value));
            }
        }
    }

    /**
     * CRC32C over a line each in UTF-8 of the tensor's id, dtype, sizes with commas between them, tp_size and digest, the last two empty
     * if absent, and then over the tensor's bytes, or over the SUM61 of each {@value #PIECE} of them, in 8 bytes, the highest first.
     * So no tensor is taken for another one either.
     *
     * @param kind {@link KvDigest#CRC32C} over the bytes themselves; {@link KvDigest#SUM61}, which a device computes
     */
    record Checksum(KvDigest kind, int value) {
        public static final long PIECE = 256 << 10;
    }

    /**
     * Identifies the inputs of a tensor, in two fields that Baton adds: {@code "tp_size": number, "digest": text}.
     *
     * @param tensorParallelSize of the instance that made it
     * @param digest of the inputs that must be equal on both sides, e.g. the prompt
     */
    record Origin(int tensorParallelSize, String digest) {}

    /** The answer to a {@link Put}: one byte, a digit. */
    enum PutReply {
        TAKEN('0'),
        OUT_OF_MEMORY('1');

        private final char digit;

        PutReply(char digit) {
            this.digit = digit;
        }

        public byte[] encode() {
            return new byte[] {(byte) digit};
        }

        /** @throws InvalidFieldException if the bytes are no such answer */
        public static PutReply decode(byte[] answer) {
            for (PutReply reply : values()) {
                if (answer.length == 1 && answer[0] == reply.digit) {
                    return reply;
                }
            }
            throw new InvalidFieldException(
                    "answer to PUT", "has " + answer.length + " bytes, must be the digit 0 or 1");
        }
    }

    /** The answer to a {@link Get}: a msgpack map. */
    sealed interface GetReply {
        /** {@code {"ret": 0, "shape": [sizes], "dtype": text}}; the tensor's bytes follow on the connection. */
        record Here(TensorHead head) implements GetReply {
            @Override
            public byte[] encode() {
                return MsgpackWriter.bytes(packer -> {
                    packer.packMapHeader(3 + head.extraFields());
                    packer.packString("ret").packInt(0);
                    head.pack(packer);
                });
            }
        }

        /** {@code {"ret": 1}}: there is no such tensor. */
        record Missing() implements GetReply {
            @Override
            public byte[] encode() {
                return MsgpackWriter.bytes(packer -> {
                    packer.packMapHeader(1);
                    packer.packString("ret").packInt(1);
                });
            }
        }

        byte[] encode();

        /** @throws InvalidFieldException if the bytes are no such answer */
        static GetReply decode(byte[] answer) {
            Fields fields = Fields.read("answer to GET", answer);
            return fields.required("ret", fields.result) == 0 ? new Here(fields.head()) : new Missing();
        }
    }
}
