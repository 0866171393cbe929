package baton.server.output;

import java.util.List;
import java.util.function.Predicate;

/**
 * Divides the text of one sequence into pieces. The text has the special tokens that the parser asked for, written out. All of the text is in the
 * pieces, but for the marks and white space around calls and reasoning. For one thread.
 */
public interface OutputParser {
    /** Adds text, and returns the pieces that are now certain. */
    List<Piece> add(String text);

    /** The remaining pieces after the last text. */
    List<Piece> end();

    /** Where the text so far ends. */
    enum Place {
        REASONING,
        /** Within reasoning, or within a mark that ends it. */
        UNDECIDED,
        ELSEWHERE
    }

    default Place place() {
        return Place.ELSEWHERE;
    }

    /** All is content, as it comes. */
    static OutputParser plain() {
        return new OutputParser() {
            @Override
            public List<Piece> add(String text) {
                return List.of(new Piece.Content(text));
            }

            @Override
            public List<Piece> end() {
                return List.of();
            }
        };
    }

    /** Without the pieces of calls after the first. */
    default OutputParser firstCallOnly() {
        return only(piece -> switch (piece) {
            case Piece.CallBegin begin -> begin.index() == 0;
            case Piece.CallArguments arguments -> arguments.index() == 0;
            case Piece.Content _, Piece.Reasoning _ -> true;
        });
    }

    /** Without pieces that are not to be kept. */
    default OutputParser only(Predicate<Piece> kept) {
        OutputParser all = this;
        return new OutputParser() {
            @Override
            public List<Piece> add(String text) {
                return all.add(text).stream().filter(kept).toList();
            }

            @Override
            public List<Piece> end() {
                return all.end().stream().filter(kept).toList();
            }

            @Override
            public Place place() {
                return all.place();
            }
        };
    }
}
