package baton.store.redis;

import baton.store.remote.Destination;
import baton.store.remote.Failure;
import baton.store.remote.RemoteConnection;
import baton.store.remote.RemoteSession;
import io.netty.buffer.ByteBuf;
import io.netty.channel.Channel;
import io.netty.channel.ChannelHandlerContext;
import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The Redis protocol (RESP2) on one channel: logs in, asks for the server's version, and takes replies apart. A reply is a line, a string
 * behind a line with its bytes, or an array of these.
 */
final class RedisSession extends RemoteSession<RedisRequest> {
    private static final Pattern VERSION = Pattern.compile("redis_version:([0-9]+)\\.([0-9]+)");
    private static final int FIRST_VERSION_WITH_GETEX = 602;
    private static final int MOST_LINE = 64 << 10;

    /** Bytes of a line with the bytes of a string, with the end of the one before. */
    private static final int STRING_LINE = 16;

    private static final int NOT_AN_ARRAY = -1;

    private final RedisSettings settings;
    private boolean hasGetex;

    /** Whether the end of the last string, a line end, is still to come. */
    private boolean atStringEnd;

    /** Parts of the reply that comes, or {@link #NOT_AN_ARRAY}. */
    private int parts = NOT_AN_ARRAY;

    private int part;
    private boolean isWanted;
    private Optional<String> error = Optional.empty();

    RedisSession(RemoteConnection<RedisRequest> connection, RedisSettings settings) {
        super(connection);
        this.settings = settings;
    }

    @Override
    protected void open(ChannelHandlerContext context) {
        List<String> login = new ArrayList<>(settings.credentials());
        login.addFirst(login.isEmpty() ? "PING" : "AUTH");
        send(new Opening(true, login));
        send(new Opening(false, List.of("CLIENT", "SETNAME", "baton")));
        if (settings.database() > 0) {
            send(new Opening(true, List.of("SELECT", Integer.toString(settings.database()))));
        }
        send(new Version());
    }

    /** A command before others may be sent. */
    private final class Opening extends RedisRequest {
        private final boolean isRequired;
        private final List<String> words;

        private Opening(boolean isRequired, List<String> words) {
            super(0);
            this.isRequired = isRequired;
            this.words = words;
        }

        @Override
        protected void write(ByteBuf to, boolean getex) {
            Keys.command(to, words);
        }

        @Override
        protected void word() {}

        @Override
        protected void answered() {}

        @Override
        protected void refused(Failure cause, String text) {
            if (isRequired) {
                refuse(
                        cause,
                        (cause == Failure.AUTHENTICATION
                                        ? "refuses the user or password of the setting url: "
                                        : "refuses a connection: ")
                                + text);
            }
        }
    }

    /** Asks which version the server is. It need not answer that to be used. */
    private final class Version extends RedisRequest {
        private byte[] info = {};

        private Version() {
            super(0);
        }

        @Override
        protected void write(ByteBuf to, boolean getex) {
            Keys.command(to, List.of("INFO", "server"));
        }

        @Override
        protected Optional<Destination> string(int index, int bytes) {
            info = new byte[Math.min(bytes, MOST_LINE)];
            return Optional.of(new Destination(List.of(MemorySegment.ofArray(info)), info.length));
        }

        @Override
        protected void answered() {
            Matcher version = VERSION.matcher(new String(info, StandardCharsets.UTF_8));
            hasGetex = version.find() && 100 * number(version, 1) + number(version, 2) >= FIRST_VERSION_WITH_GETEX;
            ready();
        }

        private static int number(Matcher version, int group) {
            return Integer.parseInt(version.group(group));
        }

        @Override
        protected void refused(Failure cause, String text) {
            ready();
        }
    }

    @Override
    protected int write(Channel to, RedisRequest request) {
        request.write(to, hasGetex);
        return 1;
    }

    @Override
    protected RedisRequest ping() {
        return new Opening(false, List.of("PING"));
    }

    @Override
    protected int headBytes(ByteBuf from) {
        int start = from.readerIndex() + (atStringEnd ? 2 : 0);
        int end = start < from.writerIndex() ? from.indexOf(start, from.writerIndex(), (byte) '\n') : -1;
        if (end < 0 && from.readableBytes() > MOST_LINE) {
            var _ = notUnderstood("a line of more than %d bytes".formatted(MOST_LINE));
        }
        return end < 0 ? 0 : end + 1 - from.readerIndex();
    }

    @Override
    protected int bytesBeforeBody() {
        int head = first().map(RedisRequest::headBytes).orElse(0);
        return head == 0 ? super.bytesBeforeBody() : STRING_LINE + head;
    }

    @Override
    protected Body head(ByteBuf head) {
        if (atStringEnd) {
            head.skipBytes(2);
            atStringEnd = false;
        }
        String line = head.toString(StandardCharsets.UTF_8).stripTrailing();
        Optional<RedisRequest> request = first();
        if (request.isEmpty() || line.isEmpty()) {
            return notUnderstood("'%s'".formatted(line));
        }
        try {
            return head(request.get(), line.charAt(0), line.substring(1));
        } catch (NumberFormatException _) {
            return notUnderstood("'%s'".formatted(line));
        }
    }

    private Body head(RedisRequest request, char kind, String text) {
        switch (kind) {
            case '+' -> request.word();
            case '-' -> error = Optional.of(text);
            case ':' -> request.number(Long.parseLong(text));
            case '$' -> {
                int bytes = Integer.parseInt(text);
                if (bytes >= 0) {
                    return string(request, bytes);
                }
                request.missing(part);
            }
            case '*' -> {
                if (parts != NOT_AN_ARRAY) {
                    return notUnderstood("an array in an array");
                }
                parts = Math.max(0, Integer.parseInt(text));
                part = -1;
            }
            default -> {
                return notUnderstood("'%s%s'".formatted(kind, text));
            }
        }
        partEnded();
        return Body.NONE;
    }

    private Body string(RedisRequest request, int bytes) {
        Optional<Destination> place = request.isAbandoned() ? Optional.empty() : request.string(part, bytes);
        isWanted = place.isPresent();
        if (bytes == 0) {
            body();
            return Body.NONE;
        }
        return new Body(bytes, place);
    }

    @Override
    protected void body() {
        atStringEnd = true;
        first().filter(each -> isWanted && !each.isAbandoned()).ifPresent(each -> each.received(part));
        partEnded();
    }

    private void partEnded() {
        part++;
        if (parts != NOT_AN_ARRAY && part < parts) {
            return;
        }
        RedisRequest request = first().orElseThrow();
        Optional<String> refusal = error;
        parts = NOT_AN_ARRAY;
        part = 0;
        error = Optional.empty();
        refusal.ifPresentOrElse(text -> request.refused(RedisRequest.failureOf(text), text), request::complete);
        if (isCurrent()) {
            var _ = replied();
        }
    }
}
