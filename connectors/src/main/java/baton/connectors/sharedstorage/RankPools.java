package baton.connectors.sharedstorage;

import baton.kv.BlockCopy;
import baton.kv.KvCache;
import baton.kv.KvLayout;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.Rank;
import baton.store.FileOperations;
import baton.store.prompt.SharedStorage;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.SequencedMap;
import java.util.Set;

/**
 * The pools of all ranks, and the storage. A file's layer is {@code [token][kv head][K | V]} with all heads of the model, a block's layer
 * {@code [kv head][slot][K | V]} with the rank's: this copies between the two.
 *
 * @param model layout of a pool that had all layers and heads
 * @param layers of the model, in order
 * @param firstLayers by rank, the index in the model of its first layer
 * @param layerCounts by rank, how many layers it has
 */
record RankPools(
        KvLayout model,
        List<Layer> layers,
        Map<Rank, Integer> firstLayers,
        Map<Rank, Integer> layerCounts,
        SharedStorage storage) {
    /** One rank's pool, and the index of its first head among the model's. */
    record Pool(KvCache cache, int firstHead) {
        BlockCopy copy() {
            return new BlockCopy(cache);
        }
    }

    /** A layer of the model, and its place in the pools of the ranks that have it. */
    record Layer(int inPool, List<Pool> pools) {}

    static RankPools of(
            SequencedMap<Rank, KvCache> caches,
            ConnectorContext context,
            SharedStorageSettings settings,
            FileOperations files) {
        List<Layer> layers = new ArrayList<>();
        List<String> names = new ArrayList<>();
        Map<Rank, Integer> firstLayers = new HashMap<>();
        Map<Rank, Integer> layerCounts = new HashMap<>();
        for (int stage = 0; stage < context.pipelineParallelSize(); stage++) {
            List<Pool> pools = new ArrayList<>();
            for (int tensor = 0; tensor < context.tensorParallelSize(); tensor++) {
                Rank rank = new Rank(stage, tensor);
                int firstHead = context.modelLayout().kvHeads() * tensor / context.tensorParallelSize();
                pools.add(new Pool(Objects.requireNonNull(caches.get(rank), "no pool"), firstHead));
                firstLayers.put(rank, layers.size());
                layerCounts.put(rank, pools.getLast().cache.layout().layers());
            }
            List<String> ofStage = pools.getFirst().cache.layerNames();
            for (int layer = 0; layer < ofStage.size(); layer++) {
                layers.add(new Layer(layer, List.copyOf(pools)));
            }
            names.addAll(ofStage);
        }
        SharedStorage.Format format = SharedStorageConnector.format(context, names);
        return new RankPools(
                context.modelLayout(),
                layers,
                firstLayers,
                layerCounts,
                new SharedStorage(settings.root(), format, settings.layouts(), context.ticker(), files));
    }

    /** The index in the model of the rank's first layer. */
    int firstLayer(Rank rank) {
        return Objects.requireNonNull(firstLayers.get(rank), "no pool");
    }

    Set<Rank> ranks() {
        return firstLayers.keySet();
    }

    /** How many layers the rank has. */
    int layersOf(Rank rank) {
        return Objects.requireNonNull(layerCounts.get(rank), "no pool");
    }

    /** Copies one layer of blocks into {@code packed}, which holds as many tokens as the blocks. */
    void gather(int[] blocks, int layer, MemorySegment packed) {
        Layer from = layers.get(layer);
        for (Pool pool : from.pools) {
            pool.copy().gather(from.inPool, blocks, 0, tokens(blocks), inFile(pool, packed), 0);
        }
    }

    /** Fills one layer of blocks from {@code packed}, starting at its {@code firstToken}. */
    void scatter(int[] blocks, int layer, MemorySegment packed, int firstToken) {
        Layer to = layers.get(layer);
        for (Pool pool : to.pools) {
            pool.copy().scatter(to.inPool, blocks, 0, tokens(blocks), inFile(pool, packed), firstToken);
        }
    }

    private int tokens(int[] blocks) {
        return Math.multiplyExact(blocks.length, model.blockSize());
    }

    private BlockCopy.TokenMajor inFile(Pool pool, MemorySegment packed) {
        return new BlockCopy.TokenMajor.Packed(packed, model.kvHeads(), pool.firstHead);
    }

    MemorySegment buffer(Arena arena, int tokens) {
        return arena.allocate(tokens * (model.kvHeads() * model.entryBytes()), 64);
    }
}
