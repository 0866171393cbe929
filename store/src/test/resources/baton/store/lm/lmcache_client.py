"""Puts, finds and gets values by LMCache's own connector of the lm protocol. Prints a line for each step, which the test compares."""

import asyncio
import sys
import threading
from types import SimpleNamespace

import torch
from lmcache.utils import parse_cache_key
from lmcache.v1.memory_allocators.ad_hoc_memory_allocator import AdHocMemoryAllocator
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.storage_backend.connector.lm_connector import LMCServerConnector

SHAPE = torch.Size([2, 4, 256, 64])


class LocalBackend:
    """What the connector needs of LMCache's backend in memory."""

    def __init__(self):
        self.config = SimpleNamespace(extra_config=None, use_layerwise=False)
        self.metadata = SimpleNamespace(
            get_shapes=lambda: [SHAPE],
            get_dtypes=lambda: [torch.bfloat16],
            get_num_groups=lambda: 1,
            use_mla=False,
            chunk_size=256,
        )
        self.allocator = AdHocMemoryAllocator()

    def allocate(self, shapes, dtypes, fmt):
        return self.allocator.allocate(shapes, dtypes, fmt)


def chunk(backend, seed, tokens):
    value = backend.allocate(torch.Size([2, 4, tokens, 64]), torch.bfloat16, MemoryFormat.KV_2LTD)
    generator = torch.Generator().manual_seed(seed)
    value.raw_data.copy_(torch.randint(0, 256, value.raw_data.shape, dtype=torch.uint8, generator=generator))
    return value


def main(host, port):
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    backend = LocalBackend()
    connector = LMCServerConnector(host, int(port), loop, backend)

    def run(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(20)

    keys = [parse_cache_key(f"org/model@1@0@{hash_}@bfloat16") for hash_ in ("1234", "-1a6e12a9bdb7fd70", "b8a960cfcc69e7a5")]
    values = [chunk(backend, seed, tokens) for seed, tokens in enumerate((256, 256, 100))]
    print("before", [run(connector.exists(key)) for key in keys])
    print("miss", run(connector.get(keys[0])))
    for key, value in zip(keys, values):
        run(connector.put(key, value))
    print("after", [run(connector.exists(key)) for key in keys])
    for key, value in zip(keys, values):
        got = run(connector.get(key))
        print(
            "got",
            key.to_string(),
            list(got.get_shape()),
            got.get_dtype(),
            got.get_memory_format().name,
            torch.equal(got.raw_data, value.raw_data),
        )
    theirs = run(connector.get(parse_cache_key("java@1@0@77@half")))
    print("theirs", list(theirs.get_shape()), theirs.get_dtype(), bytes(theirs.byte_array[:4]).hex())
    run(connector.close())
    print("end")


main(*sys.argv[1:])
