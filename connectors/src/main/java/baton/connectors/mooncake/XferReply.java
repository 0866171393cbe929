package baton.connectors.mooncake;

import baton.kv.InvalidFieldException;
import baton.messages.MsgpackReader;
import baton.messages.MsgpackWriter;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.msgpack.core.MessageBufferPacker;

/**
 * A prefill rank's answer to an {@link XferRequest}, or a part of it: vLLM's {@code MooncakeXferResponse}, a msgpack map.
 *
 * @param ok requests with all blocks written
 * @param failed requests with no or not all blocks written
 * @param error why
 * @param layoutId of the request, if the rank remembers the regions that it names; else 0
 * @param written a field of Baton instances: the bytes written for the only request of {@code ok}
 */
record XferReply(
        Status status,
        List<String> ok,
        List<String> failed,
        Optional<String> error,
        long layoutId,
        Optional<Written> written) {
    private static final String WHAT = "MooncakeXferResponse";
    private static final int LONGEST_ERROR = 1000;

    XferReply {
        ok = List.copyOf(ok);
        failed = List.copyOf(failed);
    }

    /** How the message goes on. */
    enum Status {
        /** The last part. */
        FINISH(0),
        /** Other requests of the message are not done. */
        CONTINUE(1),
        /** The whole message has failed. */
        ERROR(2),
        /** The message leaves regions out that the rank does not remember. */
        LAYOUT_MISS(3);

        private final int number;

        Status(int number) {
            this.number = number;
        }

        private static Status of(int number) {
            return switch (number) {
                case 0 -> FINISH;
                case 1 -> CONTINUE;
                case 3 -> LAYOUT_MISS;
                default -> ERROR;
            };
        }
    }

    /**
     * The written pages and their checksums, for the asking rank to verify.
     *
     * @param prompt digest of the prompt
     * @param regions indices of the asking rank's regions, in the order of the checksums' bytes
     * @param offset in the page of each region
     * @param bytes from there on
     * @param checksums of each block: CRC32C over that part of its page in each of the regions
     */
    record Written(String prompt, int[] regions, long offset, long bytes, int[] checksums) {}

    /** Without a request in it. */
    static XferReply of(Status status, String why) {
        return new XferReply(status, List.of(), List.of(), Optional.of(why), 0, Optional.empty());
    }

    boolean isLast() {
        return status != Status.CONTINUE;
    }

    byte[] encode() {
        return MsgpackWriter.bytes(packer -> {
            packer.packMapHeader(1
                    + (ok.isEmpty() ? 0 : 1)
                    + (failed.isEmpty() ? 0 : 1)
                    + (error.isPresent() ? 1 : 0)
                    + (layoutId == 0 ? 0 : 1)
                    + (written.isPresent() ? 1 : 0));
            packer.packString("status").packInt(status.number);
            texts(packer, "ok_reqs", ok);
            texts(packer, "err_reqs", failed);
            if (error.isPresent()) {
                packer.packString("err_msg").packString(error.get());
            }
            if (layoutId != 0) {
                packer.packString("layout_id").packLong(layoutId);
            }
            if (written.isPresent()) {
                Written own = written.get();
                packer.packString(XferRequest.OWN).packMapHeader(5);
                packer.packString("prompt").packString(own.prompt());
                MsgpackWriter.numbers(packer.packString("regions"), own.regions());
                packer.packString("offset").packLong(own.offset());
                packer.packString("bytes").packLong(own.bytes());
                MsgpackWriter.unsignedNumbers(packer.packString("crc32c"), own.checksums());
            }
        });
    }

    private static void texts(MessageBufferPacker packer, String name, List<String> texts) throws IOException {
        if (!texts.isEmpty()) {
            packer.packString(name).packArrayHeader(texts.size());
            for (String text : texts) {
                packer.packString(text);
            }
        }
    }

    /** @throws InvalidFieldException if the bytes are no such message */
    static XferReply decode(byte[] message) {
        Reading reading = new Reading();
        MsgpackReader.readFields(WHAT, message, reading::field);
        if (reading.status.isEmpty()) {
            throw new InvalidFieldException(WHAT, "must have a status");
        }
        return new XferReply(
                reading.status.get(), reading.ok, reading.failed, reading.error, reading.layoutId, reading.written);
    }

    private static final class Reading {
        private Optional<Status> status = Optional.empty();
        private List<String> ok = List.of();
        private List<String> failed = List.of();
        private Optional<String> error = Optional.empty();
        private long layoutId;
        private Optional<Written> written = Optional.empty();

        private boolean field(String name, MsgpackReader value) {
            String field = WHAT + "." + name;
            switch (name) {
                case "status" -> status = Optional.of(Status.of(value.integer(field, 0, 3)));
                case "ok_reqs" -> ok = value.nil(field) ? List.of() : value.texts(field);
                case "err_reqs" -> failed = value.nil(field) ? List.of() : value.texts(field);
                case "err_msg" ->
                    error = value.nil(field)
                            ? Optional.empty()
                            : Optional.of(value.text(field))
                                    .map(text -> text.substring(0, Math.min(text.length(), LONGEST_ERROR)));
                case "layout_id" -> layoutId = value.unsigned(field);
                case XferRequest.OWN -> written = Optional.of(written(value));
                default -> {
                    return false;
                }
            }
            return true;
        }

        private static Written written(MsgpackReader value) {
            List<String> prompt = new ArrayList<>();
            List<int[]> regions = new ArrayList<>();
            long[] sizes = {-1, -1};
            List<int[]> checksums = new ArrayList<>();
            value.fields(WHAT + "." + XferRequest.OWN, (name, inner) -> {
                String field = WHAT + "." + XferRequest.OWN + "." + name;
                switch (name) {
                    case "prompt" -> prompt.add(inner.text(field));
                    case "regions" -> regions.add(inner.integers(field, 0, Integer.MAX_VALUE));
                    case "offset" -> sizes[0] = inner.unsigned(field);
                    case "bytes" -> sizes[1] = inner.unsigned(field);
                    case "crc32c" -> {
                        long[] unsigned = inner.unsignedNumbers(field);
                        int[] narrow = new int[unsigned.length];
                        for (int i = 0; i < narrow.length; i++) {
                            narrow[i] = (int) unsigned[i];
                        }
                        checksums.add(narrow);
                    }
                    default -> {
                        return false;
                    }
                }
                return true;
            });
            if (prompt.isEmpty() || regions.isEmpty() || checksums.isEmpty() || sizes[0] < 0 || sizes[1] < 0) {
                throw new InvalidFieldException(
                        WHAT + "." + XferRequest.OWN, "must have prompt, regions, offset, bytes and crc32c");
            }
            return new Written(prompt.getFirst(), regions.getFirst(), sizes[0], sizes[1], checksums.getFirst());
        }
    }
}
