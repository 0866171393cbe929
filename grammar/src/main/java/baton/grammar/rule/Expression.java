package baton.grammar.rule;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.function.UnaryOperator;

/** A set of texts. Texts are sequences of Unicode characters and special tokens. */
public sealed interface Expression {
    /** Exactly these characters. */
    record Text(String text) implements Expression {}

    /** One character of a set. */
    record Chars(CharSet set) implements Expression {}

    /**
     * Texts that a deterministic automaton ends with.
     *
     * @param states the first one is the start
     * @param least steps at least
     * @param most steps at most, or {@link Repeat#UNBOUNDED}
     */
    record Automaton(List<State> states, int least, int most) implements Expression {
        public Automaton {
            states = List.copyOf(states);
        }

        /** Without bounds of steps. */
        public Automaton(List<State> states) {
            this(states, 0, Repeat.UNBOUNDED);
        }
    }

    /** A state of an {@link Automaton}; no text is of two steps. */
    record State(boolean ends, List<Step> steps) {
        public State {
            steps = List.copyOf(steps);
        }
    }

    /** A step to the state with the number {@code next}; its text is not empty. */
    record Step(Expression text, int next) {}

    /** One text of each, in order. */
    record Sequence(List<Expression> parts) implements Expression {
        public Sequence {
            parts = List.copyOf(parts);
        }
    }

    /** A text of any of them. */
    record Choice(List<Expression> parts) implements Expression {
        public Choice {
            parts = List.copyOf(parts);
        }
    }

    /**
     * Texts of the same expression, one after the other.
     *
     * @param least how many at least
     * @param most how many at most, or {@link #UNBOUNDED}
     */
    record Repeat(Expression repeated, int least, int most) implements Expression {
        public static final int UNBOUNDED = Integer.MAX_VALUE;

        public Repeat {
            if (least < 0 || most < least) {
                throw new IllegalArgumentException("least=" + least + " most=" + most);
            }
        }
    }

    /** The texts of a rule. */
    record Rule(String name) implements Expression {}

    /** Texts that all of them have; each must be regular: without recursion and special tokens. */
    record And(List<Expression> parts) implements Expression {
        public And {
            parts = List.copyOf(parts);
        }
    }

    /** Texts that a regular expression does not have. */
    record Not(Expression excluded) implements Expression {}

    /**
     * Members with a separator between two, each at most once.
     *
     * @param members different ones, of which no text may be of two
     * @param anyOrder whether members come in any order with others between them, or in the list's order with others after them
     * @param separator between two members
     * @param others members that may come any number of times
     * @param least how many members at least, others included
     * @param most how many at most, others included, or {@link Repeat#UNBOUNDED}
     */
    record Members(List<Member> members, boolean anyOrder, Expression separator, Expression others, int least, int most)
            implements Expression {
        public Members {
            members = List.copyOf(members);
        }
    }

    /** A member of {@link Members}. */
    record Member(Expression text, boolean required) {}

    /** One special token of the vocabulary, never its characters. */
    record SpecialToken(String content) implements Expression {}

    /** The empty text. */
    static Expression empty() {
        return new Text("");
    }

    /** No text at all. */
    static Expression nothing() {
        return new Choice(List.of());
    }

    /** Any text without special tokens. */
    static Expression any() {
        return repeat(new Chars(CharSet.ALL), 0, Repeat.UNBOUNDED);
    }

    static Expression text(String text) {
        return new Text(text);
    }

    /** Any of some texts, as a tree: a common beginning is written once. */
    static Expression oneOf(Collection<String> texts) {
        return TextTree.of(texts);
    }

    /** Any text without special tokens in which none of some texts is. */
    static Expression without(List<String> texts) {
        return texts.isEmpty()
                ? any()
                : new Not(sequence(
                        any(), choice(texts.stream().map(Expression::text).toList()), any()));
    }

    static Expression sequence(Expression... parts) {
        return new Sequence(List.of(parts));
    }

    /** A sequence, or its only part. */
    static Expression sequence(List<Expression> parts) {
        return parts.size() == 1 ? parts.getFirst() : new Sequence(parts);
    }

    static Expression choice(Expression... parts) {
        return new Choice(List.of(parts));
    }

    /** A choice, or its only part. */
    static Expression choice(List<Expression> parts) {
        return parts.size() == 1 ? parts.getFirst() : new Choice(parts);
    }

    static Expression repeat(Expression repeated, int least, int most) {
        return new Repeat(repeated, least, most);
    }

    static Expression optional(Expression expression) {
        return new Repeat(expression, 0, 1);
    }

    /** The characters and parts of this expression if repeats are written out, at most {@link Integer#MAX_VALUE}. */
    default long size() {
        long size = this instanceof Text(String text) ? text.length() : 1;
        for (Expression part : parts()) {
            size += part.size();
        }
        if (this instanceof Repeat(Expression _, int least, int most)) {
            size *= most == Repeat.UNBOUNDED ? Math.max(least, 1) : Math.max(most, 1);
        }
        return Math.min(size, Integer.MAX_VALUE);
    }

    /** The expressions that this one is made of. */
    default List<Expression> parts() {
        return switch (this) {
            case Text _, Chars _, Rule _, SpecialToken _ -> List.of();
            case Sequence(List<Expression> parts) -> parts;
            case Choice(List<Expression> parts) -> parts;
            case And(List<Expression> parts) -> parts;
            case Not(Expression excluded) -> List.of(excluded);
            case Repeat(Expression repeated, int _, int _) -> List.of(repeated);
            case Automaton _, Members _ -> {
                List<Expression> parts = new ArrayList<>();
                map(part -> {
                    parts.add(part);
                    return part;
                });
                yield parts;
            }
        };
    }

    /** The same of other parts. */
    default Expression map(UnaryOperator<Expression> part) {
        return switch (this) {
            case Text _, Chars _, Rule _, SpecialToken _ -> this;
            case Automaton(List<State> states, int least, int most) ->
                new Automaton(
                        states.stream()
                                .map(state -> new State(
                                        state.ends,
                                        state.steps.stream()
                                                .map(step -> new Step(part.apply(step.text), step.next))
                                                .toList()))
                                .toList(),
                        least,
                        most);
            case Sequence(List<Expression> parts) ->
                new Sequence(parts.stream().map(part).toList());
            case Choice(List<Expression> parts) ->
                new Choice(parts.stream().map(part).toList());
            case And(List<Expression> parts) -> new And(parts.stream().map(part).toList());
            case Not(Expression excluded) -> new Not(part.apply(excluded));
            case Repeat(Expression repeated, int least, int most) -> new Repeat(part.apply(repeated), least, most);
            case Members(
                    List<Member> members,
                    boolean anyOrder,
                    Expression separator,
                    Expression others,
                    int least,
                    int most) ->
                new Members(
                        members.stream()
                                .map(member -> new Member(part.apply(member.text), member.required))
                                .toList(),
                        anyOrder,
                        part.apply(separator),
                        part.apply(others),
                        least,
                        most);
        };
    }
}
