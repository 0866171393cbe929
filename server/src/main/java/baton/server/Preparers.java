package baton.server;

import io.vertx.core.Context;
import io.vertx.core.Vertx;
import io.vertx.core.buffer.Buffer;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.function.BiConsumer;
import java.util.function.Consumer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Prepares requests beside the event loop: bodies are parsed, templates rendered and texts tokenized by a small pool of threads, within
 * bounds of memory and time. Methods are called on the event loop.
 */
final class Preparers implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(Preparers.class);
    private static final int MAX_WAITING = 4096;

    /** Each may need memory for a piece of a text. */
    private static final int MOST_THREADS = 8;

    private final ServerConfig config;
    private final Vertx vertx;
    private final Context context;
    private final PreparingMemory memory;
    private final ExecutorService threads;

    Preparers(ServerConfig config, Vertx vertx, Context context) {
        this.config = config;
        this.vertx = vertx;
        this.context = context;
        memory = new PreparingMemory(config.maxPreparingBytes());
        int most = Math.clamp(Runtime.getRuntime().availableProcessors() / 2, 2, MOST_THREADS);
        threads = new ThreadPoolExecutor(
                most,
                most,
                0,
                TimeUnit.SECONDS,
                new ArrayBlockingQueue<>(MAX_WAITING),
                Thread.ofPlatform().daemon().name("baton-prepare-", 0).factory());
    }

    /** Reads the body of a request, then runs {@code next} on the event loop. */
    void readBody(HttpExchange exchange, BiConsumer<Buffer, Preparation> next) {
        Preparation preparation = preparation(exchange);
        BodyReader.read(exchange, preparation, config, vertx, body -> next.accept(body, preparation));
    }

    /** Accounts for the memory and time that a request takes until the engine has it. */
    Preparation preparation(HttpExchange exchange) {
        return new Preparation(memory, exchange, config.prepareTimeout());
    }

    /** Bytes held by requests that the engine does not have yet. */
    long bytes() {
        return memory.used();
    }

    /**
     * Runs {@code task} beside the event loop, within the prepare timeout, then {@code next} on the event loop, although the client may have
     * left.
     */
    <T> void prepare(HttpExchange exchange, Preparation preparation, Callable<T> task, Consumer<T> next) {
        long timer = vertx.setTimer(config.prepareTimeout().toMillis(), _ -> {
            preparation.abandon();
            exchange.fail(preparation.late());
        });
        try {
            threads.execute(() -> {
                Runnable continuation;
                try {
                    T result = task.call();
                    continuation = () -> next.accept(result);
                } catch (Throwable e) {
                    // After any error, out of memory included, the memory held is released.
                    continuation = () -> exchange.fail(e);
                }
                onEventLoop(exchange, preparation, timer, continuation);
            });
        } catch (RejectedExecutionException _) {
            vertx.cancelTimer(timer);
            preparation.release();
            exchange.fail(ApiException.unavailable("too many requests are being prepared; try again later"));
        }
    }

    private void onEventLoop(HttpExchange exchange, Preparation preparation, long timer, Runnable continuation) {
        try {
            context.runOnContext(_ -> {
                vertx.cancelTimer(timer);
                if (preparation.isLate()) {
                    preparation.release();
                    return;
                }
                preparation.releaseRequest();
                try {
                    continuation.run();
                } catch (Throwable e) {
                    preparation.release();
                    exchange.fail(e);
                }
            });
        } catch (RejectedExecutionException _) {
            LOG.debug("the server has stopped, a request is dropped");
        }
    }
    /** Sends an answer that may be long; its memory is held until the client has read it, at most for the body timeout. */
    void send(HttpExchange exchange, Preparation preparation, Buffer answer) {
        long timer = vertx.setTimer(config.bodyTimeout().toMillis(), _ -> exchange.reset());
        exchange.json(200, answer).onComplete(_ -> {
            vertx.cancelTimer(timer);
            preparation.release();
        });
    }

    @Override
    public void close() {
        threads.shutdownNow();
    }
}
