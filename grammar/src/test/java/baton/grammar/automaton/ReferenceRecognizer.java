package baton.grammar.automaton;

import baton.grammar.rule.CharSet;
import baton.grammar.rule.Expression;
import baton.grammar.rule.GrammarSource;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/**
 * Recognises texts, and beginnings of texts, by the definition of each expression: sets of places that are enlarged until they no longer
 * change. It is slow, and shares nothing with the automaton.
 */
@SuppressWarnings("ReferenceEquality") // equal items are the same object
final class ReferenceRecognizer {
    /** An expression, by identity, and where its text begins. */
    private record Spot(Expression expression, int from) {
        @Override
        public boolean equals(@Nullable Object other) {
            return other instanceof Spot(Expression same, int place) && same == expression && place == from;
        }

        @Override
        public int hashCode() {
            return 31 * System.identityHashCode(expression) + from;
        }
    }

    /** All characters of texts; tests have expressions of all but the last. */
    static final String UNIVERSE = "ab\u00e8\u00e9x";

    /** How many characters complete an intersection or complement at most. */
    private static final int LONGEST_COMPLETION = 4;

    /** One object, as places are known by the identity of the expression. */
    private static final Expression ANY = Expression.any();

    private final GrammarSource source;

    /** Whether the bytes from a place on can be completed to a text of an expression, by the expression and these bytes. */
    private final Map<Expression, Map<ByteBuffer, Boolean>> completed;

    private final byte[] text;
    private Map<Spot, Set<Integer>> ends = new HashMap<>();
    private Map<Spot, Boolean> beginnings = new HashMap<>();
    private Map<Spot, Set<Integer>> endsBefore = new HashMap<>();
    private Map<Spot, Boolean> beginningsBefore = new HashMap<>();

    ReferenceRecognizer(GrammarSource source) {
        this(source, new IdentityHashMap<>(), new byte[0]);
    }

    private ReferenceRecognizer(
            GrammarSource source, Map<Expression, Map<ByteBuffer, Boolean>> completed, byte[] text) {
        this.source = source;
        this.completed = completed;
        this.text = text;
    }

    /** Whether the text is of the grammar. */
    boolean accepts(byte[] text) {
        ReferenceRecognizer recognizer = new ReferenceRecognizer(source, completed, text);
        return recognizer.ends(source.start()).contains(text.length);
    }

    /** Whether some text of the grammar begins with this text. */
    boolean begins(byte[] text) {
        ReferenceRecognizer recognizer = new ReferenceRecognizer(source, completed, text);
        boolean found;
        do {
            recognizer.round();
            found = recognizer.begins(source.start(), 0);
        } while (recognizer.changed());
        return found;
    }

    private Set<Integer> ends(Expression expression) {
        Set<Integer> found;
        do {
            round();
            found = ends(expression, 0);
        } while (changed());
        return found;
    }

    private void round() {
        endsBefore = ends;
        beginningsBefore = beginnings;
        ends = new HashMap<>();
        beginnings = new HashMap<>();
    }

    private boolean changed() {
        return !ends.equals(endsBefore) || !beginnings.equals(beginningsBefore);
    }

    /** Where a text of the expression may end that begins at {@code from}. */
    private Set<Integer> ends(Expression expression, int from) {
        Spot spot = new Spot(expression, from);
        Set<Integer> known = ends.get(spot);
        if (known == null) {
            Set<Integer> before = endsBefore.getOrDefault(spot, Set.of());
            ends.put(spot, before);
            known = new HashSet<>(computeEnds(expression, from));
            known.addAll(before);
            ends.put(spot, known);
        }
        return known;
    }

