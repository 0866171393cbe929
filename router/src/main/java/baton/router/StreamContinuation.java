package baton.router;

import baton.router.HandoffAttempt.DecodeOnly;
import baton.router.HandoffAttempt.HandOver;
import baton.router.RequestLegs.Target;
import baton.router.body.JsonObjectText;
import baton.router.body.PromptField;
import baton.router.flow.HandoffFlow;
import baton.router.metrics.RouterMetrics.ContinuationOutcome;
import baton.router.metrics.RouterMetrics.Outcome;
import baton.router.policy.RoutingPolicy;
import baton.router.upstream.Instance;
import baton.router.upstream.Instance.Role;
import baton.router.upstream.UpstreamFailure;
import baton.router.upstream.UpstreamFailure.Kind;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.function.Predicate;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Continues an answer at another decode instance when its own breaks off. Both legs of a new attempt have the client's body with the token ids so far
 * ({@link StreamPosition#continued}): the prefill instance finds the prompt in its cache, the decode instance sends only the events that follow, or
 * the whole answer of a request that is no stream. Confined to the request's event loop.
 */
final class StreamContinuation {
    private static final Logger log = LoggerFactory.getLogger(ProxiedRequest.class);
    private static final byte[] TRUE = {'t', 'r', 'u', 'e'};

    /** Instances that fail with a stream. */
    private static final int MOST_PAUSES = 32;

    private final ProxiedRequest request;
    private final RoutingPolicy policy;
    private final JsonObjectText body;
    private final boolean isStream;
    private StreamPosition position = new TokenComments();
    private int pauses;
    /** The decode instance that the stream leaves, if it can hand over its computed blocks. */
    private Optional<Instance> left = Optional.empty();
    /** The decode instance that a balance has chosen for it. */
    private Optional<Instance> next = Optional.empty();
    /** Whether the decode instance is to compute all tokens, as one has refused those of a prefill instance: it may fail to load their blocks. */
    private boolean alone;

    StreamContinuation(ProxiedRequest request, JsonObjectText body) {
        this.request = request;
        this.policy = request.context().routing().policy();
        this.body = body;
        this.isStream =
                body.value("stream").filter(value -> Arrays.equals(value, TRUE)).isPresent();
    }

    boolean isStream() {
        return isStream;
    }

    /** Whether an instance has begun a whole answer, of which the client has nothing. */
    boolean hasBegunWhole() {
        return !isStream && position.tokens() > 0;
    }

    /** Whether the tokens of an answer are seen as they are made. */
    boolean showsProgress() {
        return isStream || position.isKnown();
    }

    StreamPosition position() {
        return position;
    }

    /** The body of the legs if the first decode leg is for that instance. */
    JsonObjectText bodyFor(Instance decode) {
        position = isStream && decode.isVllm() && !PromptField.mayBeOfResponses(body)
                ? new TokenFields(body)
                : new TokenComments();
        return position.asking(body);
    }

    /** Only a prompt with one choice can be handed over with its tokens. */
    private boolean hasOneChoice() {
        return position.canHandOver()
                && body.value("n")
                        .map(value -> new String(value, StandardCharsets.US_ASCII))
                        .filter(n -> !n.equals("1"))
                        .isEmpty();
    }

    /** Why it is to leave its instance now; empty if it stays. */
    Optional<Kind> leaves(Instance own) {
        if (own.isLeaving()) {
            return canMove() ? Optional.of(Kind.LEAVING) : Optional.empty();
        }
        if (own.givesStreams()
                && pauses < MOST_PAUSES / 2
                && own.connectorAddress().isPresent()
                && hasOneChoice()
                && canMove()) {
            next = own.giveStream().filter(position::canBeAt);
            return next.map(_ -> Kind.BALANCE);
        }
        return Optional.empty();
    }

    /** Whether another instance can continue it while its own one is there. */
    private boolean canMove() {
        return request.pause().isEmpty()
                && position.canMove()
                && pauses < MOST_PAUSES
                && policy.hasOtherDecode(without(List.of()), Optional.empty());
    }

    /** Whether a failure of its instance would lead to another one, which may have had the stream before. */
    boolean canContinueElsewhere(Instance own) {
        boolean mayFail = request.pause()
                .map(current -> current.failuresLeft(Role.DECODE) > 1)
                .orElse(pauses < MOST_PAUSES);
        return mayFail && position.whyNot().isEmpty() && policy.hasOtherDecode(without(List.of(own)), Optional.empty());
    }

    /**
     * A decode instance has failed after the client got events, or after tokens of a whole answer. Its attempt has ended.
     *
     * @param isFirst whether the pause begins
     */
    void brokenOff(UpstreamFailure failure, RequestPause pause, boolean isFirst) {
        if (isFirst) {
            pauses++;
            alone = false;
            left = Optional.of(failure.instance())
                    .filter(each ->
                            failure.kind().isMove() && each.connectorAddress().isPresent());
            request.legs().forget();
            request.legs().tried(failure.instance());
        }
        boolean isRefused = failure.kind() == Kind.ANSWER && (alone || !isStream);
        if (failure.kind() == Kind.ANSWER && !isRefused) {
            alone = true;
            request.legs().forget(failure.instance());
        }
        Optional<String> whyNot = position.whyNot()
                .or(() -> isStream
                                && isRefused
                                && !policy.hasOtherDecode(without(request.legs().decodes()), Optional.empty())
                        ? Optional.of("refused")
                        : Optional.empty())
                .or(() -> pause.failuresLeft(Role.DECODE) <= 0 || pauses > MOST_PAUSES
                        ? Optional.of("too many instances have failed with it")
                        : Optional.empty());
        if (whyNot.isPresent()) {
            request.answerError(
                    failure.status(),
                    failure.describe() + "; another instance cannot continue: " + whyNot.get(),
                    Outcome.DECODE_BROKEN);
        } else if (isRefused && !isStream) {
            request.legs().forget(failure.instance());
            beginAnew(failure, pause);
        } else {
            choose(failure, pause);
        }
    }

    /** The client has nothing of a whole answer, so any instance may make all of it, one that has refused to continue it too. */
    private void beginAnew(UpstreamFailure failure, RequestPause pause) {
        log.info("{}: {}, the answer begins anew", request.id(), failure.describe());
        request.report().trace().step("no instance continues the answer: it begins anew");
        pause.ends(ContinuationOutcome.ANEW);
        request.placeAnew();
    }

    private void choose(UpstreamFailure failure, RequestPause pause) {
        Optional<Instance> prefill = left.or(() -> request.legs().prefilledAt().filter(StreamContinuation::isUsable))
                .filter(_ -> hasOneChoice());
        List<Instance> tried = without(request.legs().decodes());
        Optional<Target> decode = next.flatMap(
                        to -> policy.otherDecode(request.asked(), decodes(each -> each != to), prefill))
                .or(() -> policy.otherDecode(request.asked(), tried, prefill))
                .or(() -> policy.otherDecode(request.asked(), tried, Optional.empty()))
                .map(request::chosen);
        next = Optional.empty();
        if (decode.isPresent()) {
            begin(failure, decode.get());
        } else if (!isStream && policy.hasOtherDecode(request.legs().decodes(), Optional.empty())) {
            beginAnew(failure, pause);
        } else if (!pause.lookAgain(Role.DECODE, () -> choose(failure, pause))) {
            request.answerError(
                    failure.status(),
                    failure.describe() + "; no other instance has been there to continue for "
                            + pause.longestWait().toSeconds() + " s",
                    Outcome.DECODE_BROKEN);
        }
    }

    /** These, and those that cannot continue it. */
    private List<Instance> without(List<Instance> tried) {
        return decodes(each -> tried.contains(each) || !position.canBeAt(each));
    }

    private List<Instance> decodes(Predicate<Instance> which) {
        return request.context().routing().instances().decodes().all().stream()
                .filter(which)
                .toList();
    }

    private static boolean isUsable(Instance instance) {
        return instance.isUp() && !instance.isTripped();
    }

    private void begin(UpstreamFailure failure, Target decode) {
        log.info(
                "{}: {}, {} continues after {} tokens",
                request.id(),
                failure.describe(),
                decode.instance(),
                position.tokens());
        Optional<Target> prefill = prefill(decode.instance());
        Target told = new Target(
                decode.instance(),
                decode.why() + "; continues the answer after " + position.tokens() + " tokens" + position.difference());
        String id = HandoffFlow.idWithEnd(request.id(), "." + pauses);
        request.held()
                .work(body.length() + position.bytes(), () -> position.continued(body))
                .onComplete(
                        made -> {
                            if (!request.isEnded()) {
                                prefill.ifPresentOrElse(
                                        from -> request.begin(id, new HandOver(id, made, from), told),
                                        () -> request.begin(
                                                request.flow().idWithoutHandoff(id), new DecodeOnly(made), told));
                            }
                        },
                        request::rejectBody);
    }

    /** Where the prompt was computed, else any that can. Several choices have no prompt in common with their tokens. */
    private Optional<Target> prefill(Instance decode) {
        if (alone || !hasOneChoice()) {
            return Optional.empty();
        }
        if (left.isPresent() && request.flow().pairs(left.get(), decode)) {
            Target source = new Target(left.get(), "the stream leaves it");
            left = Optional.empty();
            return Optional.of(source);
        }
        return request.legs()
                .prefilledAt()
                .flatMap(last -> isUsable(last) && request.flow().pairs(last, decode)
                        ? Optional.of(new Target(last, "it has computed the prompt"))
                        : policy.otherPrefill(request.asked(), List.of(last), decode)
                                .map(request::chosen))
                .filter(from -> position.canBeAt(from.instance()));
    }

    /** The outcome of the stream when it ends with an error. */
    ContinuationOutcome failure() {
        return position.whyNot().isPresent() ? ContinuationOutcome.IMPOSSIBLE : ContinuationOutcome.FAILED;
    }
}
