package baton.messages.events;

import baton.kv.BlockHash;
import baton.kv.ConfigException;
import baton.kv.KvEvent;
import baton.messages.MsgpackWriter;
import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.msgpack.core.MessagePacker;

/**
 * vLLM 0.32's msgpack form of a batch of events ({@code KVEventBatch} of {@code vllm/distributed/kv_events.py}): an array of the time in
 * seconds, the events and the data-parallel rank. An event is a map that begins with its {@code type}. Fields without a value are nil
 * where vLLM's have no default, and left out where they have one.
 *
 * @param hashes the form of block hashes
 */
public record KvEventCodec(Hashes hashes) {
    /** vLLM's environment variable that selects the form of block hashes. */
    public static final String INT_HASHES = "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES";

    /** The form of a block hash. */
    public enum Hashes {
        /** The last 8 of its 32 bytes as an unsigned number. */
        INT,
        /** Its 32 bytes. */
        BYTES;

        /**
         * As vLLM selects it.
         *
         * @throws ConfigException if the variable is set to something else than 0 or 1
         */
        public static Hashes of(Map<String, String> environment) {
            String value = environment.getOrDefault(INT_HASHES, "1");
            return switch (value.strip()) {
                case "1" -> INT;
                case "0" -> BYTES;
                default -> throw ConfigException.unsupported(INT_HASHES, value, "0 (bytes), 1 (numbers)");
            };
        }
    }

    /**
     * @param seconds since 1970, when the events were made
     * @param rank data-parallel rank of the instance
     */
    public byte[] encode(double seconds, List<KvEvent> events, int rank) {
        return MsgpackWriter.bytes(out -> {
            out.packArrayHeader(3);
            out.packDouble(seconds);
            out.packArrayHeader(events.size());
            for (KvEvent event : events) {
                switch (event) {
                    case KvEvent.BlockStored stored -> encode(out, stored);
                    case KvEvent.BlockRemoved removed -> encode(out, removed);
                    case KvEvent.AllBlocksCleared _ -> type(out, "AllBlocksCleared", 1);
                }
            }
            out.packInt(rank);
        });
    }

    private void encode(MessagePacker out, KvEvent.BlockStored event) throws IOException {
        KvEvent.Details details = event.details();
        KvEvent.Place place = details.place();
        type(
                out,
                "BlockStored",
                8
                        + present(details.extraKeys(), details.specKind(), details.slidingWindow(), details.sessionId())
                        + present(place));
        hashes(out, event.blockHashes());
        out.packString("parent_block_hash");
        if (event.parent().isPresent()) {
            hash(out, event.parent().get());
        } else {
            out.packNil();
        }
        out.packString("token_ids").packArrayHeader(event.tokenIds().size());
        for (int token : event.tokenIds()) {
            out.packInt(token);
        }
        number(out, "block_size", Optional.of(event.blockSize()));
        numberOrNil(out, "lora_id", event.lora().map(KvEvent.Lora::id));
        textOrNil(out, "medium", event.medium());
        textOrNil(out, "lora_name", event.lora().map(KvEvent.Lora::name));
        if (details.extraKeys().isPresent()) {
            extraKeys(out, details.extraKeys().get());
        }
        number(out, "group_idx", place.group());
        text(out, "kv_cache_spec_kind", details.specKind());
        number(out, "kv_cache_spec_sliding_window", details.slidingWindow());
        text(out, "locality", place.locality());
        text(out, "ownership", place.ownership());
        text(out, "session_id", details.sessionId());
    }

    private void encode(MessagePacker out, KvEvent.BlockRemoved event) throws IOException {
        type(out, "BlockRemoved", 3 + present(event.place()));
        hashes(out, event.blockHashes());
        textOrNil(out, "medium", event.medium());
        number(out, "group_idx", event.place().group());
        text(out, "locality", event.place().locality());
        text(out, "ownership", event.place().ownership());
    }

    /** A block without extra keys has nil. */
    private static void extraKeys(MessagePacker out, List<List<String>> blocks) throws IOException {
        out.packString("extra_keys").packArrayHeader(blocks.size());
        for (List<String> keys : blocks) {
            if (keys.isEmpty()) {
                out.packNil();
                continue;
            }
            out.packArrayHeader(keys.size());
            for (String key : keys) {
                out.packString(key);
            }
        }
    }

    private void hashes(MessagePacker out, List<BlockHash> hashes) throws IOException {
        out.packString("block_hashes").packArrayHeader(hashes.size());
        for (BlockHash each : hashes) {
            hash(out, each);
        }
    }

    private void hash(MessagePacker out, BlockHash hash) throws IOException {
        switch (hashes) {
            case INT -> MsgpackWriter.unsigned(out, hash.d());
            case BYTES -> {
                byte[] bytes = hash.toBytes();
                out.packBinaryHeader(bytes.length).writePayload(bytes);
            }
        }
    }

    private static void type(MessagePacker out, String type, int fields) throws IOException {
        out.packMapHeader(fields).packString("type").packString(type);
    }

    private static void text(MessagePacker out, String field, Optional<String> value) throws IOException {
        if (value.isPresent()) {
            out.packString(field).packString(value.get());
        }
    }

    private static void textOrNil(MessagePacker out, String field, Optional<String> value) throws IOException {
        if (value.isPresent()) {
            text(out, field, value);
        } else {
            out.packString(field).packNil();
        }
    }

    private static void number(MessagePacker out, String field, Optional<Integer> value) throws IOException {
        if (value.isPresent()) {
            out.packString(field).packInt(value.get());
        }
    }

    private static void numberOrNil(MessagePacker out, String field, Optional<Integer> value) throws IOException {
        if (value.isPresent()) {
            number(out, field, value);
        } else {
            out.packString(field).packNil();
        }
    }

    private static int present(KvEvent.Place place) {
        return present(place.group(), place.locality(), place.ownership());
    }

    private static int present(Optional<?>... values) {
        int present = 0;
        for (Optional<?> value : values) {
            present += value.isPresent() ? 1 : 0;
        }
        return present;
    }
}
