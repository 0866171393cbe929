package baton.engine.text;

import ai.djl.huggingface.tokenizers.HuggingFaceTokenizer;
import ai.djl.huggingface.tokenizers.jni.TokenizersLibrary;
import baton.engine.gguf.GgufModel;
import baton.grammar.automaton.TokenVocabulary;
import baton.kv.ConfigException;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.locks.ReentrantReadWriteLock;
import java.util.function.IntPredicate;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/**
 * A model's tokenizer, as its {@code tokenizer.json} describes it. Encoding is done by Hugging Face's own library; decoding
 * of byte-level BPE and SentencePiece vocabularies by a table of each token's bytes, of all other vocabularies by the library.
 *
 * <p>All methods may be called from any thread. Decoding does not apply {@code clean_up_tokenization_spaces}, which would
 * change text that was already streamed; vLLM does not either.
 */
public final class Tokenizer implements AutoCloseable {
    /** Where a text can be cut without a change in its tokens, it is encoded in pieces of about so many characters. */
    public static final int PIECE_CHARACTERS = 32 << 10;

    /** Bytes of memory that the library takes while it encodes, for each character of a piece. */
    public static final int BYTES_PER_CHARACTER = 256;

    /** Any text of which no special token is a part. */
    private static final String PROBE = "a";

    private static final long[] NO_IDS = {};

    private final HuggingFaceTokenizer library;
    private final Vocabulary vocabulary;
    private final TextCuts cuts;
    private final TokenBound bound;
    private final Around around;
    private final ReentrantReadWriteLock lifetime = new ReentrantReadWriteLock();
    private boolean closed;

    /** The special tokens that are put around a text. */
    private record Around(long[] before, long[] after) {}

    private Tokenizer(HuggingFaceTokenizer library, Vocabulary vocabulary, TextCuts cuts, TokenBound bound) {
        this.library = library;
        this.vocabulary = vocabulary;
        this.bound = bound;
        Optional<Around> found = around();
        this.around = found.orElse(new Around(NO_IDS, NO_IDS));
        this.cuts = found.isPresent() ? cuts : TextCuts.NONE;
    }

