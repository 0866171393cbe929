package baton.engine.text;

import ai.djl.huggingface.tokenizers.HuggingFaceTokenizer;
import baton.kv.ConfigException;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.locks.ReentrantReadWriteLock;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/**
 * A model's tokenizer, as its {@code tokenizer.json} describes it. Encoding is done by Hugging Face's own library; decoding
 * of byte-level BPE and SentencePiece vocabularies by a table of each token's bytes, of all others by the library.
 *
 * <p>All methods may be called from any thread. Decoding does not apply {@code clean_up_tokenization_spaces}, which would
 * change text that was already streamed; vLLM does not either.
 */
public final class Tokenizer implements AutoCloseable {
    private final HuggingFaceTokenizer library;
    private final Vocabulary vocabulary;
    private final ReentrantReadWriteLock lifetime = new ReentrantReadWriteLock();
    private boolean closed;

    private Tokenizer(HuggingFaceTokenizer library, Vocabulary vocabulary) {
        this.library = library;
        this.vocabulary = vocabulary;
    }

    /**
     * Reads {@code tokenizer.json} of a Hugging Face model directory. Nothing is fetched from or reported to a network.
     *
     * @throws ConfigException naming the file and the reason, if it is missing, unreadable or not a tokenizer
     */
    public static Tokenizer load(Path modelDir) {
        Path file = modelDir.resolve("tokenizer.json");
        keepLibraryOffline();
        try {
            byte[] json = Files.readAllBytes(file);
            JsonNode root = JsonMapper.builder().build().readTree(json);
            Vocabulary vocabulary = Vocabulary.read(file.toString(), root);
            // "false" undoes the truncation and padding that many published files carry.
            return new Tokenizer(
                    HuggingFaceTokenizer.newInstance(
                            new ByteArrayInputStream(json), Map.of("truncation", "false", "padding", "false")),
                    vocabulary);
        } catch (ConfigException e) {
            throw e;
        } catch (NoSuchFileException e) {
            throw new ConfigException(file.toString(), "no such file; a model directory must have one", e);
        } catch (IOException e) {
            throw new ConfigException(file.toString(), "cannot be read: " + e, e);
        } catch (JacksonException e) {
            throw new ConfigException(file.toString(), "not valid JSON: " + e.getOriginalMessage(), e);
        } catch (RuntimeException | UnsatisfiedLinkError e) {
            throw new ConfigException(file.toString(), "the tokenizer library refuses it: " + e.getMessage(), e);
        }
    }

    /**
     * The ids of {@code text}. Special tokens written out in the text are always recognised; {@code addSpecialTokens} puts
     * those around it that the tokenizer's post-processor asks for (usually a BOS token). Unpaired surrogates are read as U+FFFD.
     */
    public int[] encode(String text, boolean addSpecialTokens) {
        lifetime.readLock().lock();
        try {
            requireOpen();
            long[] ids = library.encode(withoutUnpairedSurrogates(text), addSpecialTokens, false)
                    .getIds();
            return Arrays.stream(ids).mapToInt(Math::toIntExact).toArray();
        } finally {
            lifetime.readLock().unlock();
        }
    }

    /**
     * The text of {@code ids}. Ids outside the vocabulary stand for nothing; bytes that form no UTF-8 character become U+FFFD.
     */
    public String decode(int[] ids, boolean skipSpecialTokens) {
        if (vocabulary.form() == Vocabulary.Form.OPAQUE) {
            return decodeByLibrary(ids, skipSpecialTokens);
        }
        Detokenizer detokenizer = detokenizer(new int[0], skipSpecialTokens);
        StringBuilder text = new StringBuilder();
        for (int id : ids) {
            text.append(detokenizer.append(id));
        }
        return text.append(detokenizer.finish()).toString();
    }

    /** A token's own text, with U+FFFD where it holds part of a character. Empty for an id outside the vocabulary. */
    public String token(int id) {
        Utf8Decoder decoder = new Utf8Decoder();
        StringBuilder text = new StringBuilder();
        decoder.decode(vocabulary.bytes(id), text);
        decoder.finish(text);
        return text.toString();
    }

    /** The bytes a token adds to the text. Empty for an id outside the vocabulary. */
    public byte[] tokenBytes(int id) {
        return vocabulary.bytes(id).clone();
    }

    /** Whether {@code skipSpecialTokens} leaves this token out. */
    public boolean isSpecial(int id) {
        return vocabulary.isSpecial(id);
    }

    /** One more than the highest id. A model's logits may be wider. */
    public int vocabularySize() {
        return vocabulary.size();
    }

    /** The id of a token as {@code tokenizer.json} spells it ({@code "<|end|>"}, {@code "Ġthe"}). */
    public Optional<Integer> id(String token) {
        return vocabulary.id(token);
    }

    /**
     * Decodes the tokens generated after {@code promptIds}, one at a time. The prompt's text is not returned, but decides
     * what follows it: whether a leading space is kept, and to which character the first bytes belong.
     */
    public Detokenizer detokenizer(int[] promptIds, boolean skipSpecialTokens) {
        return switch (vocabulary.form()) {
            case BYTES -> new TableDetokenizer(vocabulary, promptIds, skipSpecialTokens);
            case OPAQUE -> new WindowDetokenizer(this::decodeByLibrary, promptIds, skipSpecialTokens);
        };
    }

    /** Frees the native tokenizer once calls in progress have ended. Later calls throw IllegalStateException. */
    @Override
    public void close() {
        lifetime.writeLock().lock();
        try {
            if (!closed) {
                closed = true;
                library.close();
            }
        } finally {
            lifetime.writeLock().unlock();
        }
    }

    /** The library's own answer: what tests compare the table with. */
    String decodeByLibrary(int[] ids, boolean skipSpecialTokens) {
        lifetime.readLock().lock();
        try {
            requireOpen();
            // The library takes unsigned ids.
            long[] known = Arrays.stream(ids)
                    .filter(id -> id >= 0 && id < vocabulary.size())
                    .asLongStream()
                    .toArray();
            return library.decode(known, skipSpecialTokens);
        } finally {
            lifetime.readLock().unlock();
        }
    }

    private void requireOpen() {
        if (closed) {
            throw new IllegalStateException("tokenizer is closed");
        }
    }

    /** The library reports its use and may download its native part unless one of these says otherwise. */
    private static void keepLibraryOffline() {
        System.setProperty("OPT_OUT_TRACKING", "true");
        System.setProperty("ai.djl.offline", "true");
    }

    private static String withoutUnpairedSurrogates(String text) {
        for (int i = 0; i < text.length(); i++) {
            if (Character.isSurrogate(text.charAt(i))) {
                StringBuilder clean = new StringBuilder(text.length());
                text.codePoints()
                        .map(point -> point >= 0xD800 && point <= 0xDFFF ? 0xFFFD : point)
                        .forEach(clean::appendCodePoint);
                return clean.toString();
            }
        }
        return text;
    }
}
