package baton.router.policy;

import baton.router.body.JsonObjectText;
import baton.router.body.PromptField;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;

/**
 * The prefixes of a prompt: a digest of each prefix of whole chunks of its JSON text. Prompts of two requests that begin alike, with the
 * same model, tools and cache salt, have the digests of the common chunks in common. Clients serialize the earlier messages of a
 * conversation the same way each time, so text does as well as tokens, without a tokenizer.
 *
 * @param chunks digest of the first {@code (i + 1) * CHUNK_BYTES} bytes; of the first {@value #MOST_CHUNKS} chunks
 * @param promptBytes of the whole prompt, as JSON; 0 where there is none
 */
public record PromptPrefix(long[] chunks, int promptBytes) {
    /** About 64 tokens of English text. */
    public static final int CHUNK_BYTES = 256;

    /** 1 MiB of text: later text does not change the choice of an instance. */
    static final int MOST_CHUNKS = 4096;

    private static final VarHandle LONG = MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);
    /** Odd 64-bit constants of high entropy. */
    private static final long MULTIPLIER = 0x9E3779B97F4A7C15L;

    private static final long SECOND = 0xD6E8FEB86659FD93L;

    /** Fields that come before the prompt in the model's input, or separate its KV cache. */
    private static final List<String> BEFORE = List.of("model", "cache_salt", "tools", "chat_template", "instructions");

    /** The prefix of a body without a prompt. */
    static final PromptPrefix NONE = new PromptPrefix(new long[0], 0);

    /** The length alone of a body's prompt, without digests. */
    static PromptPrefix lengthOf(JsonObjectText body) {
        return PromptField.name(body)
                .map(name -> new PromptPrefix(new long[0], body.valueBytes(name).orElse(0)))
                .orElse(NONE);
    }

    /** The prefix of a body's prompt. */
    static PromptPrefix of(JsonObjectText body) {
        Optional<String> name = PromptField.name(body);
        Optional<byte[]> text = name.flatMap(body::value);
        if (text.isEmpty()) {
            return NONE;
        }
        long digest = name.get().equals(PromptField.PROMPT) ? 1 : 2;
        for (String field : BEFORE) {
            byte[] value = body.value(field).orElse(new byte[0]);
            digest = digest(digest, value, 0, value.length);
        }
        byte[] bytes = text.get();
        long[] chunks = new long[Math.min(bytes.length / CHUNK_BYTES, MOST_CHUNKS)];
        for (int i = 0; i < chunks.length; i++) {
            digest = digest(digest, bytes, i * CHUNK_BYTES, CHUNK_BYTES);
            chunks[i] = digest;
        }
        return new PromptPrefix(chunks, bytes.length);
    }

    private static long digest(long seed, byte[] bytes, int from, int length) {
        long digest = (seed ^ length) * MULTIPLIER;
        int at = from;
        for (; at + Long.BYTES <= from + length; at += Long.BYTES) {
            digest = mix(digest ^ (long) LONG.get(bytes, at));
        }
        for (; at < from + length; at++) {
            digest = mix(digest ^ bytes[at]);
        }
        return digest;
    }

    /** A bijection of which each bit of the result depends on all bits before. */
    static long mix(long value) {
        long mixed = value * MULTIPLIER;
        mixed = (mixed ^ mixed >>> 32) * SECOND;
        return mixed ^ mixed >>> 29;
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof PromptPrefix(long[] otherChunks, int bytes)
                && promptBytes == bytes
                && Arrays.equals(chunks, otherChunks);
    }

    @Override
    public int hashCode() {
        return 31 * Arrays.hashCode(chunks) + promptBytes;
    }

    @Override
    public String toString() {
        return chunks.length + " chunks of " + promptBytes + " bytes";
    }
}