    private Set<Integer> computeEnds(Expression expression, int from) {
        return switch (expression) {
            case Expression.Text(String content) -> {
                byte[] own = content.getBytes(StandardCharsets.UTF_8);
                yield has(own, from, own.length) ? Set.of(from + own.length) : Set.of();
            }
            case Expression.Chars(CharSet set) -> {
                Set<Integer> after = new HashSet<>();
                for (byte[] own : characters(set)) {
                    if (has(own, from, own.length)) {
                        after.add(from + own.length);
                    }
                }
                yield after;
            }
            case Expression.SpecialToken _ -> Set.of();
            case Expression.Rule(String name) -> ends(rule(name), from);
            case Expression.Sequence(List<Expression> parts) -> {
                Set<Integer> after = Set.of(from);
                for (Expression part : parts) {
                    after = allEnds(part, after);
                }
                yield after;
            }
            case Expression.Choice(List<Expression> parts) -> {
                Set<Integer> after = new HashSet<>();
                parts.forEach(part -> after.addAll(ends(part, from)));
                yield after;
            }
            case Expression.Repeat(Expression repeated, int least, int most) -> {
                Set<Integer> after = new HashSet<>();
                Set<Integer> front = Set.of(from);
                for (int i = 0; i <= Math.min(most, least + text.length + 1); i++) {
                    if (i >= least) {
                        after.addAll(front);
                    }
                    front = allEnds(repeated, front);
                }
                yield after;
            }
            case Expression.And(List<Expression> parts) -> {
                Set<Integer> after = new HashSet<>(ends(parts.getFirst(), from));
                parts.forEach(part -> after.retainAll(ends(part, from)));
                yield after;
            }
            case Expression.Not(Expression excluded) -> {
                Set<Integer> after = new HashSet<>(ends(ANY, from));
                after.removeAll(ends(excluded, from));
                yield after;
            }
            case Expression.Automaton automaton -> automatonEnds(automaton, 0, 0, from);
            case Expression.Members any -> membersEnds(any, from, new HashSet<>(), 0);
        };
    }

    private Expression rule(String name) {
        return Objects.requireNonNull(source.rules().get(name));
    }

    private Set<Integer> allEnds(Expression expression, Set<Integer> starts) {
        Set<Integer> after = new HashSet<>();
        starts.forEach(start -> after.addAll(ends(expression, start)));
        return after;
    }

    private Set<Integer> automatonEnds(Expression.Automaton automaton, int state, int count, int from) {
        Set<Integer> after = new HashSet<>();
        if (automaton.states().get(state).ends() && count >= automaton.least() && count <= automaton.most()) {
            after.add(from);
        }
        for (Expression.Step step : automaton.states().get(state).steps()) {
            for (int next : computeEnds(step.text(), from)) {
                after.addAll(automatonEnds(automaton, step.next(), count + 1, next));
            }
        }
        return after;
    }

    private Set<Integer> membersEnds(Expression.Members any, int from, Set<Integer> used, int count) {
        Set<Integer> after = new HashSet<>();
        if (count >= any.least() && hasRequired(any, used)) {
            after.add(from);
        }
        if (count == any.most()) {
            return after;
        }
        for (int start : count == 0 ? Set.of(from) : ends(any.separator(), from)) {
            for (int i = 0; i < any.members().size(); i++) {
                if (mayCome(any, i, used)) {
                    Set<Integer> then = with(any, i, used);
                    for (int next : ends(any.members().get(i).text(), start)) {
                        after.addAll(membersEnds(any, next, then, count + 1));
                    }
                }
            }
            if (mayCome(any, any.members().size(), used)) {
                Set<Integer> then = with(any, any.members().size(), used);
                for (int next : ends(any.others(), start)) {
                    if (next > from) {
                        after.addAll(membersEnds(any, next, then, count + 1));
                    }
                }
            }
        }
        return after;
    }

    /** Whether a member may be next, or others if it is the number of members. */
    private static boolean mayCome(Expression.Members any, int member, Set<Integer> used) {
        boolean skipsRequired = false;
        for (int i = 0; i < member && !any.anyOrder(); i++) {
            skipsRequired |= any.members().get(i).required() && !used.contains(i);
        }
        return !used.contains(member) && !skipsRequired;
    }

