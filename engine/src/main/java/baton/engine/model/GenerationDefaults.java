package baton.engine.model;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.OptionalDouble;
import java.util.OptionalInt;

/**
 * The checkpoint's defaults of sampling parameters: the fields of generation_config.json that vLLM takes, whatever its {@code do_sample}
 * is.
 *
 * @param maxTokens the file's {@code max_new_tokens}
 * @param mostTokens the limit to which a request's {@code max_tokens} is lowered
 */
public record GenerationDefaults(
        OptionalDouble temperature,
        OptionalDouble topP,
        OptionalInt topK,
        OptionalDouble minP,
        OptionalDouble repetitionPenalty,
        OptionalDouble presencePenalty,
        OptionalDouble frequencyPenalty,
        OptionalInt maxTokens,
        OptionalInt mostTokens) {
    public static final GenerationDefaults NONE = new GenerationDefaults(
            OptionalDouble.empty(),
            OptionalDouble.empty(),
            OptionalInt.empty(),
            OptionalDouble.empty(),
            OptionalDouble.empty(),
            OptionalDouble.empty(),
            OptionalDouble.empty(),
            OptionalInt.empty(),
            OptionalInt.empty());

    /** The values that there are, by their names in the file. */
    @Override
    public String toString() {
        Map<String, Object> values = new LinkedHashMap<>();
        temperature.ifPresent(value -> values.put("temperature", value));
        topP.ifPresent(value -> values.put("top_p", value));
        topK.ifPresent(value -> values.put("top_k", value));
        minP.ifPresent(value -> values.put("min_p", value));
        repetitionPenalty.ifPresent(value -> values.put("repetition_penalty", value));
        presencePenalty.ifPresent(value -> values.put("presence_penalty", value));
        frequencyPenalty.ifPresent(value -> values.put("frequency_penalty", value));
        maxTokens.ifPresent(value -> values.put("max_new_tokens", value));
        return values.toString();
    }
}
