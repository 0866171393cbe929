# Divides random outputs by vLLM's own parsers: python vllm_reasoning.py TOKENIZER_DIR COUNT SEED. Lines that begin with "case " are JSON.
import json
import random
import sys

from transformers import AutoTokenizer
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.parser.harmony_utils import get_encoding
from vllm.parser.harmony import HarmonyParser
from vllm.reasoning import ReasoningParserManager
from vllm.reasoning.gptoss_reasoning_parser import GptOssReasoningParser
from vllm.tool_parsers.gptoss_tool_parser import GptOssToolParser

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
tokenizer.add_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>"])
random.seed(int(sys.argv[3]))
request = ChatCompletionRequest(messages=[{"role": "user", "content": "x"}])

WORDS = ["Hm", " wait", "\n", "\n\n", " 1 < 2", " </", "<th", " Here", " Here is my", "so.", " {\"a\": 1}", " é", "Here's my response"]


def words():
    return "".join(random.choice(WORDS) for _ in range(random.randint(0, 6)))


def text(name):
    if name == "granite":
        begin = random.choice(["Here is my thought process:", "Here's my thought process:", "", "Here is"])
        end = random.choice(["Here is my response:", "Here's my response:"])
        return begin + words() + end + words()
    begin = random.choice(["<think>", "<think>\n", "", "\n"])
    return begin + words() + random.choice(["</think>", "</think>\n\n", ""]) + words()


for name in ["qwen3", "deepseek_r1", "granite"]:
    for _ in range(int(sys.argv[2])):
        output = text(name)
        parser = ReasoningParserManager.get_reasoning_parser(name)(tokenizer)
        reasoning, content = parser.extract_reasoning(output, request)
        print("case " + json.dumps({"parser": name, "text": output, "reasoning": reasoning, "content": content}))


class GptOss(HarmonyParser):
    reasoning_parser_cls = GptOssReasoningParser
    tool_parser_cls = GptOssToolParser


HEADERS = [
    "<|channel|>analysis<|message|>",
    "<|channel|>commentary<|message|>",
    "<|channel|>final<|message|>",
    "<|channel|>final <|constrain|>json<|message|>",
    "<|channel|>commentary to=functions.look_up <|constrain|>json<|message|>",
    "<|channel|>commentary to=functions.look_up json<|message|>",
    " to=functions.look_up<|channel|>commentary <|constrain|>json<|message|>",
    " to=functions.look_up<|channel|>analysis json<|message|>",
]
for _ in range(int(sys.argv[2])):
    messages = []
    for _ in range(random.randint(1, 4)):
        header = random.choice(HEADERS)
        body = "{}" if "to=" in header else "a" + words()
        messages.append(header + body)
    output = "<|end|><|start|>assistant".join(messages)
    ids = get_encoding().encode(output, allowed_special="all")
    reasoning, content, calls = GptOss(tokenizer).parse(output, request, True, ids)
    print("case " + json.dumps({"parser": "gpt_oss", "text": output, "reasoning": reasoning, "content": content,
                                "calls": [call.name + call.arguments for call in calls or []]}))
