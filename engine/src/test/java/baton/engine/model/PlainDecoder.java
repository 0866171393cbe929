package baton.engine.model;

import baton.engine.model.ModelConfig.LinearRopeScaling;
import baton.engine.model.ModelConfig.Llama3RopeScaling;
import baton.engine.model.ModelConfig.LongRopeScaling;
import baton.engine.model.ModelConfig.YarnRopeScaling;
import baton.engine.model.Recipe.Part;
import baton.engine.model.Recipe.Rotation;
import baton.kv.DType;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Arrays;

/** A Llama forward pass written for plainness: one sequence, whole, in double precision, from the checkpoint's own tensors. */
final class PlainDecoder {
    private final Checkpoint checkpoint;
    private final ModelConfig config;

    PlainDecoder(Checkpoint checkpoint) {
        this.checkpoint = checkpoint;
        this.config = checkpoint.config();
    }

    /** Logits of every position. */
    double[][] logits(int[] tokens) throws IOException {
        int hidden = config.hiddenSize();
        double[] embedding = tensor("model.embed_tokens.weight");
        double[][] x = new double[tokens.length][];
        for (int t = 0; t < tokens.length; t++) {
            x[t] = Arrays.copyOfRange(embedding, tokens[t] * hidden, (tokens[t] + 1) * hidden);
        }
        for (int layer = 0; layer < config.layers(); layer++) {
            String prefix = "model.layers." + layer + ".";
            double[][] normed = norm(x, tensor(prefix + "input_layernorm.weight"));
            double[][] q = linear(normed, prefix + "self_attn.q_proj");
            double[][] k = linear(normed, prefix + "self_attn.k_proj");
            double[][] v = linear(normed, prefix + "self_attn.v_proj");
            if (config.recipe().has(Part.QUERY_NORM)) {
                normHeads(q, tensor(prefix + "self_attn.q_norm.weight"));
                normHeads(k, tensor(prefix + "self_attn.k_norm.weight"));
            }
            for (int t = 0; t < tokens.length; t++) {
                rotate(q[t], t, config.recipe().rotations().getFirst());
                rotate(k[t], t, config.recipe().rotations().getFirst());
            }
            add(x, linear(attend(q, k, v, config.attendedPositions(layer)), prefix + "self_attn.o_proj"));
            normed = norm(x, tensor(prefix + "post_attention_layernorm.weight"));
            double[][] gate = linear(normed, prefix + "mlp.gate_proj");
            double[][] up = linear(normed, prefix + "mlp.up_proj");
            for (int t = 0; t < tokens.length; t++) {
                for (int i = 0; i < gate[t].length; i++) {
                    gate[t][i] *= up[t][i] / (1 + Math.exp(-gate[t][i]));
                }
            }
            add(x, linear(gate, prefix + "mlp.down_proj"));
        }
        double[][] last = norm(x, tensor("model.norm.weight"));
        return multiply(last, config.tiedEmbeddings() ? embedding : tensor("lm_head.weight"));
    }

    private double[][] linear(double[][] x, String name) throws IOException {
        double[][] out = multiply(x, tensor(name + ".weight"));
        if (Checkpoint.tensorShapes(config).containsKey(name + ".bias")) {
            double[] bias = tensor(name + ".bias");
            for (double[] row : out) {
                for (int i = 0; i < row.length; i++) {
                    row[i] += bias[i];
                }
            }
        }
        return out;
    }

    private void normHeads(double[][] rows, double[] weight) {
        for (double[] row : rows) {
            for (int at = 0; at < row.length; at += weight.length) {
                double[] head = Arrays.copyOfRange(row, at, at + weight.length);
                System.arraycopy(norm(new double[][] {head}, weight)[0], 0, row, at, weight.length);
            }
        }
    }

