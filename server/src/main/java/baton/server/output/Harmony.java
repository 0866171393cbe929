package baton.server.output;

import baton.grammar.OutputFormat;
import baton.grammar.rule.Expression;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.Set;
import java.util.function.Predicate;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The messages of gpt-oss: each has a header with its channel, and with its recipient if it is a call. Calls are part of it. */
record Harmony() implements ReasoningFormat, ToolFormat {
    private static final String MESSAGE = "<|message|>";
    private static final String CHANNEL = "<|channel|>";
    private static final String END = "<|end|>";
    private static final String CONSTRAIN = "<|constrain|>";
    private static final List<String> ENDS = List.of(END, "<|call|>", "<|return|>");
    private static final Pattern CHANNEL_NAME = Pattern.compile("<\\|channel\\|>\\s*([^\\s<]*)");
    private static final Pattern RECIPIENT = Pattern.compile("to=(?:functions\\.)?([^\\s<]+)");

    /** Recipients that are no functions of the client. */
    private static final Pattern BUILT_IN = Pattern.compile("(python|browser|container|assistant)(\\..*)?");

    private static final Expression JSON_CONTENT = Expression.sequence(
            Expression.text(" "), Expression.optional(new Expression.SpecialToken(CONSTRAIN)), Expression.text("json"));

    private static final Expression FINAL =
            header(Expression.sequence(Expression.text("final"), Expression.optional(JSON_CONTENT)));

    private enum Part {
        HEADER,
        REASONING,
        CONTENT,
        CALL,
        OTHER
    }

    @Override
    public List<String> marks() {
        return List.of(MESSAGE, CHANNEL, END, CONSTRAIN, "<|call|>", "<|return|>");
    }

    @Override
    public OutputParser parser(Start start, OutputParser answer) {
        Parser parser = new Parser();
        List<Piece> _ = parser.add(start.prompt());
        parser.pieces = new ArrayList<>();
        parser.given = parser.rest.length();
        return parser;
    }

    /** Without a reasoning parser reasoning is left out. */
    @Override
    public OutputParser parser(List<Tool> tools) {
        return new Parser().only(piece -> !(piece instanceof Piece.Reasoning));
    }

    @Override
    public OutputFormat answer(Start start, OutputFormat content) {
        return isInMessage(start) ? content : new OutputFormat.After(FINAL, content);
    }

    @Override
    public OutputFormat format(Start start, OutputFormat answer, Predicate<String> isSpecial) {
        return isInMessage(start)
                ? answer
                : new OutputFormat.After(Expression.optional(before(Expression.text("analysis"))), answer);
    }

    private static boolean isInMessage(Start start) {
        return start.prompt().contains(MESSAGE);
    }

    @Override
    public Expression text(CallGrammar grammar) {
        Expression before = before(Expression.choice(Expression.text("analysis"), Expression.text("commentary")));
        return Expression.sequence(
                Expression.repeat(before, 0, Expression.Repeat.UNBOUNDED),
                Expression.optional(Expression.sequence(FINAL, Expression.any())));
    }

    /** A call ends the output. */
    @Override
    public Expression calls(List<Tool> tools, CallGrammar grammar) {
        return new Expression.Choice(tools.stream()
                .map(tool -> Expression.sequence(
                        header(Expression.sequence(
                                Expression.text("commentary to=functions." + tool.name()), JSON_CONTENT)),
                        grammar.arguments(tool)))
                .toList());
    }

    private static Expression header(Expression channel) {
        return Expression.sequence(new Expression.SpecialToken(CHANNEL), channel, new Expression.SpecialToken(MESSAGE));
    }

    /** A message that another one follows. */
    private static Expression before(Expression channel) {
        return Expression.sequence(
                header(channel),
                Expression.any(),
                new Expression.SpecialToken(END),
                new Expression.SpecialToken("<|start|>"),
                Expression.text("assistant"));
    }

    /** The parser of one sequence. */
    private static final class Parser implements OutputParser {
        private final StringBuilder rest = new StringBuilder();
        private final Set<Part> seen = EnumSet.noneOf(Part.class);
        private List<Piece> pieces = new ArrayList<>();
        private Part part = Part.HEADER;
        private int calls;
        private boolean hasText;

        /** Characters of the prompt in a header that it has begun. */
        private int given;

        @Override
        public Place place() {
            if (part != Part.REASONING || !hasText && rest.isEmpty()) {
                return Place.ELSEWHERE;
            }
            return rest.isEmpty() ? Place.REASONING : Place.UNDECIDED;
        }

        @Override
        public List<Piece> add(String text) {
            rest.append(text);
            while (step()) {}
            return taken();
        }

        private List<Piece> taken() {
            List<Piece> taken = pieces;
            pieces = new ArrayList<>();
            return taken;
        }

        /** Takes a header, or text up to an end; false if more text is needed first. */
        private boolean step() {
            Marks.Found found = Marks.first(rest, part == Part.HEADER ? List.of(MESSAGE) : ENDS, false);
            boolean isFound = found.mark().isPresent();
            if (part == Part.HEADER) {
                if (isFound) {
                    begin(rest.substring(0, found.at()));
                }
            } else {
                text(rest.substring(0, found.at()));
                rest.delete(0, found.at());
                if (isFound) {
                    part = Part.HEADER;
                }
            }
            found.mark().ifPresent(mark -> rest.delete(0, rest.indexOf(mark) + mark.length()));
            return isFound;
        }

        private void begin(String header) {
            hasText = false;
            Matcher recipient = RECIPIENT.matcher(header);
            Matcher channel = CHANNEL_NAME.matcher(header);
            String name = channel.find() ? channel.group(1) : "";
            boolean isSent = recipient.find();
            if (isSent && !BUILT_IN.matcher(recipient.group(1)).matches()) {
                part = Part.CALL;
                pieces.add(new Piece.CallBegin(calls++, CallParser.randomId(), recipient.group(1)));
                return;
            }
            part = name.equals("analysis")
                    ? Part.REASONING
                    : name.equals("final") || (name.equals("commentary") && !isSent) ? Part.CONTENT : Part.OTHER;
            if (!seen.add(part)) {
                text("\n");
                hasText = false;
            }
        }

        private void text(String text) {
            if (text.isEmpty()) {
                return;
            }
            hasText = true;
            switch (part) {
                case REASONING -> pieces.add(new Piece.Reasoning(text));
                case CONTENT -> pieces.add(new Piece.Content(text));
                case CALL -> pieces.add(new Piece.CallArguments(calls - 1, text));
                case HEADER, OTHER -> {}
            }
        }

        /** A text without any message is content. */
        @Override
        public List<Piece> end() {
            if (part == Part.HEADER && seen.isEmpty() && calls == 0) {
                part = Part.CONTENT;
                rest.delete(0, given);
            }
            text(rest.toString());
            rest.setLength(0);
            return taken();
        }
    }
}
