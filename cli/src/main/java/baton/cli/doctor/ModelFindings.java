package baton.cli.doctor;

import baton.bench.LeastWork;
import baton.engine.EngineConfig;
import baton.engine.backend.ModelBackend;
import baton.engine.backend.ModelBackends;
import baton.engine.model.CheckpointSurvey;
import baton.engine.model.Device;
import baton.engine.model.ModelConfig;
import baton.engine.model.ProductRates;
import baton.engine.model.Quantization;
import baton.engine.text.ChatTemplate;
import baton.engine.text.Tokenizer;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.KvGroups;
import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.OptionalDouble;
import java.util.OptionalLong;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/**
 * Needs and speed of an instance of a model here.
 *
 * @param config the model's shape, if it is known
 */
record ModelFindings(List<Finding> findings, Optional<ModelConfig> config) {
    /** The bytes of heap, code and buffers. */
    private static final long JVM_BYTES = 512L << 20;

    private static final int SEQUENCES = 8;
    private static final int CONTEXT = 1024;
    private static final int MOST_RANKS = 64;

    /** @param available bytes of memory, if the machine says it */
    static ModelFindings of(Path model, OptionalLong available) {
        try {
            CheckpointSurvey survey = CheckpointSurvey.of(model);
            ModelBackend found = ModelBackends.on(Device.AUTO);
            ModelBackend backend = survey.config()
                    .map(config -> ModelBackends.computing(found, Device.AUTO, config, Quantization.NONE, 1))
                    .orElse(found);
            Reading reading = new Reading(model, survey, available, backend, new ArrayList<>());
            reading.support();
            survey.config().ifPresent(reading::size);
            return new ModelFindings(reading.all, survey.config());
        } catch (IOException e) {
            return new ModelFindings(
                    List.of(Finding.broken(
                            "support", model + " cannot be read: " + e, "name a checkpoint: ./baton doctor MODEL_DIR")),
                    Optional.empty());
        }
    }

