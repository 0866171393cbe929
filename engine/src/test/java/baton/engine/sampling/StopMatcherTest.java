package baton.engine.sampling;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.engine.sampling.StopMatcher.Result;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

class StopMatcherTest {
    private static final String GRIN = "\uD83D\uDE00";
    private static final String GRIN_WITH_EYES = "\uD83D\uDE01";

    private final Randomness randomness = new Randomness();

    /** All that comes out, and the pieces' texts. */
    private record Outcome(String text, Optional<String> stop, List<String> pieces) {}

    private static Outcome run(List<String> stop, boolean include, List<String> pieces) {
        StopMatcher matcher = new StopMatcher(stop, include);
        List<String> texts = new ArrayList<>();
        Optional<String> found = Optional.empty();
        for (int i = 0; i < pieces.size() && found.isEmpty(); i++) {
            Result result = matcher.append(pieces.get(i), i == pieces.size() - 1);
            texts.add(result.text());
            found = result.stop();
        }
        return new Outcome(String.join("", texts), found, texts);
    }

    private static List<String> characters(String text) {
        return text.codePoints().mapToObj(Character::toString).toList();
    }

    /** Cuts after the characters with a set bit. */
    private static List<String> split(String text, int bits) {
        List<String> pieces = new ArrayList<>();
        int start = 0;
        for (int end = 1; end < text.length(); end++) {
            if ((bits >> (end - 1) & 1) == 1) {
                pieces.add(text.substring(start, end));
                start = end;
            }
        }
        pieces.add(text.substring(start));
        return pieces;
    }

    @Test
    void agreesWithIndexOfHoweverTheTextIsSplit() {
        for (int round = 0; round < 400; round++) {
            List<String> stops = IntStream.range(0, randomness.below(4))
                    .mapToObj(i -> randomText(1 + randomness.below(4)))
                    .toList();
            String text = randomText(randomness.below(9));
            boolean include = randomness.random.nextBoolean();

            Optional<String> stop = Optional.empty();
            int end = Integer.MAX_VALUE;
            for (String candidate : stops) {
                int at = text.indexOf(candidate);
                if (at >= 0 && at + candidate.length() < end) {
                    end = at + candidate.length();
                    stop = Optional.of(candidate);
                }
            }
            String expected = stop.isEmpty()
                    ? text
                    : text.substring(0, end - (include ? 0 : stop.get().length()));

            for (int bits = 0; bits < 1 << Math.max(0, text.length() - 1); bits++) {
                Outcome outcome = run(stops, include, split(text, bits));
                String description = randomness + " stops=" + stops + " text=" + text + " split=" + split(text, bits)
                        + " include=" + include;
                assertThat(outcome.text()).as(description).isEqualTo(expected);
                assertThat(outcome.stop()).as(description).isEqualTo(stop);
                assertThat(outcome.pieces())
                        .as(description)
                        .noneMatch(piece ->
                                !piece.isEmpty() && Character.isHighSurrogate(piece.charAt(piece.length() - 1)));
            }
        }
    }

    /** A text of few characters, so that stop strings are found, and of pairs that share a half. */
    private String randomText(int characters) {
        String[] alphabet = {"a", "b", "a", "b", GRIN, GRIN_WITH_EYES};
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < characters; i++) {
            text.append(alphabet[randomness.below(alphabet.length)]);
        }
        return text.toString();
    }

    @Test
    void holdsBackOnlyPossibleBeginningsOfAStopString() {
        StopMatcher matcher = new StopMatcher(List.of("\n\nUser:", "###"), false);
        assertThat(matcher.append("Hello\n", false)).isEqualTo(new Result("Hello", Optional.empty()));
        assertThat(matcher.append("world", false)).isEqualTo(new Result("\nworld", Optional.empty()));
        assertThat(matcher.append("\n\nUs", false)).isEqualTo(new Result("", Optional.empty()));
        assertThat(matcher.append("", false)).isEqualTo(new Result("", Optional.empty()));
        assertThat(matcher.append("e ##", false)).isEqualTo(new Result("\n\nUse ", Optional.empty()));
        assertThat(matcher.append("# rest", false)).isEqualTo(new Result("", Optional.of("###")));
    }

    @Test
    void releasesHeldTextWhenTheTextEnds() {
        StopMatcher matcher = new StopMatcher(List.of("END"), false);
        assertThat(matcher.append("the EN", false).text()).isEqualTo("the ");
        assertThat(matcher.append("", true)).isEqualTo(new Result("EN", Optional.empty()));
        assertThatThrownBy(() -> matcher.append("D", false)).isInstanceOf(IllegalStateException.class);
    }

    @Test
    void includedStopStringIsStreamedAsItComes() {
        Outcome outcome = run(List.of("END"), true, List.of("the E", "N", "D of it"));
        assertThat(outcome.pieces()).containsExactly("the E", "N", "D");
        assertThat(outcome.stop()).contains("END");
    }

    @Test
    void refusesTextAfterAStopString() {
        StopMatcher matcher = new StopMatcher(List.of("."), false);
        assertThat(matcher.append("a. b", false)).isEqualTo(new Result("a", Optional.of(".")));
        assertThatThrownBy(() -> matcher.append(" c", false)).isInstanceOf(IllegalStateException.class);
    }

    @Test
    void passedTextDoesNotStopButMayBeginAStopString() {
        StopMatcher matcher = new StopMatcher(List.of("ab"), false);
        assertThat(matcher.pass("ab a")).isEqualTo("ab ");
        assertThat(matcher.append("b", false)).isEqualTo(new Result("", Optional.of("ab")));
    }

    @Test
    void keepsASurrogatePairTogether() {
        StopMatcher matcher = new StopMatcher(List.of("x"), false);
        assertThat(matcher.append("a" + GRIN.charAt(0), false).text()).isEqualTo("a");
        assertThat(matcher.append("", false).text()).isEmpty();
        assertThat(matcher.append(GRIN.charAt(1) + "b", false).text()).isEqualTo(GRIN + "b");
    }

    @Test
    void takesLinearTimeOnTextFullOfNearMatches() {
        // A search that starts anew at each character takes stop times text = 10^11 comparisons, or minutes; this takes
        // 10^6 steps.
        String stop = "a".repeat(100_000) + "b";
        List<String> pieces = characters("a".repeat(1_000_000));
        long start = System.nanoTime();
        Outcome outcome = run(List.of(stop), false, pieces);
        assertThat(System.nanoTime() - start).isLessThan(10_000_000_000L);
        assertThat(outcome.stop()).isEmpty();
        assertThat(outcome.text()).hasSize(1_000_000);
        assertThat(run(List.of(stop), false, List.of("c" + "a".repeat(150_000), "bd")))
                .extracting(found -> found.text().length(), Outcome::stop)
                .containsExactly(50_001, Optional.of(stop));
    }
}
