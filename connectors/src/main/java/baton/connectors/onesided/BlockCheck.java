package baton.connectors.onesided;

import baton.connectors.onesided.BlockChecksums.Unit;
import baton.connectors.onesided.BlockMapping.Heads;
import baton.connectors.onesided.BlockMapping.Piece;
import baton.connectors.onesided.PeerEngine.RemoteRank;
import baton.kv.KvDigest;
import baton.kv.Ticker;
import baton.transfer.Range;
import baton.transfer.TransferAgent.Operation;
import baton.transfer.TransferException;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * Reads the owner's checksums of blocks that are here, and compares them with the digests of the blocks. Entries are read after the
 * blocks, so that a block that was reused meanwhile is detected.
 */
final class BlockCheck implements LoadCheck {
    private final BlockMapping map;
    private final SourceBlocks source;
    private final PieceDigests digests;
    private final Ticker ticker;
    private final TransferGroup seals;
    private final Map<String, Duration> durations = new LinkedHashMap<>();
    private long phaseBegan;
    private boolean sealsAreHere;
    private Map<Integer, Rejection> wrong = Map.of();

    /**
     * Begins.
     *
     * @param digests of the blocks, or in the making
     * @param timeout of the transfers
     */
    BlockCheck(RankContext context, BlockMapping map, SourceBlocks source, PieceDigests digests, Duration timeout)
            throws TransferException {
        this.map = map;
        this.source = source;
        this.digests = digests;
        this.ticker = context.ticker();
        this.phaseBegan = ticker.nanos();
        this.seals = new TransferGroup(ticker);
        prepare(context, map, source);
        for (Heads heads : map.heads()) {
            RemoteRank remote = source.ranks().get(heads.source());
            long local = remote.scratch().memory().region().memory().address();
            BlockChecksums.Table table = remote.info().checksums().orElseThrow();
            List<Range> ranges = map.checksumRanges(heads, source.blocks(), local, table);
            seals.start(
                    ranges.size(),
                    () -> context.agent().start(Operation.READ, remote.peer(), ranges, Optional.empty(), timeout));
        }
    }

    /** Provides memory for the checksums of the blocks. */
    static void prepare(RankContext context, BlockMapping map, SourceBlocks source) throws TransferException {
        for (Heads heads : map.heads()) {
            source.ranks().get(heads.source()).needScratch(context, map.checksumEntries());
        }
    }

    @Override
    public boolean advance() {
        if (!seals.isOver()) {
            return false;
        }
        if (!sealsAreHere) {
            sealsAreHere = true;
            enter("seals");
        }
        if (!digests.tasks().isOver()) {
            return false;
        }
        if (failure().isEmpty()) {
            wrong = compare();
            // Digests computed on arrival may be of bytes that were overwritten later; the blocks' present content
            // decides.
            if (!wrong.isEmpty() && digests.digestAgain()) {
                return false;
            }
        }
        enter("check");
        return true;
    }

    @Override
    public Optional<String> failure() {
        return seals.failure()
                .or(() -> digests.tasks().failure().map(why -> "the blocks could not be checked: " + why));
    }

    @Override
    public Map<Integer, Rejection> wrong() {
        return wrong;
    }

    private void enter(String ended) {
        long now = ticker.nanos();
        durations.put(ended, Duration.ofNanos(now - phaseBegan));
        phaseBegan = now;
    }

    private Map<Integer, Rejection> compare() {
        Map<Integer, Rejection> bad = new LinkedHashMap<>();
        long[] promised = source.generations().orElseThrow();
        for (Heads heads : map.heads()) {
            RemoteRank remote = source.ranks().get(heads.source());
            long entryBytes = BlockChecksums.entryBytes(remote.info().layout(), source.digest());
            MemorySegment entries = remote.scratch().memory().region().memory();
            for (int i = 0; i < map.pieces().size(); i++) {
                Piece piece = map.pieces().get(i);
                MemorySegment entry = entries.asSlice(map.checksumEntry(piece) * entryBytes, entryBytes);
                for (int head = 0; head < heads.count() && !bad.containsKey(piece.block()); head++) {
                    BlockChecksums.check(
                                    entry,
                                    remote.info().layout(),
                                    source.digest(),
                                    promised[piece.index()],
                                    new Unit(
                                            source.blocks()[piece.index()],
                                            heads.ownerHead() + head,
                                            piece.ownerSlot(),
                                            map.slots()),
                                    digests.of(i, heads.readerHead() + head))
                            .ifPresent(wrong -> bad.put(piece.block(), wrong));
                }
            }
        }
        return bad;
    }

    @Override
    public boolean isVerified() {
        return source.digest() != KvDigest.NONE;
    }

    @Override
    public Map<String, Duration> durations() {
        return durations;
    }

    @Override
    public void cancel() {
        seals.cancel();
    }

    @Override
    public void await() {
        digests.tasks().await();
    }
}