    /** @param all the findings so far */
    private record Reading(
            Path model, CheckpointSurvey survey, OptionalLong available, ModelBackend backend, List<Finding> all) {

        private void support() {
            String name = survey.architecture().orElse("no architecture");
            for (String refusal : survey.refusals()) {
                all.add(Finding.broken(
                        "support",
                        "%s: %s is refused: %s".formatted(model, name, refusal),
                        "take a checkpoint without that: another form of this model, or another model"));
            }
            if (survey.isSupported()) {
                all.add(survey.missing()
                        .map(why -> Finding.advice(
                                "support",
                                name + " is supported; its weights are not there: " + why,
                                "fetch the weights"))
                        .orElseGet(() -> Finding.ok("support", name + " is supported")));
                survey.packing()
                        .ifPresent(
                                packing -> all.add(
                                        Finding.ok(
                                                "packed weights",
                                                packing
                                                        + (survey.savedBytes() > 0
                                                                ? ": kept packed where the model is computed in bfloat16"
                                                                : ": unpacked when they are loaded, to the type that the model is computed in"))));
                tokenizer();
            } else {
                all.add(Finding.ok(
                        "estimates",
                        survey.config()
                                .map(config -> "those below are of a %s of this size; refused fields are left out"
                                        .formatted(config.recipe().architecture()))
                                .orElse("none: the sizes of a Llama are not among its fields")));
            }
        }

        private void tokenizer() {
            try (Tokenizer tokenizer = Tokenizer.load(model)) {
                boolean chats = ChatTemplate.load(model).isPresent();
                all.add(Finding.ok(
                        "tokenizer",
                        "%,d tokens, %s chat template".formatted(tokenizer.vocabularySize(), chats ? "with a" : "no")));
            } catch (ConfigException e) {
                String message = String.valueOf(e.getMessage());
                String remedy = "fetch the tokenizer and the chat template of the model too";
                all.add(
                        survey.missing().isPresent()
                                ? Finding.advice("tokenizer", message, remedy)
                                : Finding.broken("tokenizer", message, remedy));
            }
        }

        private void size(ModelConfig config) {
            try {
                DType dtype = backend.dtype(Optional.empty(), config, Quantization.NONE)
                        .dtype();
                double weights = weights(config, dtype);
                EngineConfig defaults = EngineConfig.of(model).build();
                Cache cache = Cache.of(config, dtype, defaults, backend);
                all.add(Finding.ok(
                        "KV cache",
                        "%s for each token of all layers in %s: about %,d tokens in the %s of --kv-cache-memory-bytes by default, %,d in all memory that the weights leave"
                                .formatted(
                                        Finding.size(cache.tokenBytes),
                                        dtype.torchName(),
                                        cache.tokens(defaults.kvCacheBytes()),
                                        Finding.size(defaults.kvCacheBytes()),
                                        cache.tokens(memory() - weights - JVM_BYTES))));
                memory(config, dtype, weights, cache, defaults.kvCacheBytes());
                all.add(Finding.ok("--tensor-parallel-size", "can be " + tensorParallelSizes(config, dtype)));
                speed(config, dtype);
            } catch (ConfigException | IllegalStateException | IOException e) {
                all.add(Finding.broken("size", String.valueOf(e.getMessage()), "change the setting that this names"));
            }
        }

        /** Bytes that the instance can have. */
        private double memory() {
            return available.orElse(backend.memoryBytes());
        }

        /** Adds the bytes of weights; those in {@code dtype}. */
        private double weights(ModelConfig config, DType dtype) {
            String files = survey.fileBytes() == 0 ? "" : "; the files have " + Finding.size(survey.fileBytes());
            String int8 = int8Bytes(config).stream()
                    .mapToObj(bytes -> ", %s with --quantization int8".formatted(Finding.size(bytes)))
                    .collect(Collectors.joining());
            all.add(Finding.ok(
                    "weights",
                    "%,.0f million parameters; as loaded %s in bfloat16 or float16, %s in float32%s%s"
                            .formatted(
                                    config.parameters() / 1e6,
                                    Finding.size(loadedBytes(config, DType.BF16)),
                                    Finding.size(loadedBytes(config, DType.F32)),
                                    int8,
                                    files)));
            return loadedBytes(config, dtype);
        }

        private double loadedBytes(ModelConfig config, DType dtype) {
            double bytes = backend.weightBytes(config, dtype, Quantization.NONE);
            return dtype == DType.BF16 ? bytes - survey.savedBytes() : bytes;
        }

        /** The bytes of the weights in int8; empty if no kernels here compute them. */
        private OptionalDouble int8Bytes(ModelConfig config) {
            try {
                return OptionalDouble.of(backend.weightBytes(config, DType.BF16, Quantization.INT8));
            } catch (ConfigException _) {
                return OptionalDouble.empty();
            }
        }

        private void memory(ModelConfig config, DType dtype, double weights, Cache cache, long pool) {
            double least = weights + JVM_BYTES + cache.requestBytes(Math.min(config.defaultPositions(), CONTEXT));
            double needed = weights + JVM_BYTES + pool;
            double there = memory();
            String found = "%s are needed (weights in %s, a KV cache of %s, the JVM), %s are available"
                    .formatted(Finding.size(needed), dtype.torchName(), Finding.size(pool), Finding.size(there));
            long positions = cache.tokens(Math.min(pool, there - weights - JVM_BYTES));
            if (least > there) {
                Optional<String> int8 = int8Bytes(config).stream()
                        .filter(bytes -> bytes + least - weights <= there)
                        .mapToObj(
                                bytes -> "start with --quantization int8: %s of weights".formatted(Finding.size(bytes)))
                        .findFirst();
                all.add(Finding.broken(
                        "memory for it",
                        found,
                        int8.orElse("take a machine with %s of memory or more".formatted(Finding.size(least)))));
            } else if (needed > there || positions < config.defaultPositions()) {
                all.add(Finding.advice(
                        "memory for it",
                        found
                                + ", and one request of all %,d positions takes %s of KV cache"
                                        .formatted(
                                                config.defaultPositions(),
                                                Finding.size(cache.requestBytes(config.defaultPositions()))),
                        "start with %s--max-model-len %d, or with a larger --kv-cache-memory-bytes"
                                .formatted(
                                        needed > there
                                                ? "--kv-cache-memory-bytes %dM "
                                                        .formatted((long) (there - weights - JVM_BYTES) >> 20)
                                                : "",
                                        Math.min(positions, config.defaultPositions()))));
            } else {
                all.add(Finding.ok("memory for it", found));
            }
        }

        private String tensorParallelSizes(ModelConfig config, DType dtype) {
            return IntStream.rangeClosed(1, Math.min(config.heads(), MOST_RANKS))
                    .filter(size -> {
                        try {
                            return backend.blockBytes(config, 1, dtype, size, 1, false) > 0;
                        } catch (ConfigException _) {
                            return false;
                        }
                    })
                    .mapToObj(Integer::toString)
                    .collect(Collectors.joining(", "));
        }

        private void speed(ModelConfig config, DType dtype) throws IOException {
            ProductRates rates = backend.measure(config, dtype, Quantization.NONE);
            int context = Math.min(config.defaultPositions(), CONTEXT);
            double one = LeastWork.decodeBytes(config, 1, context, dtype.bytes(), dtype.bytes());
            double many = LeastWork.decodeBytes(config, SEQUENCES, context, dtype.bytes(), dtype.bytes());
            double flops = LeastWork.prefillFlops(config, context);
            double flopsOfStep = SEQUENCES * LeastWork.prefillFlops(config, 1);
            all.add(Finding.ok(
                    "decode",
                    "up to %s tokens/s of one sequence and %s of %d, with contexts of %,d tokens: a step reads %s, and %s at the %s/s measured here"
                            .formatted(
                                    rate(rates.bytesPerSecond() / one),
                                    rate(SEQUENCES
                                            / Math.max(many / rates.bytesPerSecond(), flopsOfStep / rates.flops())),
                                    SEQUENCES,
                                    context,
                                    Finding.size(one),
                                    Finding.size(many),
                                    Finding.size(rates.bytesPerSecond()))));
            all.add(Finding.ok(
                    "prefill",
                    "up to %s tokens/s of a prompt of %,d tokens: %s GFLOP at the %s GFLOP/s measured here"
                            .formatted(
                                    rate(context * rates.flops() / flops),
                                    context,
                                    rate(flops / 1e9),
                                    rate(rates.flops() / 1e9))));
        }

        private static String rate(double number) {
            return String.format(Locale.ROOT, number < 10 ? "%,.2f" : "%,.0f", number);
        }
    }

