package baton.bench.serve;

import baton.kv.ConfigException;

/** The protocol of a load, by vLLM's names. */
public enum Backend {
    OPENAI("openai", "/v1/completions"),
    VLLM("vllm", "/v1/completions"),
    OPENAI_CHAT("openai-chat", "/v1/chat/completions");

    private final String label;
    private final String path;

    Backend(String label, String path) {
        this.label = label;
        this.path = path;
    }

    /** The name on the command line. */
    public String label() {
        return label;
    }

    /** Where such requests go if nothing else is said. */
    public String path() {
        return path;
    }

    /** @throws ConfigException if there is none of that name */
    public static Backend parse(String field, String label) {
        return ConfigException.choose(field, label, values(), Backend::label);
    }
}
