"""LMCache's own code beside Baton: hashes of tokens, and objects read and written at remote stores.

Reads a JSON file: {"chunk_size", "tokens": [[..]..], "prompt": [..], "shape": {"layers", "heads", "head_size"}, "world_size",
"urls": [..], "ours": model, "theirs": model, "objects": directory}. Prints one JSON line that begins with "RESULT ".
"""

import asyncio
import hashlib
import json
import sys
import threading

import torch

from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.connector import CreateConnector
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
from lmcache.v1.token_database import ChunkedTokenDatabase

with open(sys.argv[1]) as file:
    asked = json.load(file)
chunk = asked["chunk_size"]
layers, heads, head_size = (asked["shape"][name] for name in ("layers", "heads", "head_size"))


def metadata(model, worker):
    return LMCacheMetadata(
        model,
        asked["world_size"],
        asked["world_size"],
        worker,
        worker,
        torch.bfloat16,
        (layers, 2, chunk, heads, head_size),
        chunk_size=chunk,
    )


def config(algorithm):
    return LMCacheEngineConfig.from_defaults(
        chunk_size=chunk, max_local_cpu_size=0.05, pre_caching_hash_algorithm=algorithm
    )


hashes = {}
for algorithm in ("builtin", "sha256", "sha256_cbor", "sha256_cbor_64bit"):
    database = ChunkedTokenDatabase(config(algorithm), metadata("m", 0))
    hashes[algorithm] = [
        [key.to_string() for _, _, key in database.process_tokens(tokens=tokens)] for tokens in asked["tokens"]
    ]

loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()


def run(coroutine):
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result(30)


stores = []
for url in asked["urls"]:
    read = []
    for worker in range(asked["world_size"]):
        own = config("sha256_cbor")
        ours = metadata(asked["ours"], worker)
        backend = LocalCPUBackend(own, ours)
        connector = CreateConnector(url, loop, backend, own, ours)
        for _, _, key in ChunkedTokenDatabase(own, ours).process_tokens(tokens=asked["prompt"]):
            there = run(connector.exists(key))
            found = run(connector.get(key)) if there else None
            read.append(
                None
                if found is None
                else [
                    key.to_string(),
                    list(found.get_shape()),
                    str(found.get_dtype()),
                    found.get_memory_format().name,
                    hashlib.sha256(bytes(found.byte_array)).hexdigest(),
                ]
            )
        theirs = metadata(asked["theirs"], worker)
        number = 0
        for _, _, key in ChunkedTokenDatabase(own, theirs).process_tokens(tokens=asked["prompt"]):
            shape = torch.Size([2, layers, chunk, heads * head_size])
            stored = backend.allocate(shape, torch.bfloat16, MemoryFormat.KV_2LTD)
            with open(f"{asked['objects']}/{worker}-{number}", "rb") as file:
                memoryview(stored.byte_array).cast("B")[:] = file.read()
            run(connector.put(key, stored))
            number += 1
        # The lm protocol has no reply to a put: a later question is answered after it.
        run(connector.exists(key))
    stores.append(read)

print("RESULT " + json.dumps({"hashes": hashes, "stores": stores}), flush=True)
