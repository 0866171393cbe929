"""Renders requests as vLLM does at /render, and writes each with the answer, one JSON object a line. Argument: the model's directory."""

import asyncio
import json
import logging
import sys

from vllm.config import DeviceConfig, ModelConfig, VllmConfig
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.models.protocol import BaseModelPath
from vllm.entrypoints.openai.models.serving import OpenAIModelRegistry
from vllm.entrypoints.scale_out.render.serving import ServingRender
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.renderers import renderer_from_config
from vllm.renderers.online_renderer import OnlineRenderer
from vllm.sampling_params import SamplingParams

OPTIONS = [
    {},
    {"temperature": 0, "max_tokens": 5},
    {"temperature": 1.0, "top_p": 0.5, "top_k": 7, "min_p": 0.1, "seed": 3, "max_tokens": 16},
    {"presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.25, "n": 3},
    {"stop": "x", "stop_token_ids": [7], "include_stop_str_in_output": True, "ignore_eos": True, "min_tokens": 2, "max_tokens": 9},
    {"stop": ["x", "y"], "skip_special_tokens": False, "logit_bias": {"5": 1.5}, "allowed_token_ids": [5, 6]},
    {"bad_words": ["no"], "prompt_logprobs": 2},
    {"stream": True, "stream_options": {"include_usage": True}, "cache_salt": "s", "priority": 3},
    {"truncate_prompt_tokens": 3, "max_tokens": 9},
    {"structured_outputs": {"regex": "a+"}},
    {"structured_outputs": {"json": {"type": "integer"}, "disable_any_whitespace": True}},
    {"response_format": {"type": "json_object"}},
    {"model": "other"},
]
COMPLETIONS = [{"prompt": "Item 7"}, {"prompt": [1, 2, 3]}, {"prompt": ["a", "b c"]}, {"prompt": [[4], [5, 6]], "add_special_tokens": False}]
CHATS = [{"messages": [{"role": "user", "content": "Item 7?"}]}, {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "a"}]}]}]


DEFAULTS = SamplingParams()
INTERNAL = ["output_kind", "skip_clone", "skip_reading_prefix_cache"]


def given(options):
    return options and {name: value for name, value in options.items() if value not in (None, False)}


def shown(answer):
    """Without values that are vLLM's defaults, which some versions of its libraries write, and parameters that no client sets."""
    fields = answer.model_dump(mode="json")
    params = {name: value for name, value in fields["sampling_params"].items() if name not in INTERNAL and value != getattr(DEFAULTS, name)}
    if "structured_outputs" in params:
        params["structured_outputs"] = given(params["structured_outputs"])
    return {**fields, "sampling_params": params, "stream_options": given(fields["stream_options"])}


async def main():
    logging.disable(logging.CRITICAL)
    model = ModelConfig(model=sys.argv[1], tokenizer=sys.argv[1], dtype="float32", generation_config="vllm")
    renderer = renderer_from_config(VllmConfig(model_config=model, device_config=DeviceConfig(device="cpu")))
    online = OnlineRenderer(
        model, renderer, request_logger=None, chat_template=None, chat_template_content_format="auto", trust_request_chat_template=False, enable_auto_tools=False
    )
    models = OpenAIModelRegistry(model, [BaseModelPath(name="tiny-ledger", model_path=sys.argv[1])])
    serving = ServingRender(models, online)
    for path, type, render, bodies in [
        ("/v1/completions/render", CompletionRequest, serving.render_completion_request, COMPLETIONS),
        ("/v1/chat/completions/render", ChatCompletionRequest, serving.render_chat_request, CHATS),
    ]:
        for body in bodies:
            for options in OPTIONS:
                asked = {**body, **options, "request_id": "r"}
                answer = await render(type.model_validate(asked))
                line = {"path": path, "body": json.dumps(asked)}
                if isinstance(answer, ErrorResponse):
                    line["error"] = answer.error.code
                else:
                    line["answer"] = [shown(each) for each in answer] if isinstance(answer, list) else shown(answer)
                print("case " + json.dumps(line))


asyncio.run(main())
