package baton.jinja;

import baton.jinja.Value.Arguments;
import baton.jinja.Value.Bound;
import baton.jinja.Value.Dict;
import baton.jinja.Value.Function;
import baton.jinja.Value.Instance;
import baton.jinja.Value.Kind;
import baton.jinja.Value.Namespace;
import baton.jinja.Value.Seq;
import java.time.Clock;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;

/** The functions that every template can call: Jinja2's, and those of Hugging Face's transformers. */
record Globals(RenderBudget budget, Python python, Clock clock) {
    private static final int MAX_RANGE = 100_000;

    Map<String, Value.Body> functions() {
        return Map.of(
                "range", this::range,
                "dict", call -> new Dict(entries(call)),
                "namespace",
                        call -> {
                            Map<String, Value> variables = new LinkedHashMap<>();
                            entries(call).forEach((name, value) -> variables.put(python.string(name), value));
                            return new Namespace(variables);
                        },
                "cycler", this::cycler,
                "joiner", this::joiner,
                "lipsum",
                        call -> {
                            throw budget.error("lipsum() is random, and a prompt must not be");
                        },
                "raise_exception",
                        call -> {
                            throw budget.error(
                                    python.string(call.bind("message").require("message")));
                        },
                "strftime_now",
                        call -> Value.of(Strftime.format(call.bind("format").text("format"), clock, budget)));
    }

    private Value range(Arguments call) {
        Bound given = call.bindPlaces("start", "stop", "step");
        boolean one = given.get("stop").isEmpty();
        long start = one ? 0 : bound(given.require("start"));
        long stop = bound(given.require(one ? "start" : "stop"));
        long step = given.get("step").map(this::bound).orElse(1L);
        if (step == 0) {
            throw budget.error("range() step must not be zero");
        }
        long size = NumberRange.size(start, stop, step);
        if (size > MAX_RANGE) {
            throw budget.error("range too big: the limit is " + MAX_RANGE);
        }
        return new Seq(new NumberRange(start, stop, step, (int) size), Kind.RANGE);
    }

    private long bound(Value value) {
        try {
            return Math.clamp(python.toInteger(value).longValueExact(), -(1L << 40), 1L << 40);
        } catch (ArithmeticException e) {
            throw budget.error("range() wants smaller numbers");
        }
    }

    /** The entries of {@code dict(...)}: of a mapping or of pairs, and of the named arguments. */
    private Map<Value, Value> entries(Arguments call) {
        Map<Value, Value> entries = new LinkedHashMap<>();
        List<Value> given = call.positional();
        if (given.size() > 1) {
            throw budget.error(call.function() + "() takes at most 1 argument by place, has " + given.size());
        }
        if (!given.isEmpty() && given.getFirst() instanceof Dict(Map<Value, Value> others)) {
            budget.charge(others.size());
            entries.putAll(others);
        } else if (!given.isEmpty()) {
            Iterator<Value> pairs = python.iterator(given.getFirst());
            while (pairs.hasNext()) {
                budget.charge(1);
                List<Value> pair = python.iterate(pairs.next());
                if (pair.size() != 2) {
                    throw budget.error(call.function() + "() wants pairs, found one of " + pair.size());
                }
                entries.put(python.key(pair.get(0)), pair.get(1));
            }
        }
        call.named().forEach((name, value) -> entries.put(Value.of(name), value));
        return entries;
    }

    private Value cycler(Arguments call) {
        List<Value> items = call.positional();
        if (items.isEmpty() || !call.named().isEmpty()) {
            throw budget.error("cycler() wants at least one item");
        }
        AtomicInteger place = new AtomicInteger();
        return new Instance(
                "Cycler",
                Optional.empty(),
                Map.of(
                        "items", () -> new Seq(items, Kind.TUPLE),
                        "pos", () -> Value.of(place.get()),
                        "current", () -> items.get(place.get()),
                        "next",
                                () -> new Function("next", next -> {
                                    next.bind();
                                    return items.get(place.getAndUpdate(at -> (at + 1) % items.size()));
                                }),
                        "reset",
                                () -> new Function("reset", reset -> {
                                    reset.bind();
                                    place.set(0);
                                    return Value.NONE;
                                })),
                Optional.empty());
    }

    private Value joiner(Arguments call) {
        Value separator = call.bind("sep").get("sep").orElse(Value.of(", "));
        AtomicBoolean used = new AtomicBoolean();
        return new Instance(
                "Joiner",
                Optional.of(join -> {
                    join.bind();
                    return used.getAndSet(true) ? separator : Value.of("");
                }),
                Map.of("sep", () -> separator, "used", () -> Value.of(used.get())),
                Optional.empty());
    }
}