    /** The members that cannot come any more after this one. */
    private static Set<Integer> with(Expression.Members any, int member, Set<Integer> used) {
        Set<Integer> then = new HashSet<>(used);
        for (int i = any.anyOrder() ? member : 0;
                i <= member && i < any.members().size();
                i++) {
            then.add(i);
        }
        return then;
    }

    private static boolean hasRequired(Expression.Members any, Set<Integer> used) {
        for (int i = 0; i < any.members().size(); i++) {
            if (any.members().get(i).required() && !used.contains(i)) {
                return false;
            }
        }
        return true;
    }

    /** Whether the rest of the text is the beginning of a text of the expression. */
    private boolean begins(Expression expression, int from) {
        Spot spot = new Spot(expression, from);
        Boolean known = beginnings.get(spot);
        if (known == null) {
            boolean before = beginningsBefore.getOrDefault(spot, false);
            beginnings.put(spot, before);
            known = before || computeBegins(expression, from);
            beginnings.put(spot, known);
        }
        return known;
    }

    private boolean computeBegins(Expression expression, int from) {
        if (!productive(expression, Set.of())) {
            return false;
        }
        if (from == text.length) {
            return true;
        }
        return switch (expression) {
            case Expression.Text(String content) -> {
                byte[] own = content.getBytes(StandardCharsets.UTF_8);
                yield own.length >= text.length - from && has(own, from, text.length - from);
            }
            case Expression.Chars(CharSet set) ->
                characters(set).stream()
                        .anyMatch(own -> own.length >= text.length - from && has(own, from, text.length - from));
            case Expression.SpecialToken _ -> false;
            case Expression.Rule(String name) -> begins(rule(name), from);
            case Expression.Sequence(List<Expression> parts) -> {
                Set<Integer> starts = Set.of(from);
                boolean found = false;
                for (Expression part : parts) {
                    found |= starts.stream().anyMatch(start -> begins(part, start));
                    starts = allEnds(part, starts);
                }
                yield found || starts.contains(text.length);
            }
            case Expression.Choice(List<Expression> parts) -> parts.stream().anyMatch(part -> begins(part, from));
            case Expression.Repeat(Expression repeated, int least, int most) -> {
                Set<Integer> starts = Set.of(from);
                boolean found = false;
                for (int i = 0; i < Math.min(most, least + text.length + 1); i++) {
                    found |= starts.stream().anyMatch(start -> begins(repeated, start));
                    starts = allEnds(repeated, starts);
                }
                yield found || starts.contains(text.length);
            }
            case Expression.And _, Expression.Not _, Expression.Automaton _ -> completes(expression, from);
            case Expression.Members any -> membersBegin(any, from, new HashSet<>(), 0);
        };
    }

    private boolean membersBegin(Expression.Members any, int from, Set<Integer> used, int count) {
        if (!canComplete(any, used, count, Set.of())) {
            return false;
        }
        if (from == text.length) {
            return true;
        }
        if (!canGoOn(any, used, count)) {
            return false;
        }
        if (count > 0 && begins(any.separator(), from)) {
            return true;
        }
        for (int start : count == 0 ? Set.of(from) : ends(any.separator(), from)) {
            for (int i = 0; i < any.members().size(); i++) {
                if (mayCome(any, i, used)) {
                    Set<Integer> then = with(any, i, used);
                    if (canComplete(any, then, count + 1, Set.of())) {
                        Expression member = any.members().get(i).text();
                        boolean found = begins(member, start);
                        for (int next : ends(member, start)) {
                            found |= membersBegin(any, next, then, count + 1);
                        }
                        if (found) {
                            return true;
                        }
                    }
                }
            }
            Set<Integer> then = with(any, any.members().size(), used);
            if (mayCome(any, any.members().size(), used) && canComplete(any, then, count + 1, Set.of())) {
                boolean found = begins(any.others(), start);
                for (int next : ends(any.others(), start)) {
                    found |= next > from && membersBegin(any, next, then, count + 1);
                }
                if (found) {
                    return true;
                }
            }
        }
        return false;
    }

