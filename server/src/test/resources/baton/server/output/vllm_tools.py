"""Random answers with tool calls, as vLLM's own parsers read them: a line "case {...}" for each.

python vllm_tools.py MODEL COUNT SEED
"""

import json
import logging
import random
import sys

from transformers import AutoTokenizer

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.tool_parsers import ToolParserManager

logging.disable(logging.CRITICAL)
model, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
randomly = random.Random(seed)
PROPERTIES = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "on": {"type": "boolean"},
    "list": {"type": "array"},
    "object": {"type": "object"},
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": PROPERTIES}}}
    for name in ["f", "get_weather", "search2"]
]
MARKS = ["<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "<think>", "</think>"]


def tokenizer(marks):
    made = AutoTokenizer.from_pretrained(model)
    made.add_special_tokens({"additional_special_tokens": marks})
    return made


# A vocabulary without [ARGS] is that of an older Mistral.
NEW, OLD = tokenizer(MARKS), tokenizer([mark for mark in MARKS if mark != "[ARGS]"])


def text():
    return "".join(randomly.choice(["a", "é", " ", "it's", '"', "\\", "{", "}", "[1, 2]", "ü", "\n", "\U0001f600", ","]) for _ in range(randomly.randint(0, 6)))


def value(kind):
    match kind:
        case "text":
            return text()
        case "count":
            return randomly.randint(-5, 100000)
        case "on":
            return randomly.random() < 0.5
        case "list":
            return [randomly.choice([1, 2.5, "x]", None, True, {"a": [1]}]) for _ in range(randomly.randint(0, 3))]
    return {text(): randomly.choice([1, "}", {"b": None}]) for _ in range(randomly.randint(0, 2))}


def arguments():
    return {kind: value(kind) for kind in PROPERTIES if randomly.random() < 0.5}


def written(parser, calls):
    """The calls as a model of this parser writes them."""
    blank = randomly.choice(["", "\n"])
    dumped = [(name, json.dumps(given, ensure_ascii=False)) for name, given in calls]
    match parser:
        case "hermes":
            return blank.join(f'<tool_call>{blank}{{"name": "{name}", "arguments": {given}}}{blank}</tool_call>' for name, given in dumped)
        case "llama3_json":
            return randomly.choice(["", "<|python_tag|>"]) + "; ".join(f'{{"name": "{name}", "parameters": {given}}}' for name, given in dumped)
        case "mistral":
            return "".join(f"[TOOL_CALLS]{name}[ARGS]{given}" for name, given in dumped)
        case "mistral old":
            return "[TOOL_CALLS][" + ", ".join(f'{{"name": "{name}", "arguments": {given}}}' for name, given in dumped) + "]"
        case "phi4_mini_json":
            return "functools[" + ", ".join(f'{{"name": "{name}", "arguments": {given}}}' for name, given in dumped) + "]"
        case "pythonic":
            return "[" + ", ".join(name + "(" + ", ".join(f"{key}={each!r}" for key, each in given.items()) + ")" for name, given in calls) + "]"
        case "qwen3_coder":
            return "\n".join(
                f"<tool_call>\n<function={name}>\n"
                + "".join(
                    f"<parameter={key}>\n{each if isinstance(each, str) else json.dumps(each, ensure_ascii=False)}\n</parameter>\n"
                    for key, each in given.items()
                )
                + "</function>\n</tool_call>"
                for name, given in calls
            )


def streamed(make, tokens, whole, request):
    """What comes of the pieces of a stream, or nothing where vLLM's parser has no streams."""
    parser = make()
    ids = tokens.encode(whole, add_special_tokens=False)
    content, calls, before, at = "", {}, "", 0
    while at < len(ids):
        to = min(len(ids), at + randomly.randint(1, 4))
        now = tokens.decode(ids[:to], skip_special_tokens=False)
        if now.endswith("\ufffd") and to < len(ids):
            to += 1
            continue_at = to
            while tokens.decode(ids[:to], skip_special_tokens=False).endswith("\ufffd") and to < len(ids):
                to += 1
            now = tokens.decode(ids[:to], skip_special_tokens=False)
        delta = parser.extract_tool_calls_streaming(before, now, now[len(before):], ids[:at], ids[:to], ids[at:to], request)
        before, at = now, to
        if delta is not None:
            content += delta.content or ""
            for call in delta.tool_calls or []:
                made = calls.setdefault(call.index, ["", ""])
                made[0] += (call.function and call.function.name) or ""
                made[1] += (call.function and call.function.arguments) or ""
    return {"content": content, "calls": [calls[index] for index in sorted(calls)]}


def case(parser, whole):
    tokens = OLD if parser == "mistral old" else NEW
    name = parser.split()[0]
    request = ChatCompletionRequest.model_validate(
        {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": TOOLS, "chat_template_kwargs": {"enable_thinking": False}}
    )

    def make():
        kind = ToolParserManager.get_tool_parser(name)
        try:
            return kind(tokens, request.tools, chat_template_kwargs={"enable_thinking": False})
        except TypeError:
            return kind(tokens, request.tools)

    read = make().extract_tool_calls(whole, request)
    print(
        "case "
        + json.dumps(
            {
                "parser": name,
                "text": whole,
                "content": read.content or "",
                "calls": [[call.function.name, call.function.arguments] for call in read.tool_calls],
                "streamed": streamed(make, tokens, whole, request),
            }
        )
    )


for _ in range(count):
    for parser in ["hermes", "llama3_json", "mistral", "mistral old", "phi4_mini_json", "pythonic", "qwen3_coder"]:
        calls = [(randomly.choice(TOOLS)["function"]["name"], arguments()) for _ in range(randomly.randint(1, 3))]
        lead = randomly.choice(["", "", "Well.", "I look.\n"]) if parser in ("hermes", "mistral", "mistral old", "qwen3_coder") else ""
        case(parser, lead + written(parser, calls))
        case(parser, randomly.choice(["No calls.", "1 < 2 {a", "a [b] <tool", ""]))
