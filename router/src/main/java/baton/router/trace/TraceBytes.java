package baton.router.trace;

import baton.router.trace.RequestTrace.Head;
import baton.router.trace.RequestTrace.LegTrace;
import baton.router.trace.RequestTrace.Outcome;
import baton.router.trace.RequestTrace.PromptTokens;
import baton.router.trace.RequestTrace.Snapshot;
import baton.router.trace.RequestTrace.Step;
import baton.trace.TraceContext;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.OptionalLong;

/** A trace as bytes, for this process alone. The fields follow each other in the order of the records. */
final class TraceBytes {
    private static final int USUAL = 1500;

    private TraceBytes() {}

    @FunctionalInterface
    private interface Writer<T> {
        void write(DataOutputStream out, T value) throws IOException;
    }

    @FunctionalInterface
    private interface Reader<T> {
        T read(DataInputStream in) throws IOException;
    }

    /** @param now of the clock that {@code decode} is given too, in nanoseconds */
    static byte[] encode(Snapshot trace, long now) {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream(USUAL);
        try {
            DataOutputStream out = new DataOutputStream(bytes);
            out.writeLong(now - trace.age());
            head(out, trace.head());
            all(out, trace.steps(), (to, step) -> {
                to.writeLong(step.nanos());
                text(to, step.what());
            });
            all(out, trace.legs(), TraceBytes::leg);
            maybe(out, trace.localPrefill(), TraceBytes::text);
            RequestTrace.Answer answer = trace.answer();
            maybe(out, answer.firstByte());
            out.writeLong(answer.writes());
            maybe(out, answer.meanGap());
            out.writeLong(answer.longestGap());
            out.writeLong(answer.bytes());
            maybe(out, trace.outcome(), (to, outcome) -> {
                text(to, outcome.name());
                to.writeInt(outcome.status());
                to.writeLong(outcome.nanos());
            });
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        return bytes.toByteArray();
    }

    private static void head(DataOutputStream out, Head head) throws IOException {
        text(out, head.id());
        text(out, head.context().traceId());
        maybe(out, head.context().parentId(), TraceBytes::text);
        out.writeBoolean(head.context().sampled());
        text(out, head.spanId());
        text(out, head.method());
        text(out, head.path());
        maybe(out, head.client(), TraceBytes::text);
        out.writeLong(head.startedEpochNanos());
    }

    private static void leg(DataOutputStream out, LegTrace leg) throws IOException {
        text(out, leg.role());
        text(out, leg.spanId());
        text(out, leg.instance());
        text(out, leg.why());
        out.writeLong(leg.sent());
        maybe(out, leg.ended());
        out.writeInt(leg.status().orElse(-1));
        maybe(out, leg.failure(), TraceBytes::text);
        maybe(out, leg.prompt(), (to, prompt) -> {
            to.writeInt(prompt.all());
            to.writeInt(prompt.cached());
        });
    }

    static Snapshot decode(byte[] bytes, long now) {
        try {
            DataInputStream in = new DataInputStream(new ByteArrayInputStream(bytes));
            long started = in.readLong();
            return new Snapshot(
                    new Head(
                            text(in),
                            new TraceContext(text(in), maybe(in, TraceBytes::text), in.readBoolean()),
                            text(in),
                            text(in),
                            text(in),
                            maybe(in, TraceBytes::text),
                            in.readLong()),
                    now - started,
                    all(in, from -> new Step(from.readLong(), text(from))),
                    all(in, TraceBytes::leg),
                    maybe(in, TraceBytes::text),
                    new RequestTrace.Answer(maybeLong(in), in.readLong(), maybeLong(in), in.readLong(), in.readLong()),
                    maybe(in, from -> new Outcome(text(from), from.readInt(), from.readLong())));
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private static LegTrace leg(DataInputStream in) throws IOException {
        return new LegTrace(
                text(in),
                text(in),
                text(in),
                text(in),
                in.readLong(),
                maybeLong(in),
                status(in.readInt()),
                maybe(in, TraceBytes::text),
                maybe(in, from -> new PromptTokens(from.readInt(), from.readInt())));
    }

    private static OptionalInt status(int status) {
        return status < 0 ? OptionalInt.empty() : OptionalInt.of(status);
    }

    private static void text(DataOutputStream out, String text) throws IOException {
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        out.writeInt(bytes.length);
        out.write(bytes);
    }

    private static String text(DataInputStream in) throws IOException {
        return new String(in.readNBytes(in.readInt()), StandardCharsets.UTF_8);
    }

    private static <T> void maybe(DataOutputStream out, Optional<T> value, Writer<T> writer) throws IOException {
        out.writeBoolean(value.isPresent());
        if (value.isPresent()) {
            writer.write(out, value.get());
        }
    }

    private static <T> Optional<T> maybe(DataInputStream in, Reader<T> reader) throws IOException {
        return in.readBoolean() ? Optional.of(reader.read(in)) : Optional.empty();
    }

    private static void maybe(DataOutputStream out, OptionalLong value) throws IOException {
        out.writeBoolean(value.isPresent());
        if (value.isPresent()) {
            out.writeLong(value.getAsLong());
        }
    }

    private static OptionalLong maybeLong(DataInputStream in) throws IOException {
        return in.readBoolean() ? OptionalLong.of(in.readLong()) : OptionalLong.empty();
    }

    private static <T> void all(DataOutputStream out, List<T> values, Writer<T> writer) throws IOException {
        out.writeInt(values.size());
        for (T each : values) {
            writer.write(out, each);
        }
    }

    private static <T> List<T> all(DataInputStream in, Reader<T> reader) throws IOException {
        int count = in.readInt();
        List<T> values = new ArrayList<>(count);
        for (int i = 0; i < count; i++) {
            values.add(reader.read(in));
        }
        return List.copyOf(values);
    }
}
