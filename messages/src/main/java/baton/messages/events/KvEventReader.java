package baton.messages.events;

import baton.kv.InvalidFieldException;
import baton.messages.MsgpackReader;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.OptionalLong;

/** Reads batches of events as {@link KvEventCodec} and vLLM 0.33 write them. Fields that an index of blocks does not need are passed over. */
public final class KvEventReader {
    private static final String BATCH = "kv events";
    private static final int MOST_TOKENS_IN_BLOCK = 1 << 20;
    private static final long[] NONE = new long[0];

    private KvEventReader() {}

    /** @throws InvalidFieldException naming the field, if the bytes are no such batch */
    public static List<ReceivedKvEvent> read(byte[] payload) {
        try (MsgpackReader in = MsgpackReader.of(payload)) {
            int fields = in.array(BATCH);
            if (fields < 2) {
                throw new InvalidFieldException(BATCH, "has " + fields + " fields, must have a time and events");
            }
            double _ = in.number(BATCH + ".ts");
            int count = in.array(BATCH + ".events");
            List<ReceivedKvEvent> events = new ArrayList<>(Math.min(count, 1024));
            for (int i = 0; i < count; i++) {
                events.add(new Fields().read(in));
            }
            for (int i = 2; i < fields; i++) {
                in.skip(BATCH);
            }
            in.end(BATCH);
            return events;
        }
    }

    /** The fields of one event, in any order. */
    private static final class Fields {
        private String type = "";
        private long[] hashes = NONE;
        private OptionalLong parent = OptionalLong.empty();
        private int[] tokens = new int[0];
        private int blockSize;
        private final List<int[]> lookahead = new ArrayList<>();
        private long[] extra = NONE;
        private String medium = "";
        private String group = "";
        private String owner = "";
        private String kind = "";
        private String lora = "";

        ReceivedKvEvent read(MsgpackReader in) {
            in.fields(BATCH, this::field);
            String place = medium + '/' + group + '/' + owner;
            return switch (type) {
                case "BlockStored" -> {
                    if (blockSize < 1) {
                        throw new InvalidFieldException(BATCH + ".block_size", "is missing");
                    }
                    int behind = lookahead.isEmpty() ? 0 : lookahead.getFirst().length;
                    yield new ReceivedKvEvent.Stored(
                            hashes, parent, withLookahead(behind), blockSize, behind, extra, place, kind, lora);
                }
                case "BlockRemoved" -> new ReceivedKvEvent.Removed(hashes, place);
                case "AllBlocksCleared" -> new ReceivedKvEvent.Cleared();
                default ->
                    throw new InvalidFieldException(
                            BATCH + ".type",
                            "is '" + type + "', must be BlockStored, BlockRemoved or AllBlocksCleared");
            };
        }

        private int[] withLookahead(int each) {
            if (each == 0) {
                return tokens;
            }
            if (lookahead.size() != hashes.length
                    || tokens.length != (long) hashes.length * blockSize
                    || lookahead.stream().anyMatch(behind -> behind.length != each)) {
                throw new InvalidFieldException(
                        BATCH + ".lookahead_token_ids",
                        "must be one list for each of %d blocks of %d tokens, all as long; there are %d lists and %d tokens"
                                .formatted(hashes.length, blockSize, lookahead.size(), tokens.length));
            }
            int[] all = new int[hashes.length * (blockSize + each)];
            for (int i = 0; i < hashes.length; i++) {
                int at = i * (blockSize + each);
                System.arraycopy(tokens, i * blockSize, all, at, blockSize);
                System.arraycopy(lookahead.get(i), 0, all, at + blockSize, each);
            }
            return all;
        }

        private boolean field(String name, MsgpackReader in) {
            switch (name) {
                case "type" -> type = in.text(name);
                case "block_hashes" -> hashes = hashes(name, in);
                case "parent_block_hash" ->
                    parent = in.nil(name) ? OptionalLong.empty() : OptionalLong.of(hash(name, in));
                case "token_ids" -> tokens = in.nil(name) ? new int[0] : in.integers(name, 0, Integer.MAX_VALUE);
                case "block_size" -> blockSize = in.integer(name, 1, MOST_TOKENS_IN_BLOCK);
                case "lookahead_token_ids" -> {
                    for (int left = in.nil(name) ? 0 : in.array(name); left > 0; left--) {
                        lookahead.add(in.integers(name, 0, Integer.MAX_VALUE));
                    }
                }
                case "extra_keys" -> extra = extra(name, in);
                case "medium" -> medium = text(name, in);
                case "group_idx" -> group = in.nil(name) ? "" : Integer.toString(in.integer(name, 0, 1 << 16));
                case "ownership" -> owner = text(name, in);
                case "kv_cache_spec_kind" -> kind = text(name, in);
                case "lora_name" -> lora = text(name, in);
                default -> {
                    return false;
                }
            }
            return true;
        }

        private static String text(String name, MsgpackReader in) {
            return in.nil(name) ? "" : in.text(name);
        }

        private static long[] hashes(String name, MsgpackReader in) {
            long[] hashes = new long[in.array(name)];
            for (int i = 0; i < hashes.length; i++) {
                hashes[i] = hash(name, in);
            }
            return hashes;
        }

        /** A number, or bytes of which the last 8 are that number. */
        private static long hash(String name, MsgpackReader in) {
            return switch (in.type(name)) {
                case BINARY -> {
                    byte[] bytes = in.bytes(name);
                    if (bytes.length < Long.BYTES) {
                        throw new InvalidFieldException(name, "has " + bytes.length + " bytes, must have at least 8");
                    }
                    yield ByteBuffer.wrap(bytes).getLong(bytes.length - Long.BYTES);
                }
                case NIL, BOOLEAN, INTEGER, FLOAT, STRING, ARRAY, MAP, EXTENSION -> in.unsigned(name);
            };
        }

        private static long[] extra(String name, MsgpackReader in) {
            if (in.nil(name)) {
                return NONE;
            }
            long[] extra = new long[in.array(name)];
            boolean any = false;
            for (int i = 0; i < extra.length; i++) {
                extra[i] = ExtraKeys.read(name, in);
                any |= extra[i] != 0;
            }
            return any ? extra : NONE;
        }
    }
}
