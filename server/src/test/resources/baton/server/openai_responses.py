"""Asks for responses by OpenAI's own client: python openai_responses.py BASE_URL MODEL. Prints the parsed responses, one JSON object a line."""

import json
import sys

from openai import OpenAI

client = OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
asked = {
    "model": sys.argv[2],
    "input": "Item 7?",
    "store": False,
    "tools": [{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": False}],
}


def shown(response):
    calls = [item.name + item.arguments for item in response.output if item.type == "function_call"]
    thoughts = [item.content[0].text for item in response.output if item.type == "reasoning"]
    print("case " + json.dumps({"status": response.status, "text": response.output_text, "calls": calls,
                                "reasoning": thoughts, "tokens": response.usage.output_tokens}))


shown(client.responses.create(**asked))
with client.responses.stream(**asked) as stream:
    for event in stream:
        pass
    shown(stream.get_final_response())