    /**
     * Reads {@code tokenizer.json} of a Hugging Face model directory, or the tokenizer of a GGUF file. Nothing is fetched from or reported to a network.
     *
     * @throws ConfigException naming the file and the reason, if it is missing, unreadable or not a tokenizer
     */
    public static Tokenizer load(Path modelDir) {
        boolean isGguf = GgufModel.isFile(modelDir);
        Path file = isGguf ? modelDir : modelDir.resolve("tokenizer.json");
        keepLibraryOffline();
        try {
            byte[] json = isGguf ? GgufTokenizer.tokenizer(file) : Files.readAllBytes(file);
            JsonNode root = JsonMapper.builder().build().readTree(json);
            Vocabulary vocabulary = Vocabulary.read(file.toString(), root);
            // "false" undoes the truncation and padding that many published files carry.
            return new Tokenizer(
                    HuggingFaceTokenizer.newInstance(
                            new ByteArrayInputStream(json), Map.of("truncation", "false", "padding", "false")),
                    vocabulary,
                    TextCuts.of(root),
                    TokenBound.of(root, vocabulary));
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
        return encode(text, addSpecialTokens, EncodingWatch.NONE);
    }

    /** Encodes as {@link #encode(String, boolean)} does; before each piece {@code watch} may end it by an exception. */
    public int[] encode(String text, boolean addSpecialTokens, EncodingWatch watch) {
        return encode(text, addSpecialTokens, watch, PIECE_CHARACTERS);
    }

    /** @param pieceCharacters a piece ends where it can be cut after so many */
    int[] encode(String text, boolean addSpecialTokens, EncodingWatch watch, int pieceCharacters) {
        int end = cuts.end(text, 0, pieceCharacters);
        watch.beforePiece(end, 0);
        if (end == text.length()) {
            return ints(encodePiece(text, addSpecialTokens));
        }
        Ids ids = new Ids();
        if (addSpecialTokens) {
            ids.add(around.before);
        }
        int start = 0;
        while (true) {
            ids.add(encodePiece(text.substring(start, end), false));
            if (end == text.length()) {
                break;
            }
            start = end;
            end = cuts.end(text, start, pieceCharacters);
            watch.beforePiece(end - start, ids.count);
        }
        if (addSpecialTokens) {
            ids.add(around.after);
        }
        return ids.toArray();
    }

    /**
     * The first or the last {@code tokens} of an encoded text. As in Hugging Face's tokenizers, the text loses tokens and not the special
     * tokens that were put around it, unless there is no room for these.
     */
    public int[] truncated(int[] ids, int tokens, boolean beginning) {
        int before = around.before.length;
        int after = around.after.length;
        int gone = ids.length - tokens;
        if (gone <= 0) {
            return ids;
        }
        if (tokens < before + after) {
            before = 0;
            after = 0;
        }
        int from = beginning ? ids.length - after - gone : before;
        int[] kept = Arrays.copyOf(ids, tokens);
        System.arraycopy(ids, from + gone, kept, from, tokens - from);
        return kept;
    }

    /** A number of tokens that {@code text} has at least, found from its length; 0 where a length says nothing. */
    public long leastTokens(String text) {
        return bound.least(text);
    }

    /**
     * An end of {@code text} that has the whole text's last {@code tokens} tokens: all of it, if it is not much longer than that or
     * cannot be cut.
     */
    public String tail(String text, int tokens) {
        return text.substring(cuts.tail(text, bound.characters(tokens)));
    }

    /** A beginning of {@code text} that has the whole text's first {@code tokens} tokens, as {@link #tail}. */
    public String head(String text, int tokens) {
        return text.substring(0, cuts.end(text, 0, (int) Math.min(bound.characters(tokens), Integer.MAX_VALUE)));
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

    /** Whether a text is a special token. */
    public boolean isSpecial(String token) {
        return id(token).filter(this::isSpecial).isPresent();
    }

    /**
     * The tokens as grammars see them.
     *
     * @param size of the model's vocabulary; ids that have no token are never allowed
     * @param endTokens tokens that end a text
     * @throws ConfigException if the tokens' bytes are not known
     */
    public TokenVocabulary grammarVocabulary(int size, Set<Integer> endTokens) {
        if (vocabulary.form() == Vocabulary.Form.OPAQUE) {
            throw new ConfigException(
                    "format",
                    "cannot be enforced: this model's tokenizer.json has a decoder by which its tokens have no bytes of their own, must be ByteLevel or that of SentencePiece");
        }
        return TokenVocabulary.of(size, vocabulary::bytes, vocabulary.specialTokens(size), endTokens);
    }

    /** One more than the highest id. A model's logits may be wider. */
    public int vocabularySize() {
        return vocabulary.size();
    }

    /** One more than the highest id of a token that was not added later. */
    public int ownVocabularySize() {
        return vocabulary.ownSize();
    }

    /** The id of a token as {@code tokenizer.json} spells it ({@code "<|end|>"}, {@code "Ġthe"}). */
    public Optional<Integer> id(String token) {
        return vocabulary.id(token);
    }

    /**
     * Decodes the tokens generated after {@code promptIds}, one at a time. The prompt's text is not returned, but affects the first tokens:
     * whether a leading space is kept, and to which character the first bytes belong.
     */
    public Detokenizer detokenizer(int[] promptIds, boolean skipSpecialTokens) {
        return detokenizer(promptIds, skipSpecialTokens, Set.of());
    }

    /** @param shown special tokens with a text that is returned in any case */
    public Detokenizer detokenizer(int[] promptIds, boolean skipSpecialTokens, Set<Integer> shown) {
        IntPredicate isShown = id -> !(skipSpecialTokens && vocabulary.isSpecial(id)) || shown.contains(id);
        return switch (vocabulary.form()) {
            case BYTES -> new TableDetokenizer(vocabulary, promptIds, isShown);
            case OPAQUE -> new WindowDetokenizer(ids -> decodeByLibrary(ids, false), promptIds, isShown);
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

    /** The library's own answer, with which tests compare the table. */
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

    /** One call of the library, which nothing can end. */
    private long[] encodePiece(String text, boolean addSpecialTokens) {
        lifetime.readLock().lock();
        try {
            requireOpen();
            // The library's own encode() makes a string, a span and five numbers of each token.
            TokenizersLibrary calls = TokenizersLibrary.LIB;
            long encoding = calls.encode(library.getHandle(), withoutUnpairedSurrogates(text), addSpecialTokens);
            try {
                return calls.getTokenIds(encoding);
            } finally {
                calls.deleteEncoding(encoding);
            }
        } finally {
            lifetime.readLock().unlock();
        }
    }

    /** Empty if they are not simply put around it. */
    private Optional<Around> around() {
        List<Long> text = Arrays.stream(encodePiece(PROBE, false)).boxed().toList();
        long[] whole = encodePiece(PROBE, true);
        int at = Collections.indexOfSubList(Arrays.stream(whole).boxed().toList(), text);
        return at < 0
                ? Optional.empty()
                : Optional.of(new Around(
                        Arrays.copyOf(whole, at), Arrays.copyOfRange(whole, at + text.size(), whole.length)));
    }

    private static int[] ints(long[] ids) {
        return Arrays.stream(ids).mapToInt(Math::toIntExact).toArray();
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

    /** Ids one after the other, four bytes each. */
    private static final class Ids {
        private int[] ids = new int[1024];
        private int count;

        void add(long[] more) {
            int wanted = count + more.length;
            if (wanted > ids.length) {
                ids = Arrays.copyOf(ids, Math.max(wanted, ids.length + (ids.length >> 1)));
            }
            for (long id : more) {
                ids[count++] = Math.toIntExact(id);
            }
        }

        int[] toArray() {
            return Arrays.copyOf(ids, count);
        }
    }
}
