package baton.store.lm;

import baton.kv.BlockHash;
import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.store.BatchRanges;
import baton.store.StoreFormat;
import baton.store.StoreTask;
import baton.store.ValueRanges;
import baton.store.remote.ArrivingValues;
import baton.store.remote.Destination;
import baton.store.remote.Failure;
import baton.store.remote.RemoteBlockStore;
import baton.store.remote.RemoteClient;
import baton.store.remote.StoreCounters;
import baton.store.remote.ValueHeader;
import io.netty.buffer.ByteBuf;
import java.lang.foreign.MemorySegment;
import java.util.BitSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Keeps values at a server of LMCache's {@code lm} protocol, best {@code baton kv-server}.
 *
 * <h2>Keys and values</h2>
 *
 * A key is {@code btkv:<format>@1@0@<block hash>@uint8}, of LMCache's form: 32 hexadecimal digits of the SHA-256 of
 * {@link StoreFormat#describe}, and the 64 of the hash. So stores of several formats, and LMCache, can share a server. A value is a
 * {@link ValueHeader} and the bytes, with the metadata of a {@code BINARY_BUFFER}. An entry that does not verify as the value of this key in this
 * format is a miss, counted by its cause, and written anew when it is put again.
 *
 * <p>The server decides how much it keeps and which values it evicts; there are no events of its evictions. LMCache's own server evicts
 * nothing.
 *
 * <h2>Faults</h2>
 *
 * A server that is absent, hangs, or breaks off costs operations at most one deadline; while it is away they are rejected at once, and it is
 * found in the background when it is back.
 */
public final class LmBlockStore extends RemoteBlockStore<LmRequest> {
    private static final int MOST_DAMAGED = 1 << 16;

    private final byte[] prefix;

    /** Keys of values that did not verify, until they are written anew: the protocol cannot delete them. */
    private final Set<BlockHash> damaged = ConcurrentHashMap.newKeySet();

    private LmBlockStore(StoreFormat format, StoreCounters counters, RemoteClient<LmRequest> client) {
        super("lm", format, counters, client);
        prefix = BlockKeys.prefix(header.formatName());
    }

    /**
     * Opens a store. Returns at once: the server is connected to in the background, and needs not be there.
     *
     * @throws baton.kv.ConfigException if the settings cannot be used
     * @throws IllegalArgumentException if values of this format are too large for the protocol
     */
    public static LmBlockStore open(StoreFormat format, LmSettings settings, Ticker ticker) {
        if (format.valueBytes() > Integer.MAX_VALUE - ValueHeader.BYTES) {
            throw new IllegalArgumentException(
                    "values have %d bytes; the lm protocol takes at most %d, so blocksPerChunk=%d is too much"
                            .formatted(
                                    format.valueBytes(),
                                    Integer.MAX_VALUE - ValueHeader.BYTES,
                                    format.blocksPerChunk()));
        }
        StoreCounters counters = new StoreCounters("lm");
        return new LmBlockStore(format, counters, LmProtocol.client(settings, counters, ticker));
    }

    private int storedBytes() {
        return Math.toIntExact(header.storedBytes());
    }

    private void damaged(BlockHash key) {
        if (damaged.size() < MOST_DAMAGED && damaged.add(key)) {
            counters.removed(key);
        }
    }

    @Override
    public StoreTask contains(List<BlockHash> batch, Deadline deadline) {
        StoreTask task = new StoreTask(batch.size(), deadline);
        List<BlockHash> asked = List.copyOf(batch);
        LookUp lookUp = new LookUp.Contains(client, task, new BlockKeys(prefix, asked)) {
            @Override
            protected void known(int from, int to, BitSet present) {
                super.known(from, to, good(asked, from, present));
            }
        };
        return client.run(lookUp);
    }

    /** Takes out the keys of values that are known to be of no use. */
    private BitSet good(List<BlockHash> keys, int from, BitSet present) {
        if (!damaged.isEmpty()) {
            for (int key = present.nextSetBit(0); key >= 0; key = present.nextSetBit(key + 1)) {
                if (damaged.contains(keys.get(from + key))) {
                    present.clear(key);
                }
            }
        }
        return present;
    }

    @Override
    public StoreTask get(List<BlockHash> batch, List<ValueRanges> to, Deadline deadline) {
        return client.run(new Read(new StoreTask(batch.size(), deadline), batch, to));
    }

    private final class Read extends Fetch {
        private final List<BlockHash> batch;
        private final ArrivingValues values;

        private Read(StoreTask task, List<BlockHash> batch, List<ValueRanges> to) {
            super(LmBlockStore.this.client, task, batch.size() * header.storedBytes(), new BlockKeys(prefix, batch));
            this.batch = List.copyOf(batch);
            values = new ArrivingValues(header, batch, to);
        }

        @Override
        protected long valueBytes(int key) {
            return header.storedBytes();
        }

        @Override
        protected boolean verifies() {
            return true;
        }

        @Override
        protected int headBytes() {
            return ValueHeader.BYTES;
        }

        @Override
        protected Optional<Destination> place(int key, LmReply reply) {
            if (reply.length() != header.storedBytes()) {
                wrong(key, Failure.LENGTH);
                return Optional.empty();
            }
            return Optional.of(values.place(key));
        }

        @Override
        protected void arrived(int key, LmReply reply) {
            values.verify(key).ifPresentOrElse(failure -> wrong(key, failure), () -> {
                counters.read(header.valueBytes());
                task.succeed(key);
            });
        }

        private void wrong(int key, Failure cause) {
            counters.failed(cause, 1);
            damaged(batch.get(key));
        }
    }

    /** @throws IllegalArgumentException if the ranges of a key are not a value */
    @Override
    public StoreTask put(List<BlockHash> batch, List<ValueRanges> from, Deadline deadline) {
        return client.run(new Write(new StoreTask(batch.size(), deadline), batch, from));
    }

    /** Asks which values are there, so that they are not sent again. */
    private final class Write extends LookUp {
        private final List<BlockHash> batch;
        private final BatchRanges ranges;

        private Write(StoreTask task, List<BlockHash> batch, List<ValueRanges> from) {
            super(LmBlockStore.this.client, task, batch.size() * header.storedBytes(), new BlockKeys(prefix, batch));
            this.batch = List.copyOf(batch);
            ranges = BatchRanges.ofValues(from, batch.size(), header.valueBytes());
        }

        @Override
        protected void submit() {
            ask();
        }

        @Override
        protected void known(int from, int to, BitSet present) {
            BitSet good = good(batch, from, present);
            task.succeed(from, good);
            counters.count(StoreCounters.Result.PRESENT, good.cardinality());
            good.flip(0, to - from);
            if (good.isEmpty() || isAbandoned()) {
                return;
            }
            List<Send> requests =
                    good.stream().mapToObj(key -> send(from + key)).toList();
            transfer(requests);
        }

        private Send send(int index) {
            return new Send(this, counters, keys, index, storedBytes()) {
                @Override
                protected LmMetadata metadata() {
                    return LmMetadata.bytes(storedBytes());
                }

                @Override
                protected List<MemorySegment> value(int key, ByteBuf head) {
                    List<MemorySegment> value =
                            ranges.pieces(key, header.valueBytes()).orElseThrow();
                    header.write(head, value, batch.get(key));
                    return value;
                }

                @Override
                protected void stored(int key) {
                    damaged.remove(batch.get(key));
                    counters.stored(batch.get(key), header.valueBytes());
                    task.succeed(key);
                }
            };
        }
    }
}
