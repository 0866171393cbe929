package baton.server.output;

import java.util.List;
import java.util.Optional;

/** Looks for marks in a text that grows. */
final class Marks {
    private Marks() {}

    /**
     * The first mark.
     *
     * @param at where it begins; without a mark, the length of the text that is not part of one
     * @param mark empty without a mark in the text
     */
    record Found(int at, Optional<String> mark) {}

    /** @param ended whether no more text comes, so that no mark begins at the end */
    static Found first(StringBuilder text, List<String> marks, boolean ended) {
        int first = text.length() - (ended ? 0 : begun(text, marks));
        Optional<String> found = Optional.empty();
        for (String mark : marks) {
            int at = text.indexOf(mark);
            if (at >= 0 && at < first) {
                first = at;
                found = Optional.of(mark);
            }
        }
        return new Found(first, found);
    }

    /** Characters at the end of the text with which one of the marks may begin. */
    private static int begun(StringBuilder text, List<String> marks) {
        int longest = 0;
        for (String mark : marks) {
            int length = Math.min(mark.length() - 1, text.length());
            while (length > longest && !mark.startsWith(text.substring(text.length() - length))) {
                length--;
            }
            longest = Math.max(longest, length);
        }
        return longest;
    }
}
