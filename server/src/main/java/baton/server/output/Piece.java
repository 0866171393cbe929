package baton.server.output;

/** A part of a sequence's output, in the order of the text. */
public sealed interface Piece {
    /** More of the thoughts before the answer. */
    record Reasoning(String text) implements Piece {}

    /** More of the answer's text; may be empty. */
    record Content(String text) implements Piece {}

    /**
     * A call begins; its arguments follow.
     *
     * @param index its number among the calls of the sequence, from 0
     */
    record CallBegin(int index, String id, String name) implements Piece {}

    /** More of the JSON of a call's arguments. */
    record CallArguments(int index, String json) implements Piece {}
}
