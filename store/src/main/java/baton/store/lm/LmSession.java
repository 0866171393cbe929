package baton.store.lm;

import baton.store.remote.Destination;
import baton.store.remote.Failure;
import baton.store.remote.RemoteConnection;
import baton.store.remote.RemoteSession;
import io.netty.buffer.ByteBuf;
import io.netty.channel.Channel;
import io.netty.channel.ChannelHandlerContext;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.util.List;
import java.util.Optional;

/** Greets the server if there is a token, asks for its additions to the protocol, and takes its replies. */
final class LmSession extends RemoteSession<LmRequest> {
    private final LmProtocol protocol;
    private boolean isProbed;
    private Additions additions = Additions.NONE;
    private Optional<ServerMemory> memory = Optional.empty();

    /** The index of the first request's next reply. */
    private int reply;

    private boolean isWanted;

    /** Values that the server holds for requests that are over. */
    private int held;

    LmSession(RemoteConnection<LmRequest> connection, LmProtocol protocol) {
        super(connection);
        this.protocol = protocol;
    }

    @Override
    protected void open(ChannelHandlerContext context) {
        protocol.token()
                .ifPresentOrElse(
                        token -> {
                            LmGreeting greeting = new LmGreeting(token, this::probe);
                            context.pipeline().addBefore(context.name(), "greeting", greeting);
                            greeting.begin(context.pipeline().context(greeting));
                        },
                        this::probe);
    }

    private void probe() {
        isProbed = true;
        send(ping());
    }

    @Override
    protected Failure earlyFailure() {
        return protocol.token().isPresent() && !isProbed ? Failure.AUTHENTICATION : Failure.UNAVAILABLE;
    }

    @Override
    protected String earlyEnd() {
        if (isProbed) {
            return "has closed a connection at its first request; does it ask for a token?";
        }
        return protocol.token().isPresent()
                ? "has closed a connection before both sides had shown that they have the token"
                : "has closed a connection at once";
    }

    @Override
    protected int write(Channel to, LmRequest request) {
        return request.write(to, additions);
    }

    @Override
    protected LmRequest ping() {
        return new Probe();
    }

    private static void writeWithAnyKey(Channel to, int command, LmMetadata metadata) {
        ByteBuf request = to.alloc().directBuffer(LmWire.REQUEST_BYTES);
        LmWire.writeRequest(request, command, 0, metadata);
        LmKeys.of(List.of(LmWire.PROBE)).write(request, 0);
        var _ = to.write(request, to.voidPromise());
    }

    /** The first request: asks for the server's additions to the protocol. */
    private final class Probe extends LmRequest {
        private int adds;

        @Override
        protected int write(Channel to, Additions ofServer) {
            writeWithAnyKey(to, LmWire.EXIST, LmMetadata.NONE);
            return 1;
        }

        @Override
        protected Optional<Destination> reply(int index, LmReply numbers) {
            adds = numbers.isSuccess() ? numbers.metadata().shape0() : 0;
            return Optional.empty();
        }

        @Override
        protected void ended() {
            if (!isCurrent() || isReady()) {
                return;
            }
            additions = new Additions(adds >= LmWire.ADDS_BATCHES, Optional.empty());
            if (adds >= LmWire.ADDS_MEMORY && protocol.mapsMemoryOf(channel())) {
                send(new MemoryQuestion());
            } else {
                ready();
            }
        }
    }

    /** Asks a server of this host for its memory. */
    private final class MemoryQuestion extends LmRequest {
        private byte[] description = {};

        @Override
        protected int write(Channel to, Additions ofServer) {
            writeWithAnyKey(to, LmWire.MEMORY, LmMetadata.NONE);
            return 1;
        }

        @Override
        protected Optional<Destination> reply(int index, LmReply numbers) {
            if (!numbers.isSuccess() || numbers.length() > ServerMemory.MOST_BYTES) {
                return Optional.empty();
            }
            description = new byte[numbers.length()];
            return Optional.of(new Destination(List.of(MemorySegment.ofArray(description)), description.length));
        }

        @Override
        protected void ended() {
            if (!isCurrent() || isReady()) {
                return;
            }
            try {
                ServerMemory mapped = new ServerMemory(description);
                memory = Optional.of(mapped);
                additions = new Additions(additions.batches(), Optional.of(mapped.memory()));
            } catch (IOException | RuntimeException e) {
                protocol.notMapped(e);
            }
            ready();
        }
    }

    @Override
    protected int headBytes(ByteBuf from) {
        return from.readableBytes() < LmWire.REPLY_BYTES ? 0 : LmWire.REPLY_BYTES;
    }

    @Override
    protected int bytesBeforeBody() {
        int head = first().map(LmRequest::headBytes).orElse(0);
        return head == 0 ? super.bytesBeforeBody() : LmWire.REPLY_BYTES + head;
    }

    @Override
    protected Body head(ByteBuf head) {
        LmReply numbers = LmReply.read(head);
        Optional<LmRequest> request = first();
        if (request.isEmpty() || !numbers.isValid()) {
            return notUnderstood(numbers.toString());
        }
        Optional<Destination> place =
                request.filter(each -> !each.isAbandoned()).flatMap(each -> each.reply(reply, numbers));
        if (numbers.length() == 0) {
            answered();
            return Body.NONE;
        }
        isWanted = place.isPresent();
        return new Body(numbers.length(), place);
    }

    @Override
    protected void body() {
        first().filter(each -> isWanted && !each.isAbandoned()).ifPresent(each -> each.received(reply));
        answered();
    }

    private void answered() {
        LmRequest request = first().orElseThrow();
        if (replied()) {
            reply = 0;
            held += request.holds() ? 1 : 0;
        } else {
            reply++;
        }
    }

    @Override
    public void channelReadComplete(ChannelHandlerContext context) {
        if (held > 0 && context.channel().isActive()) {
            LmMetadata none = LmMetadata.NONE;
            writeWithAnyKey(context.channel(), LmWire.FREE, new LmMetadata(none.format(), none.dtype(), held, 0, 0, 0));
            context.channel().flush();
            held = 0;
        }
    }

    @Override
    protected void ended() {
        additions = Additions.NONE;
        memory.ifPresent(ServerMemory::close);
        memory = Optional.empty();
    }
}
