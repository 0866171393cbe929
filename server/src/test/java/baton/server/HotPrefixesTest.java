package baton.server;

import static org.assertj.core.api.Assertions.assertThat;

import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

class HotPrefixesTest {
    private static final int BLOCK = HotPrefixes.BLOCK;

    /** Blocks of equal tokens. */
    private static int[] prompt(int... tokens) {
        return IntStream.of(tokens)
                .flatMap(token -> IntStream.generate(() -> token).limit(BLOCK))
                .toArray();
    }

    private static List<String> hottest(HotPrefixes prefixes, int blocks) {
        return prefixes.hottest(blocks * BLOCK).stream()
                .map(each -> IntStream.range(0, each.tokens().length / BLOCK)
                                .mapToObj(i -> Integer.toString(each.tokens()[i * BLOCK]))
                                .reduce("", String::concat)
                        + " " + each.salt().orElse("-") + " " + each.uses())
                .toList();
    }

    @Test
    void theMostUsedBlocksMakeTheLongestPrefixes() {
        HotPrefixes prefixes = new HotPrefixes(false);
        prefixes.used(prompt(1, 2, 3), Optional.empty());
        prefixes.used(prompt(1, 2, 4), Optional.empty());
        prefixes.used(prompt(1, 2, 4), Optional.empty());
        prefixes.used(prompt(7), Optional.of("salt"));
        prefixes.used(prompt(7), Optional.of("other"));
        assertThat(hottest(prefixes, 2)).containsExactly("12 - 3");
        assertThat(hottest(prefixes, 3)).containsExactly("124 - 2");
        assertThat(hottest(prefixes, 4)).containsExactly("124 - 2", "7 other 1");
        assertThat(hottest(prefixes, 99)).containsExactly("124 - 2", "7 other 1", "7 salt 1", "123 - 1");
        assertThat(hottest(prefixes, 7)).containsExactly("124 - 2", "7 other 1", "7 salt 1");
    }

    @Test
    void theLeastRecentlyUsedEndsAreForgotten() {
        HotPrefixes prefixes = new HotPrefixes(false, 4);
        prefixes.used(prompt(1, 2, 3), Optional.empty());
        prefixes.used(prompt(8, 9), Optional.empty());
        assertThat(hottest(prefixes, 9)).containsExactlyInAnyOrder("12 - 1", "89 - 1");
        prefixes.used(prompt(1, 5, 6), Optional.empty());
        assertThat(hottest(prefixes, 9)).containsExactly("156 - 1", "8 - 1");
    }
}
