package baton.cuda.model;

import baton.cuda.driver.CudaException;
import baton.cuda.driver.Gpu;
import baton.cuda.driver.Gpu.Graph;
import baton.cuda.model.StepInputs.Step;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Launches steps as graphs, by the numbers that their launches depend on. Used by one thread. */
final class StepGraphs implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(StepGraphs.class);
    private static final int MOST = 128;

    private final Gpu.Stream stream;
    private final Map<Step, Graph> graphs = new HashMap<>();
    private final Set<Step> seen = new HashSet<>();
    private boolean captures = true;

    StepGraphs(Gpu.Stream stream) {
        this.stream = stream;
    }

    /**
     * Enqueues a step. The first one of its kind is enqueued launch by launch, which loads its kernels; the second is captured. If that fails
     * no other is.
     *
     * @param launches enqueues the step's launches and nothing else
     */
    void launch(Step step, Runnable launches) {
        Graph graph = graphs.get(step);
        if (graph == null) {
            if (!captures || seen.add(step) || graphs.size() == MOST) {
                launches.run();
                return;
            }
            try {
                graph = stream.capture(launches);
            } catch (CudaException e) {
                LOG.warn("The driver makes no graphs of steps, which are slower without: {}", e.getMessage());
                captures = false;
                launches.run();
                return;
            }
            graphs.put(step, graph);
        }
        stream.launch(graph);
    }

    /** Forgets the graphs, because addresses change. After the stream was synchronized. */
    void clear() {
        graphs.values().forEach(Graph::close);
        graphs.clear();
        seen.clear();
    }

    @Override
    public void close() {
        clear();
    }
}
