package baton.engine.sampling;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.SamplingParams;
import baton.engine.ThinkingBudget;
import baton.engine.kernel.ParallelFor;
import baton.engine.sampling.Sampler.Choice;
import baton.engine.sampling.Sampler.LogitRow;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** The cases are of vLLM 0.32's {@code v1/worker/gpu/sample/thinking_budget.py}. */
class ThinkingGuideTest {
    private static final int VOCABULARY = 128;

    private static int[] ids(String text) {
        return text.chars().toArray();
    }

    private static List<Integer> list(String text) {
        return Arrays.stream(ids(text)).boxed().toList();
    }

    /** Characters are tokens; {@code <b>} begins reasoning, and {@code </b>} and {@code [} end it. The model would write the second text. */
    @ParameterizedTest
    @CsvSource({
        "3, x<b>,        aaaaaaaa,   aaa</b>a",
        "0, x<b>,        aaaaaaaa,   </b>aaaa",
        "3, x<b>aa,      aaaaaaaa,   a</b>aaa",
        "3, x<b>aaaaa,   aaaaaaaa,   </b>aaaa",
        "3, x,           aaaaaaaa,   aaaaaaaa",
        "3, x,           <b>aaaaa,   <b>aaa</",
        "2, x<b>a</b>,   aaaaaaaa,   aaaaaaaa",
        "2, x<b>a</b>,   <b>aaaaa,   <b>aa</b",
        "3, x<b>,        aa[aaaaa,   aa[aaaaa",
        "4, x<b>,        aaa</b>a,   aaa</b>a",
        "4, x<b>,        a<b>aaaa,   a<b>aaaa",
        "9, x<b>,        aaaaaaaa,   aaaaaaaa"
    })
    void theEndIsChosenWhenTheBudgetIsUsedUp(int tokens, String prompt, String wanted, String written) {
        SamplingParams params = SamplingParams.builder()
                .temperature(0)
                .thinkingBudget(new ThinkingBudget(tokens, list("<b>"), List.of(list("</b>"), list("["))))
                .build();
        Sampler sampler = new Sampler(VOCABULARY, Set.of(1));
        SequenceSampler sequence = sampler.sequence(params, Optional.empty(), ids(prompt), 1);
        List<Integer> output = new ArrayList<>();
        for (int id : ids(wanted)) {
            float[] logits = new float[VOCABULARY];
            logits[id] = 10;
            Choice choice = sampler.choose(
                            FakeLogits.of(logits), List.of(new LogitRow(sequence, 0)), ParallelFor.alone())
                    .getFirst();
            output.add(((Choice.Chosen) choice).token().id());
        }
        assertThat(output).isEqualTo(list(written));
    }
}
