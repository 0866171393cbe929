package baton.jinja;

import java.util.Iterator;
import java.util.NoSuchElementException;
import java.util.Optional;
import java.util.function.Function;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/** A Python generator: computes an item when it is asked for. Chains of them count as nesting. */
final class LazyItems implements Iterator<Value> {
    private final RenderBudget budget;
    private final Supplier<Iterator<Value>> source;
    private final Function<Value, Optional<Value>> step;
    private @Nullable Iterator<Value> from;
    private @Nullable Value next;

    /**
     * @param source run when the first item is asked for
     * @param step makes an item of one of the source's; empty to leave it out
     */
    LazyItems(RenderBudget budget, Supplier<Iterator<Value>> source, Function<Value, Optional<Value>> step) {
        this.budget = budget;
        this.source = source;
        this.step = step;
    }

    @Override
    public boolean hasNext() {
        budget.enter();
        Iterator<Value> items = from == null ? source.get() : from;
        from = items;
        while (next == null && items.hasNext()) {
            budget.charge(1);
            next = step.apply(items.next()).orElse(null);
        }
        budget.leave();
        return next != null;
    }

    @Override
    public Value next() {
        if (!hasNext() || next == null) {
            throw new NoSuchElementException();
        }
        Value item = next;
        next = null;
        return item;
    }
}
