package baton.connectors.mooncake;

import baton.kv.KvCopier;
import baton.kv.KvFence;
import baton.kv.KvMemory;
import baton.transfer.Range;
import baton.transfer.TransferException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.zip.CRC32C;

/**
 * The writes of one prefill rank into one decode rank's pool. Pages are ordered by head, so a rank's heads are a range of a page, and ranks
 * with different numbers of heads exchange ranges: vLLM's {@code _compute_sender_transfer_plan}.
 *
 * @param pairs pages of the same layer, on both sides, in the prefill rank's order
 * @param readerRegions index of the decode rank's region, for each pair
 * @param from offset in the prefill rank's pages
 * @param to offset in the decode rank's pages
 * @param bytes of each page; 0 if another prefill rank writes the same heads
 */
record WritePlan(List<Pair> pairs, int[] readerRegions, long from, long to, long bytes) {
    record Pair(MooncakeRegion own, MooncakeRegion reader) {}

    /** Tensor and pipeline ranks of one side. */
    record Ranks(int tpSize, int tpRank, int ppSize) {
        private int firstHead(int rank, int heads) {
            return (int) ((long) rank * heads / tpSize);
        }

        private int heads(int heads) {
            return Math.max(1, heads / tpSize);
        }
    }

    /**
     * The ranks of the other side that a rank exchanges blocks with, as vLLM's {@code handshake_target_ranks}.
     *
     * @throws TransferException if neither size divides the other
     */
    static List<Integer> paired(int rank, int size, int otherSize) throws TransferException {
        if (size % otherSize != 0 && otherSize % size != 0) {
            throw new TransferException(
                    "tensor parallel sizes %d and %d: one must divide the other".formatted(size, otherSize));
        }
        if (size >= otherSize) {
            return List.of(rank / (size / otherSize));
        }
        int each = otherSize / size;
        List<Integer> ranks = new ArrayList<>();
        for (int i = 0; i < each; i++) {
            ranks.add(rank * each + i);
        }
        return ranks;
    }

    /**
     * @param modelHeads key/value heads of the whole model
     * @throws TransferException if the pools do not fit together
     */
    static WritePlan of(
            List<MooncakeRegion> own, Ranks writer, List<MooncakeRegion> reader, Ranks readerRanks, int modelHeads)
            throws TransferException {
        if (readerRanks.tpRank() >= readerRanks.tpSize()) {
            throw new TransferException("tp_rank " + readerRanks.tpRank() + " of " + readerRanks.tpSize());
        }
        List<Integer> readers = paired(writer.tpRank(), writer.tpSize(), readerRanks.tpSize());
        if (!readers.contains(readerRanks.tpRank())) {
            throw new TransferException("This D tp_rank %d is not paired with P tp_rank %d; expected one of %s."
                    .formatted(readerRanks.tpRank(), writer.tpRank(), readers));
        }
        int firstOwn = writer.firstHead(writer.tpRank(), modelHeads);
        int firstReader = readerRanks.firstHead(readerRanks.tpRank(), modelHeads);
        int ownHeads = writer.heads(modelHeads);
        int readerHeads = readerRanks.heads(modelHeads);
        int first = Math.max(firstOwn, firstReader);
        int end = Math.min(firstOwn + ownHeads, firstReader + readerHeads);
        boolean writes = end > first;
        // Where there are fewer heads than ranks, several have the same: the first writes.
        for (int other : paired(readerRanks.tpRank(), readerRanks.tpSize(), writer.tpSize())) {
            writes &= other >= writer.tpRank() || writer.firstHead(other, modelHeads) != firstOwn;
        }
        List<Pair> pairs = new ArrayList<>();
        List<Integer> readerRegions = new ArrayList<>();
        Map<String, Integer> byLayer = new HashMap<>();
        for (int i = 0; i < reader.size(); i++) {
            if (byLayer.putIfAbsent(reader.get(i).layer(), i) != null) {
                throw new TransferException("layer " + reader.get(i).layer()
                        + " has several regions; only layers of plain attention in one region are exchanged");
            }
        }
        for (MooncakeRegion region : own) {
            Integer at = byLayer.get(region.layer());
            if (at == null) {
                if (writer.ppSize() == readerRanks.ppSize()) {
                    throw new TransferException("the decode rank has no layer " + region.layer());
                }
                continue;
            }
            MooncakeRegion other = reader.get(at);
            if (other.layerIndex() != region.layerIndex() || other.group() != region.group()) {
                throw new TransferException("layer %s has index %d and group %d here, %d and %d at the decode rank"
                        .formatted(
                                region.layer(),
                                region.layerIndex(),
                                region.group(),
                                other.layerIndex(),
                                other.group()));
            }
            if (region.bytes() / ownHeads * readerHeads != other.bytes()) {
                throw new TransferException(
                        "a block of layer %s has %d bytes for %d heads here and %d bytes for %d heads at the decode rank: dtype, head size and block size must be equal"
                                .formatted(region.layer(), region.bytes(), ownHeads, other.bytes(), readerHeads));
            }
            pairs.add(new Pair(region, other));
            readerRegions.add(at);
        }
        long head = own.getFirst().bytes() / ownHeads;
        return new WritePlan(
                List.copyOf(pairs),
                readerRegions.stream().mapToInt(each -> each).toArray(),
                writes ? (first - firstOwn) * head : 0,
                writes ? (first - firstReader) * head : 0,
                writes ? (end - first) * head : 0);
    }

