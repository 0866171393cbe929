"""A worker of vLLM 0.33's MooncakeConnector, as decode rank and as prefill rank, with blocks of tiny-ledger in plain memory.

Messages, layouts and accounting are vLLM's; Mooncake's engine moves the bytes. Takes a line of JSON and answers with one:
{"pull": transfer id, "registry": URL, "blocks": [...]}, {"offer": transfer id, "blocks": [...]}, {"forget": true}.
"""

import asyncio
import json
import os
import queue
import secrets
import sys
import urllib.request
from collections import Counter, OrderedDict
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import msgspec
import numpy as np
import torch
import zmq.asyncio
from mooncake.engine import TransferEngine
from vllm.distributed.kv_transfer.kv_connector.utils import TransferTopology
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake import mooncake_connector as vllm
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_utils import (
    MooncakeBootstrapServer,
    RegisterWorkerPayload,
)
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.stats import MooncakeKVConnectorStats
from vllm.v1.kv_cache_interface import FullAttentionSpec

HOST = "127.0.0.1"
LAYERS, HEADS, DIM, BLOCK, BLOCKS = 6, 4, 32, 16, 256
LAYER_BYTES = HEADS * BLOCK * 2 * DIM * 4
BLOCK_BYTES = LAYERS * LAYER_BYTES
NAMES = [f"model.layers.{i}.self_attn.attn" for i in range(LAYERS)]
REGISTRY = int(sys.argv[1])


def worker():
    """Has the fields that the constructor and register_kv_caches would fill in, which need a GPU."""
    made = object.__new__(vllm.MooncakeConnectorWorker)
    memory = np.zeros(BLOCKS * BLOCK_BYTES, dtype=np.uint8)
    base = memory.ctypes.data
    engine = TransferEngine()
    assert engine.initialize(HOST, "P2PHANDSHAKE", "tcp", "") == 0
    assert engine.register_memory(base, memory.nbytes) == 0
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=HEADS, head_size=DIM, dtype=torch.float32)
    group = SimpleNamespace(kv_cache_spec=spec, layer_names=NAMES)
    made.__dict__.update(
        memory=memory,
        engine=engine,
        engine_id="vllm",
        hostname=HOST,
        rpc_port=engine.get_rpc_port(),
        is_kv_producer=False,
        is_kv_consumer=False,
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        use_mla=False,
        kv_caches_base_addr=[base + i * LAYER_BYTES for i in range(LAYERS)],
        block_len_per_layer=[BLOCK_BYTES] * LAYERS,
        kv_block_len_per_layer=[LAYER_BYTES] * LAYERS,
        registered_layer_names=NAMES,
        registered_layer_indices=list(range(LAYERS)),
        registered_group_indices=[0] * LAYERS,
        region_shared_groups=[(0,)] * LAYERS,
        region_row_offsets=[-1] * LAYERS,
        opaque_packed_storages=set(),
        kv_cache_config=SimpleNamespace(has_mamba_layers=False, transfer_groups=[group]),
        transfer_topo=TransferTopology(0, 1, BLOCK, "vllm", False, False, HEADS, []),
        reqs_need_send={},
        finished_sending_reqs=set(),
        finished_recving_reqs=set(),
        xfer_stats=MooncakeKVConnectorStats(),
        async_zmq_ctx=zmq.asyncio.Context(),
        sender_loop=asyncio.get_running_loop(),
        _encoder=msgspec.msgpack.Encoder(),
        _xfer_resp_decoder=msgspec.msgpack.Decoder(vllm.MooncakeXferResponse),
        _layer_specs=dict.fromkeys(NAMES, spec),
        _physical_blocks_per_logical_kv_block=1,
        _prepared_transfer_regions={},
        _layout_by_peer=OrderedDict(),
        _kv_layout_id=secrets.randbits(63) | 1,
        _acked_layout_peers=set(),
        _is_hma_required=False,
        _invalid_block_ids=queue.Queue(),
        _sender_executor=ThreadPoolExecutor(2),
    )
    return made


async def listen(rank, socket, counts):
    while True:
        identity, message = await socket.recv_multipart()
        request = msgspec.msgpack.decode(message, type=vllm.MooncakeXferMetadata)
        counts["asked with regions" if request.kv_caches_base_addr else "asked without"] += 1
        asyncio.create_task(rank.send_kv_to_decode(identity, socket, request))


async def pull(rank, task):
    with urllib.request.urlopen(task["registry"] + "/query", timeout=10) as answer:
        (engine,) = json.load(answer).values()
    for block in task["blocks"]:
        rank.memory[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES] = 0xAA
    request = vllm.PullReqMeta(
        "d", task["pull"], [task["blocks"]], engine["engine_id"], task["registry"], pull_tasks_count=1
    )
    rank.finished_recving_reqs.clear()
    await rank.receive_kv_from_single_worker(engine["worker_addr"]["0"]["0"], {"d": request})
    return "d" in rank.finished_recving_reqs and not request.failed


async def main():
    rank = worker()
    counts = Counter()
    build = rank._build_pull_metadata

    def counted(requests, *, include_layout):
        counts["pulled with regions" if include_layout else "pulled without"] += 1
        return build(requests, include_layout=include_layout)

    rank._build_pull_metadata = counted
    socket = rank.async_zmq_ctx.socket(zmq.ROUTER)
    port = socket.bind_to_random_port("tcp://" + HOST)
    listener = asyncio.create_task(listen(rank, socket, counts))
    server = MooncakeBootstrapServer(HOST, REGISTRY)
    server.start()
    own = RegisterWorkerPayload(engine_id="vllm", dp_rank=0, tp_rank=0, pp_rank=0, addr=f"tcp://{HOST}:{port}")
    body = own.model_dump_json().encode()
    register = urllib.request.Request(f"http://{HOST}:{REGISTRY}/register", body, {"Content-Type": "application/json"})
    await asyncio.to_thread(urllib.request.urlopen, register, timeout=10)
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        task = json.loads(line)
        received = await pull(rank, task) if "pull" in task else None
        if "offer" in task:
            ready = asyncio.Event()
            ready.set()
            rank.reqs_need_send[task["offer"]] = vllm.SendBlockMeta(
                task["offer"], task["offer"], [task["blocks"]], ready
            )
        if "forget" in task:
            # The prefill rank has no layout any more, and the decode rank another one that no peer has.
            rank._layout_by_peer.clear()
            rank._prepared_transfer_regions.clear()
            rank._kv_layout_id = secrets.randbits(63) | 1
        sent = sorted(rank.finished_sending_reqs)
        print("answer " + json.dumps({"received": received, "sent": sent, "counts": counts}), flush=True)
    listener.cancel()
    os._exit(0)


asyncio.run(main())
