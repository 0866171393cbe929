package baton.server.output;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;

/** Pieces of one sequence, in the order of its text. */
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
        for (Piece piece : all) {
            if (piece instanceof Piece.Content(String content)) {
                text.append(content);
            }
        }
        return text.toString();
    }

    /** The texts of all reasoning; empty for an output without reasoning. */
    public Optional<String> reasoning() {
        boolean isThere = false;
        StringBuilder text = new StringBuilder();
        for (Piece piece : all) {
            if (piece instanceof Piece.Reasoning(String thought)) {
                isThere = true;
                text.append(thought);
            }
        }
        return isThere ? Optional.of(text.toString()) : Optional.empty();
    }

    /** Each call once. */
    public List<Call> calls() {
        Map<Integer, Piece.CallBegin> begins = new HashMap<>();
        TreeMap<Integer, StringBuilder> arguments = new TreeMap<>();
        for (Piece piece : all) {
            switch (piece) {
                case Piece.CallBegin begin -> {
                    begins.put(begin.index(), begin);
                    arguments.put(begin.index(), new StringBuilder());
                }
                case Piece.CallArguments(int index, String json) ->
                    arguments.computeIfAbsent(index, _ -> new StringBuilder()).append(json);
                case Piece.Content _, Piece.Reasoning _ -> {}
            }
        }
        return arguments.isEmpty()
                ? List.of()
                : arguments.entrySet().stream()
                        .map(call -> new Call(
                                call.getKey(),
                                Optional.ofNullable(begins.get(call.getKey())),
                                call.getValue().toString()))
                        .toList();
    }
}
