package baton.engine.text;

/** Watches the encoding of a text that may be long. An exception that it throws ends the encoding and frees its memory. */
@FunctionalInterface
public interface EncodingWatch {
    /** Lets every text be encoded to its end. */
    EncodingWatch NONE = (characters, tokens) -> {};

    /**
     * Called on the encoding thread before each piece of the text. A piece has about {@link Tokenizer#PIECE_CHARACTERS} characters, and
     * more only where the text cannot be cut; encoding it takes about {@link Tokenizer#BYTES_PER_CHARACTER} bytes for each.
     *
     * @param characters of the piece that is next
     * @param tokens those that the pieces before have
     */
    void beforePiece(int characters, int tokens);
}
