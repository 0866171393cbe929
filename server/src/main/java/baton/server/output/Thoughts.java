package baton.server.output;

import baton.engine.ThinkingBudget;
import baton.engine.text.Tokenizer;
import baton.grammar.OutputFormat;
import baton.grammar.rule.Expression;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.function.Predicate;
import java.util.stream.Stream;

/**
 * Thoughts until a mark.
 *
 * @param begins marks before the thoughts
 * @param ends marks after them
 * @param answers marks with which an answer begins, also without a mark before it
 * @param always whether an output begins with thoughts even if there is no mark before them
 */
record Thoughts(List<String> begins, List<String> ends, List<String> answers, boolean always)
        implements ReasoningFormat {
    private enum State {
        BEFORE,
        THINKING,
        ANSWER
    }

    @Override
    public List<String> marks() {
        return Stream.concat(begins.stream(), ends.stream()).toList();
    }

    private State state(Start start) {
        int begin = last(start.prompt(), begins);
        int end = last(start.prompt(), ends);
        boolean thinks = begin >= 0 || (always && start.thinks());
        return end > begin ? State.ANSWER : thinks ? State.THINKING : State.BEFORE;
    }

    private static int last(String text, List<String> marks) {
        return marks.stream().mapToInt(text::lastIndexOf).max().orElse(-1);
    }

    @Override
    public OutputParser parser(Start start, OutputParser answer) {
        return new Parser(state(start), answer);
    }

    @Override
    public OutputFormat format(Start start, OutputFormat answer, Predicate<String> isSpecial) {
        State state = state(start);
        if (state == State.ANSWER) {
            return answer;
        }
        Expression thoughts = Expression.sequence(
                Expression.optional(any(begins.stream().filter(isSpecial).toList(), isSpecial)),
                Expression.without(ends.stream().filter(isSpecial.negate()).toList()),
                any(ends, isSpecial));
        return new OutputFormat.After(
                state == State.THINKING
                        ? thoughts
                        : Expression.optional(Expression.sequence(any(begins, isSpecial), thoughts)),
                answer);
    }

    /** An answer that begins with a mark of its own ends the reasoning, too. */
    @Override
    public Optional<ThinkingBudget> budget(int tokens, Tokenizer tokenizer) {
        return always
                ? Optional.of(new ThinkingBudget(
                        tokens,
                        ids(begins.getFirst(), tokenizer),
                        Stream.concat(ends.stream(), answers.stream())
                                .map(mark -> ids(mark, tokenizer))
                                .toList()))
                : Optional.empty();
    }

    private static List<Integer> ids(String mark, Tokenizer tokenizer) {
        return Arrays.stream(tokenizer.encode(mark, false)).boxed().toList();
    }

    private static Expression any(List<String> marks, Predicate<String> isSpecial) {
        return new Expression.Choice(marks.stream()
                .<Expression>map(
                        mark -> isSpecial.test(mark) ? new Expression.SpecialToken(mark) : Expression.text(mark))
                .toList());
    }

    /** The parser of one sequence. */
    private final class Parser implements OutputParser {
        private final OutputParser answer;
        private final List<String> marks = new ArrayList<>(ends);
        private final StringBuilder rest = new StringBuilder();
        private State state;
        private boolean thought;

        Parser(State state, OutputParser answer) {
            this.state = state;
            this.answer = answer;
            marks.addAll(answers);
            if (always) {
                marks.addAll(begins);
            }
        }

        @Override
        public Place place() {
            if (state != State.THINKING || !thought && rest.isEmpty()) {
                return Place.ELSEWHERE;
            }
            return rest.isEmpty() ? Place.REASONING : Place.UNDECIDED;
        }

        @Override
        public List<Piece> add(String text) {
            rest.append(text);
            List<Piece> pieces = new ArrayList<>();
            if (state == State.BEFORE) {
                begin();
            }
            if (state == State.THINKING) {
                think(pieces);
            }
            if (state == State.ANSWER && !(rest.isEmpty() && !text.isEmpty())) {
                pieces.addAll(answer.add(taken(rest.length())));
            }
            return pieces;
        }

        private void begin() {
            String now = rest.toString();
            begins.stream()
                    .filter(now::startsWith)
                    .findFirst()
                    .ifPresentOrElse(
                            mark -> {
                                taken(mark.length());
                                state = State.THINKING;
                            },
                            () -> state = begins.stream().anyMatch(mark -> mark.startsWith(now))
                                    ? State.BEFORE
                                    : State.ANSWER);
        }

        /** A mark of the beginning within thoughts is not part of them. */
        private void think(List<Piece> pieces) {
            Marks.Found found = Marks.first(rest, marks, false);
            while (state == State.THINKING && found.mark().isPresent()) {
                String mark = found.mark().get();
                thought(found.at(), pieces);
                if (!answers.contains(mark)) {
                    taken(mark.length());
                }
                state = begins.contains(mark) ? State.THINKING : State.ANSWER;
                found = Marks.first(rest, marks, false);
            }
            if (state == State.THINKING) {
                thought(found.at(), pieces);
            }
        }

        private void thought(int characters, List<Piece> pieces) {
            if (characters > 0) {
                thought = true;
                pieces.add(new Piece.Reasoning(taken(characters)));
            }
        }

        private String taken(int characters) {
            String taken = rest.substring(0, characters);
            rest.delete(0, characters);
            return taken;
        }

        @Override
        public List<Piece> end() {
            List<Piece> pieces = new ArrayList<>();
            switch (state) {
                case BEFORE -> pieces.addAll(answer.add(taken(rest.length())));
                case THINKING -> thought(rest.length(), pieces);
                case ANSWER -> {}
            }
            pieces.addAll(answer.end());
            return pieces;
        }
    }
}