    /** Whether there is nothing to write, because other ranks write all of it. */
    boolean isEmpty() {
        return bytes == 0 || pairs.isEmpty();
    }

    /** Ranges to be written, neighbours merged. {@code own[i]} is written to {@code reader[i]}. */
    List<Range> ranges(int[] own, int[] reader) {
        List<Range> ranges = new ArrayList<>();
        if (isEmpty()) {
            return ranges;
        }
        for (int i = 0; i < own.length; i++) {
            for (Pair pair : pairs) {
                long local = pair.own().page(own[i]) + from;
                long remote = pair.reader().page(reader[i]) + to;
                Range.append(ranges, new Range(local, remote, bytes));
            }
        }
        return ranges;
    }

    /** The checksums of the written bytes, by block. */
    int[] checksums(KvMemory pool, int[] own) {
        return checksums(pool, pairs.stream().map(Pair::own).toList(), from, bytes, own);
    }

    /**
     * Checksums of a part of the pages of some blocks, for each block over all regions.
     *
     * @param pool that has the regions
     */
    static int[] checksums(KvMemory pool, List<MooncakeRegion> regions, long offset, long bytes, int[] blocks) {
        CRC32C crc = new CRC32C();
        int[] checksums = new int[blocks.length];
        switch (pool) {
            case KvMemory.Host host -> {
                for (int i = 0; i < blocks.length; i++) {
                    crc.reset();
                    for (MooncakeRegion region : regions) {
                        long page = region.page(blocks[i]) + offset - pool.address();
                        crc.update(host.host().asSlice(page, bytes).asByteBuffer());
                    }
                    checksums[i] = (int) crc.getValue();
                }
            }
            case KvMemory.Device device -> {
                try (Arena arena = Arena.ofShared()) {
                    MemorySegment copy = arena.allocate(regions.size() * bytes);
                    for (int i = 0; i < blocks.length; i++) {
                        List<KvCopier.Range> ranges = new ArrayList<>();
                        for (MooncakeRegion region : regions) {
                            long page = region.page(blocks[i]) + offset - pool.address();
                            ranges.add(new KvCopier.Range(page, ranges.size() * bytes, bytes));
                        }
                        device.copier().toHost(ranges, copy, KvFence.PASSED).await();
                        crc.reset();
                        crc.update(copy.asByteBuffer());
                        checksums[i] = (int) crc.getValue();
                    }
                }
            }
        }
        return checksums;
    }
}
