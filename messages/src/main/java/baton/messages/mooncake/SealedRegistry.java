package baton.messages.mooncake;

import baton.messages.GuardedSideChannel;
import baton.messages.MessageException;
import baton.messages.PeerAccess;
import baton.messages.PeerAddress;
import baton.messages.SideChannel;
import baton.messages.http.RegistryClient;
import baton.messages.http.RegistryServer.Answer;
import baton.messages.http.RegistryServer.Handler;
import baton.messages.http.RegistryServer.Request;
import baton.messages.zeromq.ZeroMqSideChannel;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;

/**
 * A registry's requests between instances with a secret, over a sealed side channel: a question has HTTP's method and path, and the body, as
 * frames; its answer the status and the body.
 */
final class SealedRegistry implements AutoCloseable {
    private final GuardedSideChannel channel;

    /** @param access has a secret */
    SealedRegistry(PeerAccess access) {
        channel = new GuardedSideChannel(new ZeroMqSideChannel(access), access);
    }

    /**
     * @param handlers by method and path, as in {@code "GET /query"}
     * @throws MessageException if the address cannot be had
     */
    SideChannel.Listener serve(String host, int port, Map<String, Handler> handlers) throws MessageException {
        return channel.listen(host, port, frames -> {
            Handler handler = handlers.getOrDefault(text(frames.getFirst()), _ -> Answer.detail(404, "Not Found"));
            Answer answer = handler.answerOrReject(new Request("", text(frames.getLast())));
            return List.of(bytes(Integer.toString(answer.status())), bytes(answer.json()));
        });
    }

    /**
     * Asks once.
     *
     * @return the answer's body; fails with an {@link IOException} if there is none, with a {@link MessageException} if it is a refusal
     */
    CompletableFuture<String> ask(PeerAddress registry, String name, String body, Duration timeout) {
        return channel.ask(registry.host(), registry.port(), List.of(bytes(name), bytes(body)), timeout)
                .exceptionallyCompose(failure -> {
                    Throwable cause = RegistryClient.cause(failure);
                    // An HTTP server takes these bytes for a request and waits for its rest.
                    return CompletableFuture.failedFuture(new IOException(
                            cause.getMessage() + "; is it a registry with the same kv_auth_secret_file?", cause));
                })
                .thenApply(answer -> {
                    if (!text(answer.getFirst()).equals("200")) {
                        throw new CompletionException(new MessageException(registry + ": status "
                                + PeerAddress.shown(text(answer.getFirst()) + ": " + text(answer.getLast()))));
                    }
                    return text(answer.getLast());
                });
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(byte[] frame) {
        return new String(frame, StandardCharsets.UTF_8);
    }

    @Override
    public void close() {
        channel.close();
    }
}
