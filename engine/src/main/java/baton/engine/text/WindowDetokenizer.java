package baton.engine.text;

import java.util.Arrays;
import java.util.function.IntPredicate;

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
        String decode(int[] ids);
    }

    private final Decoder decoder;
    private final IntPredicate isShown;
    private int[] window;
    /** Tokens at the head of the window, of which the text was returned. */
    private int returned;

    WindowDetokenizer(Decoder decoder, int[] promptIds, IntPredicate isShown) {
        this.decoder = decoder;
        this.isShown = isShown;
        this.window = Arrays.stream(promptIds, Math.max(0, promptIds.length - CONTEXT), promptIds.length)
                .filter(isShown)
                .toArray();
        this.returned = window.length;
    }

    @Override
    public String append(int id) {
        if (!isShown.test(id)) {
            return "";
        }
        window = Arrays.copyOf(window, window.length + 1);
        window[window.length - 1] = id;
        String before = decoder.decode(Arrays.copyOf(window, returned));
        String all = decoder.decode(window);
        if (all.length() <= before.length() || all.endsWith("\uFFFD")) {
            return "";
        }
        window = Arrays.copyOfRange(window, returned, window.length);
        returned = window.length;
        return all.substring(before.length());
    }

    @Override
    public String finish() {
        String before = decoder.decode(Arrays.copyOf(window, returned));
        String all = decoder.decode(window);
        returned = window.length;
        return all.length() <= before.length() ? "" : all.substring(before.length());
    }
}
