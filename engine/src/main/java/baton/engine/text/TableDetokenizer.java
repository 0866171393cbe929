package baton.engine.text;

import java.util.function.IntPredicate;

/**
 * Decodes by the table of each token's bytes: one look-up a token, no native call. An invalid byte of a SentencePiece
 * vocabulary becomes one U+FFFD and leaves its neighbours alone, where Hugging Face's decoder gives up the whole run of
 * byte tokens around it: text that was already streamed (a line break is a byte token there) cannot be taken back.
 */
final class TableDetokenizer implements Detokenizer {
    /** A character's bytes before its last. */
    private static final int LONGEST_PREFIX = 3;

    private final Vocabulary vocabulary;
    private final IntPredicate isShown;
    private final Utf8Decoder decoder = new Utf8Decoder();
    private boolean atStart = true;

    TableDetokenizer(Vocabulary vocabulary, int[] promptIds, IntPredicate isShown) {
        this.vocabulary = vocabulary;
        this.isShown = isShown;
        int from = promptIds.length;
        for (int bytes = 0; from > 0 && bytes < LONGEST_PREFIX; ) {
            from--;
            bytes += isShown.test(promptIds[from]) ? vocabulary.bytes(promptIds[from]).length : 0;
        }
        for (int i = from; i < promptIds.length; i++) {
            append(promptIds[i]);
        }
        atStart &= from == 0;
    }

    @Override
    public String append(int id) {
        byte[] bytes = vocabulary.bytes(id);
        if (bytes.length == 0 || !isShown.test(id)) {
            return "";
        }
        StringBuilder text = new StringBuilder(bytes.length + 1);
        decoder.decode(bytes, text);
        return stripped(text);
    }

    @Override
    public String finish() {
        StringBuilder text = new StringBuilder(1);
        decoder.finish(text);
        return stripped(text);
    }

    private String stripped(StringBuilder text) {
        if (!text.isEmpty() && atStart) {
            atStart = false;
            if (vocabulary.stripsLeadingSpace() && text.charAt(0) == ' ') {
                text.deleteCharAt(0);
            }
        }
        return text.toString();
    }
}
