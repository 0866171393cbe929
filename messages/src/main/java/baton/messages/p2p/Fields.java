package baton.messages.p2p;

import baton.kv.InvalidFieldException;
import baton.kv.KvDigest;
import baton.messages.MsgpackReader;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/** The fields of all messages and answers; absent ones are empty. */
final class Fields {
    private final String what;
    Optional<String> command = Optional.empty();
    Optional<byte[]> uniqueId = Optional.empty();
    Optional<String> tensorId = Optional.empty();
    private Optional<List<Long>> shape = Optional.empty();
    private Optional<String> dtype = Optional.empty();
    Optional<Integer> result = Optional.empty();
    private Optional<Integer> tensorParallelSize = Optional.empty();
    private Optional<String> digest = Optional.empty();
    private Optional<P2pMessage.Checksum> checksum = Optional.empty();

    private Fields(String what) {
        this.what = what;
    }

    static Fields read(String what, byte[] message) {
        Fields fields = new Fields(what);
        MsgpackReader.readFields(what, message, fields::read);
        return fields;
    }

    private boolean read(String name, MsgpackReader value) {
        String field = what + "." + name;
        switch (name) {
            case "cmd" -> command = Optional.of(value.text(field));
            case "unique_id" -> uniqueId = Optional.of(uniqueId(field, value.bytes(field)));
            case "tensor_id" -> tensorId = Optional.of(text(field, value.text(field), P2pMessage.LONGEST_TENSOR_ID));
            case "shape" -> shape = Optional.of(shape(field, value));
            case "dtype" -> dtype = Optional.of(text(field, value.text(field), 32));
            case "ret" -> result = Optional.of(value.integer(field, 0, Integer.MAX_VALUE));
            case "tp_size" -> tensorParallelSize = Optional.of(value.integer(field, 1, 1 << 16));
            case "digest" -> digest = Optional.of(text(field, value.text(field), 128));
            case "crc32c" -> checksum = checksum(KvDigest.CRC32C, field, value);
            case "sum61" -> checksum = checksum(KvDigest.SUM61, field, value);
            default -> {
                return false;
            }
        }
        return true;
    }

    private static byte[] uniqueId(String field, byte[] id) {
        if (id.length == 0 || id.length > P2pMessage.MOST_UNIQUE_ID_BYTES) {
            throw new InvalidFieldException(
                    field, "has " + id.length + " bytes, must have 1 to " + P2pMessage.MOST_UNIQUE_ID_BYTES);
        }
        return id;
    }

    private static String text(String field, String text, int longest) {
        if (text.isEmpty() || text.length() > longest) {
            throw new InvalidFieldException(field, "has " + text.length() + " characters, must have 1 to " + longest);
        }
        return text;
    }

    private static List<Long> shape(String field, MsgpackReader value) {
        int dimensions = value.array(field);
        if (dimensions > P2pMessage.MOST_DIMENSIONS) {
            throw new InvalidFieldException(
                    field, "has " + dimensions + " dimensions, at most " + P2pMessage.MOST_DIMENSIONS);
        }
        List<Long> shape = new ArrayList<>();
        for (int i = 0; i < dimensions; i++) {
            long size = value.unsigned(field);
            if (size < 0) {
                throw new InvalidFieldException(field, "has a size of more than 63 bits");
            }
            shape.add(size);
        }
        return shape;
    }

    private static Optional<P2pMessage.Checksum> checksum(KvDigest kind, String field, MsgpackReader reader) {
        long value = reader.unsigned(field);
        if (value < 0 || value > 0xffff_ffffL) {
            throw new InvalidFieldException(field, "is " + value + ", must be at most 4294967295");
        }
        return Optional.of(new P2pMessage.Checksum(kind, (int) value));
    }

    /** Baton's fields are all there or none: a damaged name of one does not make a peer without them. */
    P2pMessage.TensorHead head() {
        Optional<P2pMessage.Origin> origin = Optional.empty();
        if (tensorParallelSize.isPresent() || digest.isPresent()) {
            origin = Optional.of(
                    new P2pMessage.Origin(required("tp_size", tensorParallelSize), required("digest", digest)));
            required("crc32c", checksum);
        }
        return new P2pMessage.TensorHead(required("dtype", dtype), required("shape", shape), origin, checksum);
    }

    <T> T required(String name, Optional<T> value) {
        return value.orElseThrow(() -> new InvalidFieldException(what + "." + name, "is missing"));
    }
}
