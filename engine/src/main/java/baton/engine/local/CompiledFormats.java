package baton.engine.local;

import baton.engine.EngineUnavailableException;
import baton.grammar.OutputFormat;
import baton.grammar.automaton.Grammar;
import baton.grammar.automaton.TokenGrammar;
import baton.grammar.automaton.TokenVocabulary;
import baton.kv.ConfigException;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.time.Duration;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.WeakHashMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/** Formats of outputs, compiled for one vocabulary. Keeps those that were used last, within a number of bytes. May be used by any thread. */
final class CompiledFormats {
    private static final long MOST_BYTES = 256 << 20;
    private static final int MOST = 1000;
    private static final Duration LONGEST_WAIT = Duration.ofSeconds(10);

    private final Supplier<TokenVocabulary> vocabularies;
    private final long mostBytes;
    /** Limits the formats that are compiled at once. */
    private final Semaphore compilers =
            new Semaphore(Math.max(1, Runtime.getRuntime().availableProcessors() / 2));

    /** The one that was used last comes last. */
    @GuardedBy("this")
    private final Map<OutputFormat, Kept> compiled = new LinkedHashMap<>(16, 0.75f, true);

    /** The formats of requests that have not been submitted, or have not ended, also if they are no longer cached. */
    @GuardedBy("this")
    private final Map<OutputFormat, TokenGrammar> prepared = new WeakHashMap<>();

    @GuardedBy("this")
    private @Nullable TokenVocabulary vocabulary;

    private record Kept(TokenGrammar grammar, long bytesOfKey) {
        long bytes() {
            return grammar.bytes() + bytesOfKey;
        }
    }

    /** @param vocabulary asked for once, with the first format */
    CompiledFormats(Supplier<TokenVocabulary> vocabulary) {
        this(vocabulary, MOST_BYTES);
    }

    CompiledFormats(Supplier<TokenVocabulary> vocabulary, long mostBytes) {
        this.vocabularies = vocabulary;
        this.mostBytes = mostBytes;
    }

    /**
     * The format's grammar, compiled on this thread if it is not there.
     *
     * @throws ConfigException if it cannot be compiled
     * @throws EngineUnavailableException if too many others are being compiled
     */
    TokenGrammar get(OutputFormat format) {
        try {
            Optional<TokenGrammar> found = find(format);
            if (found.isPresent()) {
                return found.get();
            }
            if (!compilers.tryAcquire(LONGEST_WAIT.toNanos(), TimeUnit.NANOSECONDS)) {
                throw new EngineUnavailableException("Too many formats of outputs are being compiled; try again later");
            }
            try {
                return find(format).orElseGet(() -> compile(format));
            } finally {
                compilers.release();
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new EngineUnavailableException("Interrupted while a format waited to be compiled");
        } catch (StackOverflowError e) {
            throw new ConfigException("format", "nests too deeply", e);
        }
    }

    /** The same for a format that will be used: {@link #get} finds its grammar as long as this object is referred to. */
    void prepare(OutputFormat format) {
        TokenGrammar grammar = get(format);
        synchronized (this) {
            // An equal format of an earlier request would remain the key.
            prepared.remove(format);
            prepared.put(format, grammar);
        }
        forgetOldest();
    }

    private TokenGrammar compile(OutputFormat format) {
        TokenGrammar made = new TokenGrammar(Grammar.compile(format.source()), vocabulary());
        TokenGrammar kept = keep(format, new Kept(made, format.bytes()));
        forgetOldest();
        return kept;
    }

    private synchronized TokenVocabulary vocabulary() {
        TokenVocabulary made = vocabulary;
        if (made == null) {
            made = vocabularies.get();
            vocabulary = made;
        }
        return made;
    }

    private synchronized Optional<TokenGrammar> find(OutputFormat format) {
        return Optional.ofNullable(compiled.get(format))
                .map(Kept::grammar)
                .or(() -> Optional.ofNullable(prepared.get(format)));
    }

    private synchronized TokenGrammar keep(OutputFormat format, Kept made) {
        return compiled.computeIfAbsent(format, _ -> made).grammar();
    }

    /** Forgets the oldest if all together take too much memory: a grammar grows while it is used. */
    private synchronized void forgetOldest() {
        long bytes = vocabulary().bytesOfLoops()
                + compiled.values().stream().mapToLong(Kept::bytes).sum();
        Iterator<Kept> oldest = compiled.values().iterator();
        while (oldest.hasNext() && (bytes > mostBytes || compiled.size() > MOST)) {
            bytes -= oldest.next().bytes();
            oldest.remove();
        }
    }

    /** Formats that are kept. */
    synchronized int count() {
        return compiled.size();
    }
}
