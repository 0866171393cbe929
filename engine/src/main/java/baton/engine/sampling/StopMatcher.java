package baton.engine.sampling;

import java.util.List;
import java.util.Optional;

/**
 * Finds the first stop string in text that comes in pieces, and holds back no more of the text than could begin one. How the text is
 * cut into pieces changes nothing in the outcome: the stop string that is complete first wins, among these the first of the list.
 * Time is linear in the text times the number of stop strings (Knuth, Morris and Pratt), whatever the text.
 */
public final class StopMatcher {
    private final List<Pattern> patterns;
    private final boolean includeStop;
    /** The held text is the first {@link #heldLength} characters of this: of a stop string. */
    private String heldFrom = "";

    private int heldLength;
    private boolean ended;

    /**
     * The result of matching a piece of text.
     *
     * @param text the text that is now certain, after that of the results before
     * @param stop the stop string that ended the text
     */
    public record Result(String text, Optional<String> stop) {}

    /**
     * @param stop strings that end the text, none empty
     * @param includeStop whether the one found stays in the text
     */
    public StopMatcher(List<String> stop, boolean includeStop) {
        this.patterns = stop.stream().map(Pattern::new).toList();
        this.includeStop = includeStop;
    }

    /**
     * Goes on with the text.
     *
     * @param last whether the text ends here, so that nothing is held back
     * @throws IllegalStateException if the text has ended before, by a stop string or {@code last}
     */
    public Result append(String text, boolean last) {
        return append(text, true, last);
    }

    /**
     * Goes on with text that no stop string may end, as that of the first {@code min_tokens} tokens. A stop string may begin in it.
     *
     * @return the text that is now certain
     * @throws IllegalStateException if the text has ended before, by a stop string or {@code last}
     */
    public String pass(String text) {
        return append(text, false, false).text();
    }

    private Result append(String text, boolean mayStop, boolean last) {
        if (ended) {
            throw new IllegalStateException("the text has ended before");
        }
        ended = last;
        for (int i = 0; i < text.length(); i++) {
            Optional<Pattern> complete = Optional.empty();
            for (Pattern pattern : patterns) {
                if (pattern.advance(text.charAt(i)) && complete.isEmpty()) {
                    complete = Optional.of(pattern);
                }
            }
            if (mayStop && complete.isPresent()) {
                ended = true;
                String stop = complete.get().text;
                int end = i + 1 - (includeStop ? 0 : stop.length());
                return new Result(release(text, end), Optional.of(stop));
            }
        }
        if (last) {
            return new Result(release(text, text.length()), Optional.empty());
        }
        String nextFrom = "";
        int nextLength = 0;
        if (!text.isEmpty() && Character.isHighSurrogate(text.charAt(text.length() - 1))) {
            nextFrom = text.substring(text.length() - 1);
            nextLength = 1;
        } else if (text.isEmpty()) {
            nextFrom = heldFrom;
            nextLength = heldLength;
        }
        if (!includeStop) {
            for (Pattern pattern : patterns) {
                if (pattern.matched > nextLength) {
                    nextFrom = pattern.text;
                    nextLength = pattern.matched;
                }
            }
        }
        String certain = release(text, text.length() - nextLength);
        heldFrom = nextFrom;
        heldLength = nextLength;
        return new Result(certain, Optional.empty());
    }

    /** The held text and the text after it up to {@code end}; a negative end cuts the held text. */
    private String release(String text, int end) {
        return end < 0
                ? heldFrom.substring(0, heldLength + end)
                : heldFrom.substring(0, heldLength).concat(text.substring(0, end));
    }

    /** A stop string and how much of it the text ends with. */
    private static final class Pattern {
        private final String text;
        /** For each length, the longest shorter prefix with which a prefix of this length ends. */
        private final int[] fallback;

        private int matched;

        Pattern(String text) {
            this.text = text;
            this.fallback = new int[text.length() + 1];
            for (int length = 2; length <= text.length(); length++) {
                int shorter = fallback[length - 1];
                while (shorter > 0 && text.charAt(shorter) != text.charAt(length - 1)) {
                    shorter = fallback[shorter];
                }
                fallback[length] = text.charAt(shorter) == text.charAt(length - 1) ? shorter + 1 : 0;
            }
        }

        /** @return whether the text now ends with the whole of it */
        boolean advance(char next) {
            while (matched > 0 && text.charAt(matched) != next) {
                matched = fallback[matched];
            }
            if (text.charAt(matched) == next) {
                matched++;
            }
            if (matched == text.length()) {
                matched = fallback[matched];
                return true;
            }
            return false;
        }
    }
}
