"""Makes chat requests and writes each with the token ids that vLLM's renderer has for it, one JSON object a line.

Arguments: the model's directory, a number of random requests for each template, a seed.
A request that vLLM refuses has its error. One with "lenient" may be answered even so, one with "strict" may be refused.
"""

import asyncio
import json
import logging
import pathlib
import random
import sys

import vllm
from vllm.config import DeviceConfig, ModelConfig, VllmConfig
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.renderers import renderer_from_config
from vllm.renderers.online_renderer import OnlineRenderer

# Templates, in the manner of some well-known models. None is the model's own.
DUMP = "{{ messages | tojson }}|{{ tools | tojson }}|{{ documents | tojson }}|{{ add_generation_prompt }}"
VARIABLES = (
    "{% for m in messages %}{{ m.role }}{% endfor %}{{ reasoning_effort is defined }}{{ reasoning_effort }}"
    "|{{ enable_thinking is defined }}{{ enable_thinking }}|{{ mood is defined }}{{ mood }}"
    "|{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ unk_token is defined }}|{{ padding is defined }}{{ chat_template is defined }}"
    "|{{ documents }}|{{ tools }}|{{ add_generation_prompt }}"
)
TEMPLATES = {
    "own": None,
    "dump": DUMP,
    "dump of parts": DUMP + "{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}",
    "dump with developer": DUMP + "{% if messages[0].role == 'developer' %}!{% endif %}",
    "variables": VARIABLES,
    "chatml": "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "hermes": """{{- bos_token }}
{%- if tools %}<tools> {% for tool in tools %}{{ tool | tojson }}
{% endfor %}</tools>{% endif %}
{%- for message in messages %}
  {%- if message.role == "assistant" and message.tool_calls is defined %}
    {{- '<|im_start|>' + message.role }}
    {%- if message.content %}{{ '\n' + message.content }}{% endif %}
    {%- for tool_call in message.tool_calls %}
      {{- '\n<tool_call>\n' }}
      {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
      {{- '{"name": "' + tool_call.name + '", "arguments": ' + (tool_call.arguments | tojson) + '}\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
  {%- elif message.role == "tool" %}
    {%- if loop.previtem and loop.previtem.role != "tool" %}{{- '<|im_start|>tool\n' }}{%- endif %}
    {{- '<tool_response>\n' + message.content }}
    {%- if not loop.last %}{{- '\n</tool_response>\n' }}{%- else %}{{- '\n</tool_response>' }}{%- endif %}
    {%- if not loop.last and loop.nextitem.role != "tool" %}{{- '<|im_end|>' }}{%- elif loop.last %}{{- '<|im_end|>' }}{%- endif %}
  {%- else %}
    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
""",
    "llama 3": """{{- bos_token }}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
  {%- set system_message = messages[0]['content'] | trim %}
  {%- set messages = messages[1:] %}
{%- else %}{%- set system_message = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" + system_message + "<|eot_id|>" }}
{%- if tools is not none %}
  {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\n\n" }}{%- endfor %}
{%- endif %}
{%- for message in messages %}
  {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
  {%- elif 'tool_calls' in message %}
    {%- if not message.tool_calls | length == 1 %}{{- raise_exception("This model only supports single tool-calls at once!") }}{%- endif %}
    {%- set tool_call = message.tool_calls[0].function %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
    {{- '{"name": "' + tool_call.name + '", "parameters": ' }}{{- tool_call.arguments | tojson }}{{- "}<|eot_id|>" }}
  {%- elif message.role == "tool" or message.role == "ipython" %}
    {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
    {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}
    {{- "<|eot_id|>" }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}
""",
    "mistral": """{%- if messages[0]["role"] == "system" %}{%- set system_message = messages[0]["content"] %}{%- set loop_messages = messages[1:] %}
{%- else %}{%- set loop_messages = messages %}{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
  {%- if message["role"] == "user" %}
    {%- if tools is not none and loop.last %}{{- "[AVAILABLE_TOOLS] " + (tools | tojson) + "[/AVAILABLE_TOOLS]" }}{%- endif %}
    {%- if loop.last and system_message is defined %}{{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
    {%- else %}{{- "[INST] " + message["content"] + "[/INST]" }}{%- endif %}
  {%- elif message.tool_calls is defined and message.tool_calls is not none %}
    {{- "[TOOL_CALLS] [" }}
    {%- for tool_call in message.tool_calls %}
      {%- set out = tool_call.function | tojson %}
      {{- out[:-1] }}{{- ', "id": "' + tool_call.id + '"}' }}
      {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
    {%- endfor %}
  {%- elif message["role"] == "assistant" %}{{- " " + message["content"] | trim + eos_token }}
  {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
    {%- if message.content is defined and message.content.content is defined %}{%- set content = message.content.content %}
    {%- else %}{%- set content = message.content %}{%- endif %}
    {{- '[TOOL_RESULTS] {"content": ' + content | string + ", " + '"call_id": "' + message.tool_call_id | string + '"}[/TOOL_RESULTS]' }}
  {%- else %}{{- raise_exception("Only user and assistant roles are supported") }}{%- endif %}
{%- endfor %}
""",
    "qwen 3": """{%- if tools %}
  {{- '<|im_start|>system\n' }}
  {%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
  {%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}
{%- else %}
  {%- if messages[0].role == 'system' %}{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
  {%- set index = (messages|length - 1) - loop.index0 %}
  {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
    {%- set ns.multi_step_tool = false %}{%- set ns.last_query_index = index %}
  {%- endif %}
{%- endfor %}
{%- for message in messages %}
  {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
  {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
    {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
  {%- elif message.role == "assistant" %}
    {%- set reasoning_content = '' %}
    {%- if message.reasoning_content is string %}{%- set reasoning_content = message.reasoning_content %}
    {%- else %}
      {%- if '</think>' in content %}
        {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\n') %}
      {%- endif %}
    {%- endif %}
    {%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and reasoning_content)) %}
      {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
    {%- else %}{{- '<|im_start|>' + message.role + '\n' + content }}{%- endif %}
    {%- if message.tool_calls %}
      {%- for tool_call in message.tool_calls %}
        {%- if (loop.first and content) or (not loop.first) %}{{- '\n' }}{%- endif %}
        {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
        {{- '<tool_call>\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
        {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
        {{- '}\n</tool_call>' }}
      {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\n' }}
  {%- elif message.role == "tool" %}
    {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
    {{- '\n<tool_response>\n' }}{{- content }}{{- '\n</tool_response>' }}
    {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\n' }}{%- endif %}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|im_start|>assistant\n' }}
  {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}
""",
    "parts": """{% for message in messages %}<|{{ message.role }}|>
{%- if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}
{%- if part['type'] == 'text' %}{{ part['text'] }}{% elif part['type'] == 'tool_reference' %}@{{ part.name }}{% endif %}{% if part.cache_control is defined %}*{% endif %};
{%- endfor %}{% endif %}
{%- for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}<|end|>
{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}""",
    "macro of parts": """{% macro shown(value) %}{% for part in value %}({{ part.text }}){% endfor %}{% endmacro %}
{%- for message in messages %}{{ message.role }}:{{ shown(message.content) }}
{% endfor %}""",
}

# Templates before a dump of messages: how they are found to read contents, as strings or in parts.
READINGS = [
    "{% for m in messages %}{% for c in m['content'] %}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% for c in m.content | list %}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% for c in m.content[1:] %}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% for c in m.content if c %}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% for c in (m.content if m.content else []) %}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% for c in m.get('content') %}{% endfor %}{% endfor %}",
    "{% for m in messages[1:] %}{% for c in m.content %}{% endfor %}{% endfor %}",
    "{% for m in messages | list %}{% for c in m.content %}{% endfor %}{% endfor %}",
    "{% for m in messages if m %}{% for c in m.content %}{% endfor %}{% endfor %}",
    "{% for m in messages[0:] + [] %}{% for c in m.content %}{% endfor %}{% endfor %}",
    "{% set l = messages %}{% for m in l %}{% for c in m.content %}{% endfor %}{% endfor %}",
    "{% set l = messages %}{% set k = l[0:] %}{% for m in k %}{% for c in m.content %}{% endfor %}{% endfor %}",
    "{% set k = l %}{% set l = messages %}{% for m in k or [] %}{% for c in m.content %}{% endfor %}{% endfor %}",
    "{% set l = messages if true else [] %}{% for m in l %}{% for c in m.content %}{% endfor %}{% endfor %}",
    "{% set ns = namespace() %}{% set ns.l = messages %}{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}",
    "{% set ns = namespace() %}{% set ns.l = messages[0] %}{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% set content = m.content %}{% for c in content %}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% set text = m.content %}{% for c in text %}{% endfor %}{% endfor %}",
    "{% for c in messages[0].content %}{% endfor %}",
    "{% set m = messages[0] %}{% for c in m.content %}{% endfor %}",
    "{% for m in others or [] %}{% for c in m.content %}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% for c in m.parts or [] %}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% if m.content is not string %}{% for c in m.content %}{% endfor %}{% endif %}{% endfor %}",
    "{% for m in messages %}{% if false %}{% for c in m.content is string %}{% endfor %}{% endif %}{% endfor %}",
    "{% for m in messages %}{% if false %}{% for c in m.content is not string %}{% endfor %}{% endif %}{% endfor %}",
    "{% for m in messages %}{% endfor %}",
    "{% macro f(x) %}{% for c in x %}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(m.content) }}{% endfor %}",
    "{% macro f(x) %}{% for c in x %}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(x=m.content) }}{% endfor %}",
    "{% macro f(y, x) %}{% for c in x or [] %}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(m.content, []) }}{% endfor %}",
    "{% macro f(y, x) %}{% for c in y %}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(m.content, []) }}{% endfor %}",
    "{% macro f(content) %}{% for c in content %}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(m.name or []) }}{% endfor %}",
    "{% macro f(content) %}{% for c in content %}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(m.content) }}{% endfor %}",
    "{% macro f(x) %}{% macro g(y) %}{% for c in x %}{% endfor %}{% endmacro %}{{ g([]) }}{% endmacro %}{% for m in messages %}{{ f(m.content) }}{% endfor %}",
    "{% macro f(x) %}{% for c in x | list %}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(m.content) }}{% endfor %}",
    "{% macro f(x) %}{% for c in x %}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(m.content | list) }}{% endfor %}",
    "{% macro f(x) %}{{ caller() }}{% for c in x %}{% endfor %}{% endmacro %}{% for m in messages %}{% call f(m.content) %}{% endcall %}{% endfor %}",
    "{% generation %}{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}{% endgeneration %}",
    "{% filter upper %}{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}{% endfilter %}",
    "{% set x %}{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}{% endset %}",
    "{% with l = messages %}{% for m in l %}{% for c in m.content %}{% endfor %}{% endfor %}{% endwith %}",
    "{% if false %}{% for a, b in messages %}{% endfor %}{% endif %}{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% if false %}{% for a, b in m.content %}{% endfor %}{% endif %}{% for c in m.content %}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% for c in m.content %}{% endfor %}{% if false %}{% for a, b in m.content %}{% endfor %}{% endif %}{% endfor %}",
    "{% for content in [] %}{% for c in content %}{% endfor %}{% endfor %}",
]


def call(arguments, name="f", **more):
    return {"type": "function", "id": "abcdefghi", "function": {"name": name, "arguments": arguments}, **more}


TOOLS = [
    {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"b": {"type": "number"}, "a": {"enum": [1.0, "x", None, True]}}}}},
    {"function": {"parameters": {"z": [], "a": {}}, "name": "g"}},
    {"function": {"strict": False, "name": "h", "description": None, "extra": 1}, "type": "function", "extra": 2},
    {"function": {"name": "i"}, "defer_loading": True},
]
ARGUMENTS = ['{"b": 1, "a": [2.50, "é", null]}', '{"a": {"z": 1e3, "y": true}}', "{}", "", " ", "{", "null", "[1]", "5", '"x"', "{'a': 1}", '{"a": 1} x', '{"a": NaN}', '{"a": 12345678901234567890, "a": 2}', ' {"a" : "<&>" } ']
ARGUMENTS += ['{"a": 1E400, "b": -0.0, "c": 1e-7, "d": 1E5, "e": 1e16, "f": 123456789.123456789, "g": -12345678901234567890}', '{"a": -Infinity, "b": [], "c": {}}', '{"a": -NaN}', '{"a": +1}', '{"a": 01}', '{"a": .5}', '{"a": 1,}']
ARGUMENTS += [r'{"\u00e9\ud83d\ude00": "a\tb\u0000", "ключ": "😀"}', '{"a": "x\ny"}', "\ufeff{}", '"{\\"a\\": 1}"', "/* c */ {}", "true", "{}{}", "\u00a0{}", "\n{}\t", "[" * 50 + "]" * 50, '{"a": "\\x"}', '{"a": [1, [2, [3, {"b": "c"}]]]}']
CALLS = [[call(a)] for a in ARGUMENTS] + [
    [],
    None,
    [call("{}", extra=1), call('{"a": 1}', "g")],
    [{"function": {"extra": 1, "name": "f", "arguments": '{"q": 1}'}, "type": "function", "id": "1"}],
]
CONTENTS = [
    "x",
    "",
    " two\nlines \n",
    "<|end|>",
    "\u00e9\U0001f600\u2028 \x00\ufeff<|assistant|>{{ x }}",
    [],
    [{"type": "text", "text": "a"}],
    [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
    [{"type": "text", "text": ""}, {"type": "text", "text": " b "}, {"type": "text", "text": ""}],
    [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}, "more": [1]}],
    [{"type": "refusal", "refusal": "no"}, {"type": "text", "text": "b"}],
    [{"type": "thinking", "thinking": "hm", "closed": True}, {"type": "text", "text": "b"}],
    [{"type": "tool_reference", "name": "f"}, {"type": "text", "text": "b"}],
]
# Contents that vLLM takes in some roles only.
ODD_CONTENTS = [
    ["a", {"type": "text", "text": "b"}],
    ["a", ""],
    [{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}],
    [{"type": "refusal", "refusal": None}, {"type": "text", "text": "b"}],
    [{"type": "tool_reference"}, {"type": "text", "text": "b"}],
    [{"type": "text"}, {"type": "text", "text": "b"}],
    [{"type": "text", "text": None}],
    [{"type": "thinking"}, {"type": "text", "text": "b"}],
    None,
]


def messages(randomly):
    def content():
        return randomly.choice(CONTENTS)

    def user():
        return {"role": "user", "content": content()}

    def assistant():
        made = {"role": "assistant"}
        if randomly.random() < 0.8:
            made["content"] = content() if randomly.random() < 0.6 else None
        if randomly.random() < 0.4:
            made["tool_calls"] = randomly.choice(CALLS)
        if randomly.random() < 0.25:
            made["reasoning"] = randomly.choice(["why", "", None])
        if randomly.random() < 0.25:
            made["reasoning_content"] = randomly.choice(["because", "", None])
        if randomly.random() < 0.1:
            made["refusal"] = randomly.choice(["no", None])
        return made

    def tool():
        made = {"role": "tool", "content": content(), "tool_call_id": "abcdefghi"}
        if randomly.random() < 0.1:
            made.pop("tool_call_id")
        return made

    def system():
        return {"role": randomly.choice(["system", "developer"]), "content": content()}

    def other():
        made = randomly.choice([user, assistant, tool, system, lambda: {"role": randomly.choice(["ipython", "function", ""]), "content": content(), "name": "f"}])()
        if randomly.random() < 0.2:
            made["name"] = "n"
        if randomly.random() < 0.1:
            made["extra"] = {"a": 1}
        if randomly.random() < 0.1:
            made["task"] = randomly.choice(["t", None])
        if randomly.random() < 0.1:
            made.pop("content", None)
        if made["role"] == "developer" and randomly.random() < 0.5:
            made["tools"] = randomly.sample(TOOLS, 2)
        return made

    kind = randomly.random()
    if kind < 0.3:
        return [other() for _ in range(randomly.randint(1, 5))]
    made = [system()] if randomly.random() < 0.4 else []
    for _ in range(randomly.randint(1, 3)):
        made.append(user())
        while randomly.random() < 0.6:
            made.append(assistant())
            if made[-1].get("tool_calls"):
                made += [tool() for _ in made[-1]["tool_calls"]]
    if kind < 0.4:
        made.append(system())
    return made


def body(randomly):
    made = {"messages": messages(randomly)}
    if randomly.random() < 0.3:
        made["tools"] = randomly.sample(TOOLS, randomly.randint(1, 3))
    if randomly.random() < 0.3:
        made["tool_choice"] = "none"
    if randomly.random() < 0.25:
        made["reasoning_effort"] = randomly.choice(["none", "minimal", "low", "high", "max", None])
    if randomly.random() < 0.15:
        made["documents"] = randomly.choice([[], [{"title": "t", "text": "x"}], None])
    if randomly.random() < 0.25:
        made["chat_template_kwargs"] = randomly.choice(
            [{}, {"mood": "sad"}, {"mood": None}, {"mood": "auto"}, {"mood": [1, {"a": 1.5}]}, {"enable_thinking": False}, {"enable_thinking": True}, {"enable_thinking": None}]
            + [{"reasoning_effort": "huge"}, {"documents": [{"a": 1}]}, {"add_generation_prompt": False}, {"continue_final_message": True}, {"padding": True}, {"bos_token": "B"}]
            + [{"tools": []}, {"tools": [{"a": 1}]}, {"return_dict": True}]
        )
    kind = randomly.random()
    if kind < 0.2:
        made["add_generation_prompt"] = randomly.choice([True, False])
    elif kind < 0.5:
        made["continue_final_message"] = True
        made["add_generation_prompt"] = False
    return made


def fixed():
    hi = [{"role": "user", "content": "hi"}]
    for role in ["user", "assistant", "system", "developer", "tool", "function", "ipython"]:
        for each in CONTENTS + ODD_CONTENTS:
            for template in ["dump", "dump of parts"]:
                yield {"messages": [{"role": role, "content": each, "name": "f"}], "chat_template": TEMPLATES[template]}
        yield {"messages": [{"role": role}]}
        for unknown in [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}, {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]:
            yield {"messages": [{"role": role, "content": [unknown]}]}
        for unknown in [{"type": "file", "file": {"file_data": "x"}}, {"type": "what"}, {"text": "x"}, {"type": "text", "text": 5}, 5, ["x"], {}]:
            yield {"messages": [{"role": role, "content": [unknown]}]}
        for unknown in [5, True, {"type": "text", "text": "x"}]:
            yield {"messages": [{"role": role, "content": unknown}]}
        for name in [5, ["x"]]:
            yield {"messages": [{"role": role, "content": "x", "name": name}]}
        yield {"messages": [{"role": role, "content": "x", "name": None}]}
    for calls in CALLS:
        for text in ["x", "", None]:
            for template in ["dump", "hermes", "mistral", "qwen 3"]:
                yield {"messages": [*hi, {"role": "assistant", "content": text, "tool_calls": calls}], "chat_template": TEMPLATES[template]}
    for calls in [[call(None)], [call({"a": 1})], [call([1])], [{"function": {"name": "f", "arguments": "{}"}}]]:
        yield {"messages": [{"role": "assistant", "content": "x", "tool_calls": calls}], "chat_template": DUMP}
    for calls in [[{"id": "1", "type": "custom", "custom": {"name": "f", "input": ""}}], ["x"], 5, "x", {"a": 1}, [{"id": "1", "type": "function"}]]:
        yield {"messages": [{"role": "assistant", "content": "x", "tool_calls": calls}], "chat_template": DUMP}
    for effort in ["none", "high", "huge", 5]:
        yield {"messages": hi, "reasoning_effort": effort, "chat_template": VARIABLES}
    for tools in [[], [{}], [{"function": {}}], [{"type": "x", "function": {"name": "f"}}], ["x"], [{"function": {"name": "f", "parameters": []}}], [{"function": {"name": "f", "description": 5}}]]:
        yield {"messages": hi, "tools": tools, "chat_template": DUMP}
    for kwargs in [{"messages": []}, {"conversation": []}, {"tools": "x"}, {"tools": ["x"]}, {"documents": ["x"]}, {"chat_template": "T"}, {"chat_template": None}]:
        yield {"messages": hi, "chat_template_kwargs": kwargs}
    for name in ["range", "namespace", "raise_exception", "strftime_now", "loop", "dict", "true", "none", "messages_", "eos_token", "x y", ""]:
        yield {"messages": hi, "chat_template_kwargs": {name: 7}, "chat_template": "{{ " + (name if name.isidentifier() else "eos_token") + " is number }}"}
    for documents in [[{"a": 1}], ["x"], {}]:
        yield {"messages": hi, "documents": documents}
    for options in [{"continue_final_message": True}, {"continue_final_message": True, "add_generation_prompt": True}, {"chat_template": ""}]:
        yield {"messages": hi, **options}
    for bad in [[], ["x"], {}, [{"content": "x"}], [{"role": 5, "content": "x"}], [{"role": None, "content": "x"}]]:
        yield {"messages": bad}
    header = "x-anthropic-billing-header: v=1"
    for each in [header, header + "\nx", header + "\n", [{"type": "text", "text": header}, {"type": "text", "text": "x"}], [{"type": "text", "text": header + "\nx\ny"}]]:
        for role in ["system", "developer", "user"]:
            yield {"messages": [{"role": role, "content": each}, *hi], "chat_template": TEMPLATES["dump of parts"]}
            yield {"messages": [{"role": role, "content": each}, *hi], "chat_template": DUMP}
    systems = [{"role": "system", "content": "s"}, {"role": "developer", "content": "d", "name": "n"}, {"role": "system", "content": ""}, {"role": "developer", "content": [{"type": "text", "text": "p"}, {"type": "text", "text": "q"}]}]
    for template in ["dump", "dump of parts", "dump with developer", "own"]:
        for first in systems:
            for second in systems:
                for some in [[first, second, *hi], [*hi, first, *hi, second], [first, *hi], [*hi, first]]:
                    yield {"messages": some, "chat_template": TEMPLATES[template]}
    for template in READINGS:
        for role in ["user", "tool"]:
            yield {"messages": [{"role": role, "content": "x"}, {"role": role, "content": [{"type": "text", "text": "a"}, {"type": "text", "text": ""}]}], "chat_template": template + DUMP}
    ends = ["]", "x", " x ", "x\u00a0", "x\u2003\n", "\x1cx\x1f", "assistant", "CONTINUE_FINAL_MESSAGE_TAG ", "", "\n", [{"type": "text", "text": "x"}, {"type": "text", "text": "] "}], [{"type": "text", "text": "x"}, {"type": "tool_reference", "name": "f"}], []]
    shown = ["[{{ m.content | trim }}]", "[{{ m.content }}]", "[{{ m.content | upper }}]", "[{{ m.content | trim }} ]", "[{{ m.content }}{{ m.content }}]", "[{{ m['con' ~ 'tent'] }}]", "[{% for c in m.content %}{{ c.text | trim }},{% endfor %}]", "{{ m | tojson }}"]
    for end in ends:
        for template in shown:
            yield {"messages": [*hi, {"role": "assistant", "content": end}], "chat_template": "{% for m in messages %}" + template + "{% endfor %}]x", "continue_final_message": True, "add_generation_prompt": False}


def is_plain(body):
    """Whether it may be answered although vLLM refuses it: its request classes take some shapes in some roles and combinations only."""
    for message in body["messages"]:
        if not isinstance(message, dict):
            continue
        if "name" in message and message["name"] is None or message.get("role") == "assistant" and message.get("content", "") is None:
            return True
        if message.get("role") == "developer" and "tools" in message:
            return True
        calls = message.get("tool_calls")
        for each in calls if isinstance(calls, list) else []:
            function = each.get("function") if isinstance(each, dict) else None
            if isinstance(function, dict) and not ("id" in each and "type" in each and isinstance(function.get("arguments"), str)):
                return True
        content = message.get("content")
        for part in content if isinstance(content, list) else []:
            if isinstance(part, str) or isinstance(part, dict) and part.get("type") in ("input_text", "output_text", "refusal", "tool_reference"):
                return True
    return False


def lacks_text(body):
    """Whether a part has no text, which vLLM passes over or refuses, depending on the other fields of the message."""
    contents = [each.get("content") for each in body["messages"] if isinstance(each, dict)]
    parts = [part for each in contents if isinstance(each, list) for part in each if isinstance(part, dict)]
    return any(part.get("type") in ("text", "thinking") and part.get(part["type"]) is None for part in parts)


def requests(count, seed):
    yield from fixed()
    directory = pathlib.Path(vllm.__file__).parent / "transformers_utils" / "chat_templates"
    templates = list(TEMPLATES.values()) + [each.read_text() for each in sorted(directory.glob("*.jinja"))]
    randomly = random.Random(seed)
    for template in templates:
        for _ in range(count):
            yield {**body(randomly), "chat_template": template}


async def main():
    logging.disable(logging.CRITICAL)
    model = ModelConfig(model=sys.argv[1], tokenizer=sys.argv[1], dtype="float32")
    renderer = renderer_from_config(VllmConfig(model_config=model, device_config=DeviceConfig(device="cpu")))
    online = OnlineRenderer(
        model,
        renderer,
        request_logger=None,
        chat_template=None,
        chat_template_content_format="auto",
        trust_request_chat_template=True,
        enable_auto_tools=True,
        tool_parser="hermes",
    )
    for each in requests(int(sys.argv[2]), int(sys.argv[3])):
        line = {"body": json.dumps(each), "lenient": is_plain(each), "strict": lacks_text(each)}
        try:
            answer = await online.render_chat(ChatCompletionRequest.model_validate(json.loads(line["body"])))
            if isinstance(answer, ErrorResponse):
                line["error"] = answer.error.message
            else:
                line["ids"] = list(answer[1][0]["prompt_token_ids"])
        except Exception as e:
            line["error"] = f"{type(e).__name__}: {e}"[:300]
        print("case " + json.dumps(line))


asyncio.run(main())
