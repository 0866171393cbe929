package baton.connectors.lmcache.pd;

import baton.kv.BlockHash;
import baton.kv.InvalidFieldException;
import baton.messages.MsgpackReader;
import baton.messages.MsgpackWriter;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.msgpack.core.MessageBufferPacker;

/** A message between a sender and a receiver: one frame, a msgpack map with the class's name in {@code type}, as in LMCache's messages. */
sealed interface PdMessage {
    /** Blocks in one message. A message has at most 64 KiB. */
    int MOST_BLOCKS = 1024;

    /** The length of a block's hash. */
    int HASH_BYTES = 32;

    /**
     * A sender introduces itself; answered by {@link Answer}.
     *
     * @param format equal for instances that can exchange blocks
     * @param agent metadata of its transfer agent
     */
    record Hello(String format, byte[] agent) implements PdMessage {}

    /**
     * Blocks of a prompt will come.
     *
     * @param transfer names the hand-over, different for each
     * @param last whether no more of these follow for it
     */
    record Begin(String transfer, boolean last, List<BlockHash> blocks) implements PdMessage {}

    /** Announced blocks that will not come. */
    record Gone(List<BlockHash> blocks) implements PdMessage {}

    /**
     * Blocks are there to be read; answered by {@link Answer}, and until then not overwritten.
     *
     * @param addresses of each, in the sender's memory
     * @param checksums CRC32C of each one's hash and bytes
     */
    record Ready(List<BlockHash> blocks, long[] addresses, int[] checksums) implements PdMessage {}

    /**
     * To the message before.
     *
     * @param refused why the sender is not taken; empty if it is
     * @param there which blocks the receiver has
     */
    record Answer(String refused, BitSet there) implements PdMessage {}

    default byte[] encode() {
        return MsgpackWriter.bytes(packer -> {
            switch (this) {
                case Hello(String format, byte[] agent) -> {
                    type(packer, "Hello", 3).packString("format").packString(format);
                    bytes(packer, "agent", agent);
                }
                case Begin(String transfer, boolean last, List<BlockHash> blocks) -> {
                    type(packer, "Begin", 4).packString("transfer").packString(transfer);
                    packer.packString("last").packInt(last ? 1 : 0);
                    bytes(packer, "blocks", bytes(blocks));
                }
                case Gone(List<BlockHash> blocks) -> bytes(type(packer, "Gone", 2), "blocks", bytes(blocks));
                case Ready(List<BlockHash> blocks, long[] addresses, int[] checksums) -> {
                    bytes(type(packer, "Ready", 4), "blocks", bytes(blocks));
                    packer.packString("addresses").packArrayHeader(addresses.length);
                    for (long address : addresses) {
                        packer.packLong(address);
                    }
                    MsgpackWriter.unsignedNumbers(packer.packString("checksums"), checksums);
                }
                case Answer(String refused, BitSet there) -> {
                    type(packer, "Answer", 3).packString("refused").packString(refused);
                    bytes(packer, "there", there.toByteArray());
                }
            }
        });
    }

    private static MessageBufferPacker type(MessageBufferPacker packer, String type, int fields) throws IOException {
        packer.packMapHeader(fields).packString("type").packString(type);
        return packer;
    }

    private static void bytes(MessageBufferPacker packer, String name, byte[] bytes) throws IOException {
        packer.packString(name).packBinaryHeader(bytes.length);
        packer.writePayload(bytes);
    }

    private static byte[] bytes(List<BlockHash> blocks) {
        byte[] all = new byte[blocks.size() * HASH_BYTES];
        for (int i = 0; i < blocks.size(); i++) {
            System.arraycopy(blocks.get(i).toBytes(), 0, all, i * HASH_BYTES, HASH_BYTES);
        }
        return all;
    }

    /** @throws InvalidFieldException if the bytes are no such message */
    static PdMessage decode(byte[] message) {
        Fields fields = new Fields();
        MsgpackReader.readFields("message", message, fields::read);
        return fields.message();
    }

    /** The fields of all messages. */
    final class Fields {
        private final Map<String, String> texts = new LinkedHashMap<>();
        private final Map<String, byte[]> bytes = new LinkedHashMap<>();
        private final Map<String, long[]> numbers = new LinkedHashMap<>();
        private boolean last;

        private Fields() {}

        private boolean read(String name, MsgpackReader value) {
            String field = "message." + name;
            switch (name) {
                case "type", "format", "transfer", "refused" -> texts.put(name, value.text(field));
                case "agent", "blocks", "there" -> bytes.put(name, value.bytes(field));
                case "last" -> last = value.integer(field, 0, 1) == 1;
                case "addresses", "checksums" -> numbers.put(name, value.unsignedNumbers(field));
                default -> {
                    return false;
                }
            }
            return true;
        }

        private PdMessage message() {
            String type = text("type");
            return switch (type) {
                case "Hello" -> new Hello(text("format"), bytes("agent"));
                case "Begin" -> new Begin(text("transfer"), last, blocks());
                case "Gone" -> new Gone(blocks());
                case "Ready" -> ready();
                case "Answer" -> new Answer(text("refused"), BitSet.valueOf(bytes("there")));
                default -> throw new InvalidFieldException("message.type", "is no message of a prefill/decode pair");
            };
        }

        private Ready ready() {
            List<BlockHash> blocks = blocks();
            long[] addresses = numbers.get("addresses");
            long[] checksums = numbers.get("checksums");
            if (addresses == null
                    || checksums == null
                    || addresses.length != blocks.size()
                    || checksums.length != blocks.size()) {
                throw new InvalidFieldException("message", "must have an address and a checksum for each block");
            }
            return new Ready(
                    blocks,
                    addresses,
                    Arrays.stream(checksums).mapToInt(sum -> (int) sum).toArray());
        }

        private String text(String name) {
            return given(texts, name);
        }

        private byte[] bytes(String name) {
            return given(bytes, name);
        }

        private static <T> T given(Map<String, T> values, String name) {
            T value = values.get(name);
            if (value == null) {
                throw new InvalidFieldException("message." + name, "is missing");
            }
            return value;
        }

        private List<BlockHash> blocks() {
            byte[] all = bytes("blocks");
            int count = all.length / HASH_BYTES;
            if (all.length % HASH_BYTES != 0 || count > MOST_BLOCKS) {
                throw new InvalidFieldException(
                        "message.blocks", "has " + all.length + " bytes, must have 32 for each of 1024 blocks at most");
            }
            MemorySegment from = MemorySegment.ofArray(all);
            List<BlockHash> blocks = new ArrayList<>(count);
            for (int i = 0; i < count; i++) {
                long at = (long) i * HASH_BYTES;
                blocks.add(new BlockHash(word(from, at), word(from, at + 8), word(from, at + 16), word(from, at + 24)));
            }
            if (new HashSet<>(blocks).size() < count) {
                throw new InvalidFieldException("message.blocks", "has a block twice");
            }
            return List.copyOf(blocks);
        }

        private static long word(MemorySegment from, long at) {
            return from.get(ValueLayout.JAVA_LONG_UNALIGNED.withOrder(ByteOrder.BIG_ENDIAN), at);
        }
    }
}
