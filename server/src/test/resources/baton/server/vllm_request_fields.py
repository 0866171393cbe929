"""Prints the fields of vLLM's requests over HTTP and of its sampling parameters, as JSON, for vllm-request-fields.json."""

import json

import vllm
from vllm.entrypoints.generate.base.protocol import StreamOptions
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest, TokenizeChatRequest, TokenizeCompletionRequest
from vllm.sampling_params import SamplingParams

REQUESTS = [
    CompletionRequest,
    ChatCompletionRequest,
    StreamOptions,
    TokenizeCompletionRequest,
    TokenizeChatRequest,
    DetokenizeRequest,
]

fields = {"vllm": vllm.__version__.split("+")[0]}
fields.update({request.__name__: sorted(request.model_fields) for request in REQUESTS})
fields["SamplingParams"] = sorted(name for name in SamplingParams.__struct_fields__ if not name.startswith("_"))
print(json.dumps(fields, indent=1))
