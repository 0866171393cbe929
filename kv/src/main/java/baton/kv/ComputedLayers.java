package baton.kv;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.function.IntConsumer;

/** Layers of a step that are computed, or copied, one after the other, while the step goes on. One thread's. */
public final class ComputedLayers {
    private final Deque<Layer> layers = new ArrayDeque<>();

    private record Layer(int index, KvFence computed) {}

    /** @param computed passed when the layer's bytes are in place */
    public void add(int layer, KvFence computed) {
        layers.add(new Layer(layer, computed));
    }

    /** Takes the layers that are in place, in their order. */
    public void take(IntConsumer each) {
        while (!layers.isEmpty() && layers.element().computed().isPassed()) {
            takeNext(each);
        }
    }

    /** Takes all layers, in their order: waits for each. */
    public void await(IntConsumer each) {
        while (!layers.isEmpty()) {
            takeNext(each);
        }
    }

    private void takeNext(IntConsumer each) {
        Layer next = layers.remove();
        next.computed().await();
        each.accept(next.index());
    }

    /** Takes all layers of a step that has failed. */
    public void drop() {
        await(_ -> {});
    }
}
