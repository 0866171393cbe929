package baton.server.output;

import java.util.List;
import java.util.Optional;
import java.util.function.Supplier;

/** Calls as JSON objects, alone or in a list. */
final class JsonCallParser extends CallParser {
    private static final int MAX_NAME = 256;

    private enum State {
        CONTENT,
        OPENING,
        CALL,
        AFTER
    }

    private final JsonCalls form;
    private State state = State.CONTENT;
    private CallObject call = CallObject.whole();
    private boolean inList;

    JsonCallParser(JsonCalls form, Supplier<String> ids) {
        super(ids);
        this.form = form;
    }

    @Override
    boolean step() {
        return switch (state) {
            case CONTENT -> content();
            case OPENING -> opening();
            case CALL -> call();
            case AFTER -> after();
        };
    }

    private boolean content() {
        int object = rest().indexOf("{");
        boolean bare = form.mayBeBare()
                && atStart()
                && object >= 0
                && rest().substring(0, object).isBlank();
        Optional<String> mark = bare ? Optional.of("") : contentUntil(List.of(form.mark()));
        mark.ifPresent(found -> {
            take(found.length());
            inList = false;
            state = State.OPENING;
        });
        return mark.isPresent();
    }

    private boolean opening() {
        if (!takeSpace()) {
            return false;
        }
        char first = rest().charAt(0);
        if (first == '[' && form.list() != JsonCalls.Listed.NEVER) {
            take(1);
            inList = true;
            return start(CallObject.whole());
        }
        if (first == '{' && form.list() != JsonCalls.Listed.ALWAYS) {
            return start(CallObject.whole());
        }
        return form.afterName().isPresent() ? named(form.afterName().get()) : broken();
    }

    /** {@code name[ARGS]{...}}, or without the mark between. */
    private boolean named(String mark) {
        int brace = rest().indexOf("{");
        String name = rest().substring(0, brace < 0 ? rest().length() : brace);
        if (name.length() > MAX_NAME || name.indexOf('\n') >= 0) {
            return broken();
        }
        if (brace < 0) {
            return false;
        }
        name = (name.endsWith(mark) ? name.substring(0, name.length() - mark.length()) : name).strip();
        if (name.isEmpty()) {
            return broken();
        }
        take(brace);
        return start(CallObject.ofArguments(name));
    }

    private boolean start(CallObject next) {
        call = next;
        state = State.CALL;
        return true;
    }

    private boolean call() {
        boolean hadBegun = call.begunName().isPresent();
        int read = 0;
        boolean fits = true;
        while (fits && read < rest().length() && !call.isComplete()) {
            fits = call.add(rest().charAt(read));
            read += fits ? 1 : 0;
        }
        take(read);
        Optional<String> name = call.begunName();
        name.filter(_ -> !hadBegun).ifPresent(this::begin);
        if (name.isPresent()) {
            forget();
            arguments(call.takeArguments());
        }
        if (call.isComplete()) {
            state = State.AFTER;
            return true;
        }
        if (fits) {
            return false;
        }
        state = State.CONTENT;
        return name.isPresent() || broken();
    }

    /** The next call, or the mark behind calls, or neither. */
    private boolean after() {
        if (!takeSpace()) {
            return false;
        }
        String separator = inList ? "," : form.separator();
        if (!separator.isEmpty() && next(separator) == Match.YES) {
            take(separator.length());
            return start(CallObject.whole());
        }
        if (!separator.isEmpty() && next("{") == Match.YES) {
            return start(CallObject.whole());
        }
        String close = inList ? "]" : form.close();
        Match match = close.isEmpty() ? Match.NO : next(close);
        if (match == Match.MAYBE) {
            return false;
        }
        if (match == Match.YES) {
            take(close.length());
            forget();
        }
        putBack();
        state = State.CONTENT;
        return true;
    }

    private boolean broken() {
        cutOff();
        return true;
    }

    @Override
    void cutOff() {
        state = State.CONTENT;
        firstIsContent();
    }
}
