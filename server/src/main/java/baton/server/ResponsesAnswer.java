package baton.server;

import baton.engine.FinishReason;
import baton.engine.GenerationEvent.Usage;
import baton.engine.SamplingParams;
import baton.kv.JsonFields;
import baton.server.output.Piece;
import io.vertx.core.buffer.Buffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.stream.Collectors;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/**
 * The answer to one request of {@code /v1/responses}: OpenAI's object and events with vLLM's additional fields. OutputPieces of one kind that follow each other are
 * one item. Confined to the event loop.
 */
final class ResponsesAnswer implements AnswerForm {
    private static final JsonNodeFactory NODES = JsonNodeFactory.instance;
    private static final String COMPLETED = "completed";
    private static final String RUNNING = "in_progress";
    private static final String INCOMPLETE = "incomplete";

    private final ReplyWriter.Head head;
    private final ReplyWriter writer;
    private final String itemSuffix;
    private final List<Item> items = new ArrayList<>();
    /** Log probabilities of tokens with a text that is not certain yet. */
    private ArrayNode untaken = NODES.arrayNode();

    private FinishReason finish = FinishReason.STOP;
    private int sequence;

    ResponsesAnswer(ReplyWriter.Head head, ReplyWriter writer) {
        this.head = head;
        this.writer = writer;
        itemSuffix = head.id().substring(head.request().api().idPrefix().length());
    }

    /** The kinds of items, and of their parts and events. */
    private enum Kind {
        REASONING("reasoning", "rs_", "reasoning_text", "text"),
        MESSAGE("message", "msg_", "output_text", "text"),
        CALL("function_call", "fc_", "function_call_arguments", "arguments");

        final String type;
        final String idPrefix;
        /** The name of the part; of a call, which has none, the name of its events. */
        final String part;

        final String field;

        Kind(String type, String idPrefix, String part, String field) {
            this.type = type;
            this.idPrefix = idPrefix;
            this.part = part;
            this.field = field;
        }
    }

    /** One item of the output. */
    private final class Item {
        final Kind kind;
        final int number = items.size();
        final String id;
        final StringBuilder text = new StringBuilder();
        final ArrayNode logprobs = NODES.arrayNode();
        private final ObjectNode own = NODES.objectNode();
        String status = RUNNING;

        Item(Kind kind) {
            this.kind = kind;
            id = kind.idPrefix + itemSuffix + "_" + number;
        }

        boolean isClosed() {
            return !status.equals(RUNNING);
        }

        ObjectNode shown() {
            ObjectNode shown = NODES.objectNode().put("id", id).put("type", kind.type);
            switch (kind) {
                case REASONING -> shown.putArray("summary");
                case MESSAGE -> shown.put("role", "assistant");
                case CALL -> shown.setAll(own).put(kind.field, text.toString());
            }
            if (kind != Kind.CALL) {
                ArrayNode content = shown.putArray("content");
                if (isClosed()) {
                    content.add(part());
                }
            }
            return shown.put("status", status);
        }

        ObjectNode part() {
            ObjectNode part = NODES.objectNode().put("type", kind.part).put(kind.field, text.toString());
            if (kind == Kind.MESSAGE) {
                part.putArray("annotations");
                part.set("logprobs", logprobs.deepCopy());
            }
            return part;
        }

        ObjectNode event(String type) {
            ObjectNode event = begin(type).put("output_index", number).put("item_id", id);
            return kind == Kind.CALL ? event : event.put("content_index", 0);
        }

        void open(Buffer events) {
            send(events, begin("output_item.added").put("output_index", number).set("item", shown()));
            if (kind != Kind.CALL) {
                send(events, event("content_part.added").set("part", part()));
            }
        }

        void add(String more, Buffer events) {
            text.append(more);
            ObjectNode event = event(kind.part + ".delta").put("delta", more);
            if (kind == Kind.MESSAGE) {
                logprobs.addAll(untaken);
                event.set("logprobs", untaken);
            }
            if (kind == Kind.MESSAGE || head.request().stream()) {
                untaken = NODES.arrayNode();
            }
            send(events, event);
        }

        void close(String end, Buffer events) {
            status = end;
            ObjectNode event = event(kind.part + ".done").put(kind.field, text.toString());
            switch (kind) {
                case REASONING -> send(events, event);
                case MESSAGE -> send(events, event.set("logprobs", logprobs.deepCopy()));
                case CALL -> send(events, event.setAll(own.deepCopy().remove(List.of("call_id"))));
            }
            if (kind != Kind.CALL) {
                send(events, event("content_part.done").set("part", part()));
            }
            send(events, begin("output_item.done").put("output_index", number).set("item", shown()));
        }
    }

    @Override
    public Buffer part(
            ReplyWriter.Output output, Optional<ReplyWriter.Tokens> usage, Optional<JsonFields> kvTransferParams) {
        Buffer events = begun();
        untaken.addAll(writer.chatTokens(head.request(), output.logprobs()));
        for (Piece piece : output.pieces().all()) {
            switch (piece) {
                case Piece.Reasoning(String text) ->
                    item(Kind.REASONING, events).add(text, events);
                case Piece.Content(String text) -> {
                    if (!text.isEmpty() || !untaken.isEmpty()) {
                        item(Kind.MESSAGE, events).add(text, events);
                    }
                }
                case Piece.CallBegin(int _, String id, String name) -> {
                    close(COMPLETED, events);
                    Item call = new Item(Kind.CALL);
                    call.own.put("call_id", callId(id)).put("name", name);
                    open(call, events);
                }
                case Piece.CallArguments(int _, String more) -> items.getLast().add(more, events);
            }
        }
        output.finished().ifPresent(end -> {
            finish = end.reason();
            close(finish == FinishReason.STOP ? COMPLETED : INCOMPLETE, events);
        });
        return events;
    }

