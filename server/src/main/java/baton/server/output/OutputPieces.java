package baton.server.output;

import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.TreeMap;

/** OutputPieces of one sequence, in the order of its text. */
public record OutputPieces(List<Piece> all) {
    public OutputPieces {
        all = List.copyOf(all);
    }

    /**
     * The pieces of one call.
     *
     * @param begin empty if the call began before these pieces
     */
    public record Call(int index, Optional<Piece.CallBegin> begin, String arguments) {}

    /** The texts of all contents. */
    public String content() {
        StringBuilder text = new StringBuilder();
        all.forEach(piece -> text.append(piece instanceof Piece.Content(String content) ? content : ""));
        return text.toString();
    }

    /** The texts of all reasoning; empty if there is none. */
    public Optional<String> reasoning() {
        return all.stream()
                .flatMap(piece -> piece instanceof Piece.Reasoning(String text)
                        ? Optional.of(text).stream()
                        : Optional.<String>empty().stream())
                .reduce(String::concat);
    }

    /** Each call once. */
    public List<Call> calls() {
        TreeMap<Integer, Call> calls = new TreeMap<>();
        for (Piece piece : all) {
            switch (piece) {
                case Piece.CallBegin begin -> calls.put(begin.index(), new Call(begin.index(), Optional.of(begin), ""));
                case Piece.CallArguments(int index, String json) ->
                    calls.merge(
                            index,
                            new Call(index, Optional.empty(), json),
                            (call, more) -> new Call(index, call.begin, call.arguments + more.arguments));
                case Piece.Content _, Piece.Reasoning _ -> {}
            }
        }
        return new ArrayList<>(calls.values());
    }
}