    /**
     * A KV cache with the defaults of an instance.
     *
     * @param tokenBytes of a token in all layers
     */
    private record Cache(KvGroups groups, EngineConfig defaults, long blockBytes, long tokenBytes, int maxPositions) {
        static Cache of(ModelConfig config, DType dtype, EngineConfig defaults, ModelBackend backend) {
            return new Cache(
                    config.kvGroups(true),
                    defaults,
                    backend.blockBytes(config, defaults.blockSize(), dtype, 1, 1, true),
                    backend.blockBytes(config, 1, dtype, 1, 1, false),
                    config.defaultPositions());
        }

        /** Bytes of the blocks of a request. */
        double requestBytes(int tokens) {
            return (double) blockBytes * groups.blocksFor(tokens, defaults.maxTokensOfRequest(), defaults.blockSize());
        }

        /** Tokens of requests that are as long as can be. */
        long tokens(double bytes) {
            double longest = requestBytes(maxPositions);
            if (bytes >= longest) {
                return (long) (bytes / longest * maxPositions);
            }
            int fits = 0;
            int tooMany = maxPositions;
            while (fits + 1 < tooMany) {
                int tokens = (fits + tooMany) >>> 1;
                if (requestBytes(tokens) <= bytes) {
                    fits = tokens;
                } else {
                    tooMany = tokens;
                }
            }
            return fits;
        }
    }
}
