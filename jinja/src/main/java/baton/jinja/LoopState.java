package baton.jinja;

import baton.jinja.Value.Undefined;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Optional;
import java.util.function.UnaryOperator;
import org.jspecify.annotations.Nullable;

/** A running loop: the values of the attributes of {@code loop}. It reads ahead of its items only for those that need it. */
final class LoopState {
    private Iterator<Value> items;
    private int length;
    private final int depth0;
    private final Optional<UnaryOperator<Value>> recursion;
    private final RenderBudget budget;
    private int index0 = -1;
    private @Nullable Value before;
    private @Nullable Value current;
    private @Nullable Value after;
    private @Nullable Value lastChanged;

    /**
     * @param length how many items there are; negative if that is not known
     * @param recursion renders the loop's body for other items, a level deeper; empty of a loop that does not recur
     */
    LoopState(
            Iterator<Value> items,
            int length,
            int depth0,
            Optional<UnaryOperator<Value>> recursion,
            RenderBudget budget) {
        this.items = items;
        this.length = length;
        this.depth0 = depth0;
        this.recursion = recursion;
        this.budget = budget;
    }

    boolean hasNext() {
        return after != null || items.hasNext();
    }

    /** Begins the next round. */
    Value next() {
        Value item = after != null ? after : items.next();
        after = null;
        index0++;
        before = current;
        current = item;
        return item;
    }

    private @Nullable Value peek() {
        if (after == null && items.hasNext()) {
            after = items.next();
        }
        return after;
    }

    int length() {
        if (length < 0) {
            List<Value> rest = new ArrayList<>();
            while (items.hasNext()) {
                budget.charge(1);
                rest.add(items.next());
            }
            items = rest.iterator();
            length = rest.size() + index0 + 1 + (after == null ? 0 : 1);
        }
        return length;
    }

    /** {@code loop(items)}: the text of the loop's body for these items. */
    Value call(Value.Arguments call) {
        UnaryOperator<Value> body = recursion.orElseThrow(
                () -> budget.error("The loop must have the 'recursive' marker to be called recursively."));
        return body.apply(call.bind("iterable").require("iterable"));
    }

    Optional<Value> attribute(String name, Python python) {
        return Optional.ofNullable(
                switch (name) {
                    case "index" -> Value.of(index0 + 1);
                    case "index0" -> Value.of(index0);
                    case "revindex" -> Value.of(length() - index0);
                    case "revindex0" -> Value.of(length() - index0 - 1);
                    case "first" -> Value.of(index0 == 0);
                    case "last" -> Value.of(peek() == null);
                    case "length" -> Value.of(length());
                    case "depth" -> Value.of(depth0 + 1);
                    case "depth0" -> Value.of(depth0);
                    case "previtem" -> before != null ? before : new Undefined("there is no previous item");
                    case "nextitem" -> {
                        Value next = peek();
                        yield next != null ? next : new Undefined("there is no next item");
                    }
                    case "cycle" ->
                        new Value.Function(name, call -> {
                            List<Value> choices = call.positional();
                            if (choices.isEmpty()) {
                                throw budget.error("no items for cycling given");
                            }
                            return choices.get(index0 % choices.size());
                        });
                    case "changed" ->
                        new Value.Function(name, call -> {
                            Value now = new Value.Seq(call.positional(), Value.Kind.TUPLE);
                            boolean changed = lastChanged == null || !python.equal(lastChanged, now);
                            lastChanged = now;
                            return Value.of(changed);
                        });
                    default -> null;
                });
    }

    @Override
    public String toString() {
        return "<LoopContext " + (index0 + 1) + "/" + length() + ">";
    }
}
