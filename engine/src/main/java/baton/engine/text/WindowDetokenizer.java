package baton.engine.text;

import java.util.Arrays;

/**
 * For decoders that no byte table describes: decodes a short window of tokens with and without the new ones and returns the
 * difference. The method is vLLM's ({@code detokenize_incrementally}): tokens before the window give the decoder context.
 */
final class WindowDetokenizer implements Detokenizer {
    /** Prompt tokens kept as context. */
    private static final int CONTEXT = 6;

    /** Decodes ids in one go. */
    @FunctionalInterface
    interface Decoder {
        String decode(int[] ids, boolean skipSpecialTokens);
    }

    private final Decoder decoder;
    private final boolean skipSpecialTokens;
    private int[] window;
    /** Tokens at the head of the window, of which the text was returned. */
    private int returned;

    WindowDetokenizer(Decoder decoder, int[] promptIds, boolean skipSpecialTokens) {
        this.decoder = decoder;
        this.skipSpecialTokens = skipSpecialTokens;
        this.window = Arrays.copyOfRange(promptIds, Math.max(0, promptIds.length - CONTEXT), promptIds.length);
        this.returned = window.length;
    }

    @Override
    public String append(int id) {
        window = Arrays.copyOf(window, window.length + 1);
        window[window.length - 1] = id;
        String before = decoder.decode(Arrays.copyOf(window, returned), skipSpecialTokens);
        String all = decoder.decode(window, skipSpecialTokens);
        if (all.length() <= before.length() || all.endsWith("\uFFFD")) {
            return "";
        }
        window = Arrays.copyOfRange(window, returned, window.length);
        returned = window.length;
        return all.substring(before.length());
    }

    @Override
    public String finish() {
        String before = decoder.decode(Arrays.copyOf(window, returned), skipSpecialTokens);
        String all = decoder.decode(window, skipSpecialTokens);
        returned = window.length;
        return all.length() <= before.length() ? "" : all.substring(before.length());
    }
}
