package baton.engine.model;

import baton.engine.model.ModelRunner.LayerHooks;
import baton.engine.model.ModelRunner.SequenceSlice;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Random;

/**
 * Runs sequences through a model: each one's prompt in chunks, then the given continuation token by token, whatever the model
 * would have chosen. Keeps the model's choices and, if asked to, every logit.
 */
final class Replay {
    private final ModelRunner runner;
    private final List<Sequence> sequences = new ArrayList<>();
    private final boolean keepLogits;

    static final class Sequence {
        final int[] tokens;
        final int promptLength;
        final int[] blockTable;
        final List<Integer> chosen = new ArrayList<>();
        final List<float[]> logits = new ArrayList<>();
        int computed;

        private Sequence(int[] prompt, int[] continuation, int[] blockTable) {
            // The last token of the continuation is only ever chosen, never computed.
            tokens = Arrays.copyOf(prompt, prompt.length + continuation.length - 1);
            System.arraycopy(continuation, 0, tokens, prompt.length, continuation.length - 1);
            promptLength = prompt.length;
            this.blockTable = blockTable;
        }
    }

    Replay(ModelRunner runner, boolean keepLogits) {
        this.runner = runner;
        this.keepLogits = keepLogits;
    }

    /** Adds sequences with blocks strewn over the whole pool. */
    List<Sequence> add(List<Golden> goldens) {
        List<Integer> free = new ArrayList<>();
        for (int block = 0; block < runner.cache().blocks(); block++) {
            free.add(block);
        }
        Collections.shuffle(free, new Random(7));
        for (Golden golden : goldens) {
            int needed = runner.cache().layout().blocksFor(golden.prompt().length + golden.output().length);
            int[] table = new int[needed];
            Arrays.setAll(table, _ -> free.removeLast());
            sequences.add(new Sequence(golden.prompt(), golden.output(), table));
        }
        return sequences;
    }

    /** Steps until all is computed, each sequence giving at most {@code chunk} tokens to a step and all at most {@code budget}. */
    void run(int chunk, int budget) {
        while (true) {
            List<Sequence> active = new ArrayList<>();
            List<SequenceSlice> slices = new ArrayList<>();
            int left = budget;
            for (Sequence sequence : sequences) {
                int end = sequence.computed < sequence.promptLength ? sequence.promptLength : sequence.computed + 1;
                int length = Math.min(Math.min(chunk, left), Math.min(end, sequence.tokens.length) - sequence.computed);
                if (length <= 0) {
                    continue;
                }
                boolean sampled = sequence.computed + length >= sequence.promptLength;
                slices.add(new SequenceSlice(
                        Arrays.copyOfRange(sequence.tokens, sequence.computed, sequence.computed + length),
                        sequence.computed,
                        sequence.blockTable,
                        sampled ? 1 : 0));
                active.add(sequence);
                left -= length;
            }
            if (active.isEmpty()) {
                return;
            }
            try (Logits logits = runner.forward(slices, LayerHooks.NONE)) {
                int row = 0;
                for (int i = 0; i < active.size(); i++) {
                    Sequence sequence = active.get(i);
                    sequence.computed += slices.get(i).tokens().length;
                    if (slices.get(i).logits() == 1) {
                        sequence.chosen.add(logits.argmax(row));
                        if (keepLogits) {
                            sequence.logits.add(logits.row(row).toArray(ValueLayout.JAVA_FLOAT));
                        }
                        row++;
                    }
                }
            }
        }
    }
}