    private double[][] attend(double[][] q, double[][] k, double[][] v, int window) {
        int size = config.headDim();
        double[][] out = new double[q.length][q[0].length];
        for (int head = 0; head < config.heads(); head++) {
            int shared = head / (config.heads() / config.kvHeads());
            for (int t = 0; t < q.length; t++) {
                double[] weights = new double[t + 1];
                double sum = 0;
                for (int s = Math.max(0, t - window + 1); s <= t; s++) {
                    double score = 0;
                    for (int i = 0; i < size; i++) {
                        score += q[t][head * size + i] * k[s][shared * size + i];
                    }
                    weights[s] = Math.exp(score / Math.sqrt(size));
                    sum += weights[s];
                }
                for (int s = Math.max(0, t - window + 1); s <= t; s++) {
                    for (int i = 0; i < size; i++) {
                        out[t][head * size + i] += weights[s] / sum * v[s][shared * size + i];
                    }
                }
            }
        }
        return out;
    }

    private void rotate(double[] heads, int position, Rotation rotation) {
        int size = config.headDim();
        for (int pair = 0; pair < size / 2; pair++) {
            double angle = position * frequency(rotation, pair);
            for (int at = pair; at < heads.length; at += size) {
                double first = heads[at];
                double second = heads[at + size / 2];
                heads[at] = first * Math.cos(angle) - second * Math.sin(angle);
                heads[at + size / 2] = second * Math.cos(angle) + first * Math.sin(angle);
            }
        }
    }

    private double frequency(Rotation rotation, int pair) {
        double frequency = 1 / Math.pow(rotation.theta(), 2.0 * pair / config.headDim());
        return switch (rotation.scaling().orElse(new LinearRopeScaling(1))) {
            case LinearRopeScaling linear -> frequency / linear.factor();
            case Llama3RopeScaling scaling -> {
                double wavelength = 2 * Math.PI / frequency;
                double longest = scaling.originalMaxPositions() / scaling.lowFreqFactor();
                double shortest = scaling.originalMaxPositions() / scaling.highFreqFactor();
                double smooth = (scaling.originalMaxPositions() / wavelength - scaling.lowFreqFactor())
                        / (scaling.highFreqFactor() - scaling.lowFreqFactor());
                double kept = wavelength > longest ? 0 : wavelength < shortest ? 1 : smooth;
                yield frequency * (kept + (1 - kept) / scaling.factor());
            }
            case YarnRopeScaling _, LongRopeScaling _ ->
                throw new UnsupportedOperationException("checked against transformers");
        };
    }

    private double[][] norm(double[][] x, double[] weight) {
        double[][] out = new double[x.length][weight.length];
        for (int t = 0; t < x.length; t++) {
            double squares = Arrays.stream(x[t]).map(value -> value * value).sum();
            double scale = 1 / Math.sqrt(squares / weight.length + config.rmsNormEps());
            for (int i = 0; i < weight.length; i++) {
                out[t][i] = x[t][i] * scale * weight[i];
            }
        }
        return out;
    }

    private static double[][] multiply(double[][] x, double[] matrix) {
        int in = x[0].length;
        double[][] out = new double[x.length][matrix.length / in];
        for (int t = 0; t < x.length; t++) {
            for (int row = 0; row < out[t].length; row++) {
                double sum = 0;
                for (int i = 0; i < in; i++) {
                    sum += x[t][i] * matrix[row * in + i];
                }
                out[t][row] = sum;
            }
        }
        return out;
    }

    private static void add(double[][] x, double[][] y) {
        for (int t = 0; t < x.length; t++) {
            for (int i = 0; i < x[t].length; i++) {
                x[t][i] += y[t][i];
            }
        }
    }

    private double[] tensor(String name) throws IOException {
        MemorySegment data = checkpoint.data(name);
        double[] values = new double[Math.toIntExact(checkpoint.info(name).elements())];
        boolean wide = Checkpoint.dtypeOf(checkpoint.info(name)).orElseThrow() == DType.F32;
        for (int i = 0; i < values.length; i++) {
            values[i] = wide
                    ? data.getAtIndex(ValueLayout.JAVA_FLOAT_UNALIGNED, i)
                    : Float.intBitsToFloat(data.getAtIndex(ValueLayout.JAVA_SHORT_UNALIGNED, i) << 16);
        }
        return values;
    }
}