    /** Whether one more member can come, and the rest be completed. */
    private boolean canGoOn(Expression.Members any, Set<Integer> used, int count) {
        boolean found = false;
        for (int i = 0; i <= any.members().size(); i++) {
            Expression text = i < any.members().size() ? any.members().get(i).text() : any.others();
            found |= mayCome(any, i, used)
                    && productive(text, Set.of())
                    && canComplete(any, with(any, i, used), count + 1, Set.of());
        }
        return found;
    }

    private boolean canComplete(Expression.Members any, Set<Integer> used, int count, Set<String> open) {
        int missing = 0;
        int possible = 0;
        for (int i = 0; i < any.members().size(); i++) {
            Expression.Member member = any.members().get(i);
            boolean productive = productive(member.text(), open);
            if (!used.contains(i)) {
                missing += member.required() ? 1 : 0;
                possible += productive ? 1 : 0;
                if (member.required() && !productive) {
                    return false;
                }
            }
        }
        boolean unbounded = productive(any.others(), open);
        return count + missing <= any.most() && (unbounded || count + possible >= any.least());
    }

    /** Whether the rest of the text and some characters more, of which the first may have begun, are a text of a regular expression. */
    private boolean completes(Expression expression, int from) {
        byte[] rest = Arrays.copyOfRange(text, from, text.length);
        Map<ByteBuffer, Boolean> known = completed.computeIfAbsent(expression, _ -> new HashMap<>());
        Boolean found = known.get(ByteBuffer.wrap(rest));
        if (found == null) {
            found = completes(expression, rest);
            known.put(ByteBuffer.wrap(rest), found);
        }
        return found;
    }

    private boolean completes(Expression expression, byte[] rest) {
        List<byte[]> whole = List.of(rest);
        for (int i = 0; i <= LONGEST_COMPLETION; i++) {
            List<byte[]> longer = new ArrayList<>();
            for (byte[] candidate : whole) {
                if (new ReferenceRecognizer(source, completed, candidate)
                        .ends(expression)
                        .contains(candidate.length)) {
                    return true;
                }
                for (byte[] character : characters(CharSet.ALL)) {
                    longer.add(joined(candidate, character));
                    if (i == 0 && character.length == 2) {
                        longer.add(joined(candidate, new byte[] {character[1]}));
                    }
                }
            }
            whole = longer;
        }
        return false;
    }

    private static byte[] joined(byte[] one, byte[] other) {
        byte[] both = Arrays.copyOf(one, one.length + other.length);
        System.arraycopy(other, 0, both, one.length, other.length);
        return both;
    }

    private boolean productive(Expression expression, Set<String> open) {
        return switch (expression) {
            case Expression.Text _, Expression.SpecialToken _ -> true;
            case Expression.Chars(CharSet set) -> !set.isEmpty();
            case Expression.Rule(String name) -> {
                if (open.contains(name)) {
                    yield false;
                }
                Set<String> deeper = new HashSet<>(open);
                deeper.add(name);
                yield productive(rule(name), deeper);
            }
            case Expression.Sequence(List<Expression> parts) -> parts.stream().allMatch(part -> productive(part, open));
            case Expression.Choice(List<Expression> parts) -> parts.stream().anyMatch(part -> productive(part, open));
            case Expression.Repeat(Expression repeated, int least, int _) -> least == 0 || productive(repeated, open);
            case Expression.And _, Expression.Not _, Expression.Automaton _ ->
                new ReferenceRecognizer(source, completed, new byte[0]).completes(expression, 0);
            case Expression.Members any -> canComplete(any, Set.of(), 0, open);
        };
    }

    private boolean has(byte[] own, int from, int length) {
        return from + length <= text.length && Arrays.equals(own, 0, length, text, from, from + length);
    }

    private static List<byte[]> characters(CharSet set) {
        return UNIVERSE.codePoints()
                .filter(set::contains)
                .mapToObj(point -> Character.toString(point).getBytes(StandardCharsets.UTF_8))
                .toList();
    }
}