    /** An id in the form of a parser's random one, the same at another instance that continues the answer. */
    private String callId(String random) {
        int from = random.lastIndexOf('-') + 1;
        String digits = new Random(31L * itemSuffix.hashCode() + items.size())
                .ints(random.length() - from, 0, 16)
                .mapToObj(Integer::toHexString)
                .collect(Collectors.joining());
        return random.substring(0, from) + digits;
    }

    private Item item(Kind kind, Buffer events) {
        if (items.isEmpty() || items.getLast().isClosed() || items.getLast().kind != kind) {
            close(COMPLETED, events);
            open(new Item(kind), events);
        }
        return items.getLast();
    }

    private void open(Item item, Buffer events) {
        items.add(item);
        item.open(events);
    }

    private void close(String end, Buffer events) {
        if (!items.isEmpty() && !items.getLast().isClosed()) {
            items.getLast().close(end, events);
        }
    }

    /** The events before all others. */
    private Buffer begun() {
        Buffer events = Buffer.buffer();
        if (sequence == 0 && head.request().stream()) {
            for (String type : List.of("created", RUNNING)) {
                send(events, begin(type).set("response", response(RUNNING, Optional.empty(), Optional.empty())));
            }
        }
        return events;
    }

    @Override
    public Buffer last(ReplyWriter.Tokens usage, Optional<JsonFields> kvTransferParams) {
        Buffer events = begun();
        ObjectNode response = response(status(), Optional.of(usage), kvTransferParams);
        send(events, begin(finish == FinishReason.STOP ? COMPLETED : INCOMPLETE).set("response", response));
        return events;
    }

    @Override
    public Buffer done() {
        return Buffer.buffer();
    }

    @Override
    public Buffer failure(ApiException error) {
        Buffer events = begun();
        ObjectNode response = response("failed", Optional.empty(), Optional.empty());
        response.putObject("error").put("code", "server_error").put("message", error.message());
        send(events, begin("failed").set("response", response));
        return events;
    }

    @Override
    public Buffer whole(
            List<ReplyWriter.Output> outputs, ReplyWriter.Tokens usage, Optional<JsonFields> kvTransferParams) {
        part(outputs.getFirst(), Optional.empty(), Optional.empty());
        return writer.json().document(out -> out.writeTree(response(status(), Optional.of(usage), kvTransferParams)));
    }

    private String status() {
        return switch (finish) {
            case LENGTH, CACHE_THRESHOLD -> INCOMPLETE;
            case ABORT -> "cancelled";
            case STOP, ERROR -> COMPLETED;
        };
    }

    private ObjectNode begin(String type) {
        return NODES.objectNode().put("type", "response." + type).put("sequence_number", sequence++);
    }

    private void send(Buffer events, ObjectNode event) {
        if (!head.request().stream()) {
            return;
        }
        events.appendString("event: " + event.path("type").asString() + "\n")
                .appendBuffer(writer.json().event(out -> out.writeTree(event)));
    }

    private ObjectNode response(
            String status, Optional<ReplyWriter.Tokens> tokens, Optional<JsonFields> kvTransferParams) {
        ApiRequest request = head.request();
        SamplingParams sampling = request.sampling();
        ObjectNode response = NODES.objectNode()
                .put("id", head.id())
                .put("object", "response")
                .put("created_at", head.created())
                .put("status", status)
                .putNull("error")
                .putNull("incomplete_details")
                .put("model", request.model());
        if (finish == FinishReason.LENGTH || finish == FinishReason.CACHE_THRESHOLD) {
            response.putObject("incomplete_details")
                    .put("reason", finish == FinishReason.LENGTH ? "max_output_tokens" : finish.wireName());
        }
        ArrayNode output = response.putArray("output");
        items.forEach(item -> output.add(item.shown()));
        response.setAll(request.repeated().toJson());
        response.put("temperature", sampling.temperature())
                .put("top_p", sampling.topP())
                .put("presence_penalty", sampling.presencePenalty())
                .put("frequency_penalty", sampling.frequencyPenalty())
                .put("background", false)
                .put("store", false)
                .putNull("previous_response_id");
        if (request.returnTokenIds() && tokens.isPresent()) {
            ArrayNode ids = response.putArray("prompt_token_ids");
            for (int id : request.prompts().getFirst().ids()) {
                ids.add(id);
            }
        }
        response.set(
                "kv_transfer_params",
                kvTransferParams.<JsonNode>map(JsonFields::toJson).orElseGet(NODES::nullNode));
        // The last one: a router looks for it in the last bytes.
        response.set("usage", tokens.<JsonNode>map(ResponsesAnswer::usage).orElseGet(NODES::nullNode));
        return response;
    }

    private static ObjectNode usage(ReplyWriter.Tokens tokens) {
        Usage usage = tokens.usage();
        ObjectNode shown = NODES.objectNode().put("input_tokens", usage.promptTokens());
        shown.putObject("input_tokens_details")
                .put("cached_tokens", usage.cachedTokens())
                .put("cache_write_tokens", 0);
        shown.put("output_tokens", usage.outputTokens());
        shown.putObject("output_tokens_details")
                .put("reasoning_tokens", tokens.reasoning().orElse(0));
        return shown.put("total_tokens", usage.promptTokens() + usage.outputTokens());
    }
}
