package baton.engine.model;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.KvCache;
import baton.kv.ModelFingerprint;
import baton.kv.connector.HiddenState;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.IntFunction;

/** Ranks as one runner: each computes on a thread of its own, and they all take the same time off. */
final class RanksTogether implements ModelRunner {
    final ModelRanks ranks;
    private final List<ExecutorService> threads = new ArrayList<>();

    RanksTogether(ModelRanks ranks) {
        this.ranks = ranks;
        ranks.runners().forEach(_ -> threads.add(Executors.newSingleThreadExecutor()));
    }

    /** The result of each rank: logits or its exception. */
    List<Future<Logits>> forwardAll(List<SequenceSlice> slices, IntFunction<LayerHooks> hooks) {
        List<Future<Logits>> futures = new ArrayList<>();
        for (int i = 0; i < threads.size(); i++) {
            ModelRunner runner = ranks.runners().get(i);
            LayerHooks own = hooks.apply(i);
            futures.add(threads.get(i).submit(() -> runner.forward(slices, own)));
        }
        for (Future<Logits> future : futures) {
            try {
                future.get(60, TimeUnit.SECONDS);
            } catch (ExecutionException e) {
                assertThat(future.state()).isEqualTo(Future.State.FAILED);
            } catch (InterruptedException | TimeoutException e) {
                throw new AssertionError("a rank has not come back", e);
            }
        }
        return futures;
    }

    @Override
    public Logits forward(List<SequenceSlice> slices, LayerHooks hooks) {
        return forwardAll(slices, _ -> hooks).get(ranks.logitsRank()).resultNow();
    }

    @Override
    public ModelConfig config() {
        return ranks.first().config();
    }

    @Override
    public ModelFingerprint fingerprint() {
        return ranks.first().fingerprint();
    }

    @Override
    public boolean takes(HiddenState state) {
        return ranks.first().takes(state);
    }

    /** The first rank's: all ranks have as many blocks. */
    @Override
    public KvCache cache() {
        return ranks.first().cache();
    }

    @Override
    public void close() {
        threads.forEach(ExecutorService::shutdownNow);
        ranks.close();
    }
}
