"""One side of hand-overs by SGLang's own classes for Mooncake, without its engine: MooncakeKVManager with MooncakeKVSender or MooncakeKVReceiver.

python sglang_peer.py prefill|decode HOST BOOTSTRAP_PORT LAYERS HEADS HEAD_DIM PAGE_SIZE PAGES

SGLang's packages are on PYTHONPATH. A line of the input is a request as JSON, a line of the output its end. Files have the fp32 values of a prompt: keys
of all layers, then values of all layers, each in the order of pages.

prefill: {"room", "pages": how many, "token": of the output, "file": to be sent}
decode: {"room", "bootstrap": "host:port", "pages", "prefix": tokens in front of them, "file": to be written}; with "abort": true it gives up at once
"""

import json
import os
import sys
import time
from types import SimpleNamespace

os.environ["MC_FORCE_TCP"] = "1"
os.environ["MOONCAKE_PROTOCOL"] = "tcp"

import numpy as np
import torch

from sglang.srt.disaggregation.base.conn import KVArgs, KVPoll
from sglang.srt.disaggregation.common import conn as common
from sglang.srt.disaggregation.mooncake import conn as mooncake
from sglang.srt.disaggregation.utils import DisaggregationMode, MetadataBuffers
from sglang.srt.distributed.device_communicators.mooncake_transfer_engine import MooncakeTransferEngine

role, host = sys.argv[1:3]
port, layers, heads, dim, page_size, pages = map(int, sys.argv[3:9])

parallel = SimpleNamespace(
    attn_tp_size=1, attn_tp_rank=0, attn_cp_size=1, attn_cp_rank=0, attn_dp_size=1, attn_dp_rank=0, attn_dcp_size=1,
    attn_dcp_rank=0, dp_size=1, num_dp_ranks=1, pp_size=1, pp_group=None, dist_init_addr=None, world_group=None,
    load_balance_method="follow_bootstrap_room", enable_kv_cache_sharding=False, enable_dsa_cache_layer_split=False,
    enable_cp_tp_group_sharing=False)
for module in (common, mooncake):
    module.get_parallel = lambda: parallel
    module.get_serving = lambda: SimpleNamespace(host=host, port=1)
    module.get_disagg = lambda: SimpleNamespace(
        disaggregation_bootstrap_port=port, disaggregation_decode_allocation_policy="early")
    module.get_observability = lambda: SimpleNamespace(enable_trace=False)
    module.linear_attn_tp_size = lambda: 1
    module.get_local_ip_auto = lambda: host
mooncake.get_spec = lambda: SimpleNamespace(speculative_algorithm=None)
mooncake.get_memory = lambda: SimpleNamespace(enable_unified_memory=False)
engine = MooncakeTransferEngine(host)
mooncake.get_mooncake_transfer_engine = lambda: engine

buffers = [torch.zeros((pages * page_size, heads, dim), dtype=torch.float32) for _ in range(2 * layers)]
item = page_size * heads * dim * 4
rows = MetadataBuffers(16, 16, torch.float32, max_sampling_mask_tokens=0)

args = KVArgs()
args.engine_rank = args.pp_rank = args.gpu_id = args.system_dp_rank = args.prefill_start_layer = 0
args.prefill_end_layer = layers
args.kv_data_ptrs = [buffer.data_ptr() for buffer in buffers]
args.kv_data_lens = [buffer.nbytes for buffer in buffers]
args.kv_item_lens = [item] * len(buffers)
args.kv_layer_ids = []
args.kv_cache_dtype_str = "auto"
args.aux_data_ptrs, args.aux_data_lens, args.aux_item_lens = rows.get_buf_infos()
args.state_types, args.state_data_ptrs, args.state_data_lens, args.state_item_lens = [], [], [], []
args.state_layer_ids, args.state_dim_per_tensor = [], []
args.is_hybrid_mla_backend = False
args.ib_device = ""
args.kv_head_num = args.total_kv_head_num = heads
args.page_size = page_size
args.rust_http_port = None
args.mla_compression_ratios = None

if role == "prefill":
    server = mooncake.MooncakeKVBootstrapServer(host, port)
    time.sleep(0.5)
manager = mooncake.MooncakeKVManager(
    args, DisaggregationMode.PREFILL if role == "prefill" else DisaggregationMode.DECODE,
    SimpleNamespace(enable_pd_role_switch=False))


def say(**what):
    print(json.dumps(what), flush=True)


def poll(of, wanted):
    end = time.time() + 30
    while time.time() < end:
        status = of.poll()
        if status in (wanted, KVPoll.Failed):
            return status == wanted
        time.sleep(0.005)
    return False


def page(buffer, number):
    return buffer.view(-1)[number * item // 4:(number + 1) * item // 4]


def numbers_of(request):
    """Pages in an order of their own, with gaps."""
    return np.arange(2 * request["pages"] - 1, 0, -2, dtype=np.int32)


def send(request):
    numbers = numbers_of(request)
    parts = torch.from_numpy(np.fromfile(request["file"], dtype=np.float32)).view(2 * layers, len(numbers), item // 4)
    for buffer, of_buffer in zip(buffers, parts):
        for number, values in zip(numbers, of_buffer):
            page(buffer, int(number)).copy_(values)
    sender = mooncake.MooncakeKVSender(manager, f"{host}:{port}", request["room"])
    if not poll(sender, KVPoll.WaitingForInput):
        return say(room=request["room"], status="failed", why=manager.failure_records.get(request["room"], ""))
    row = 3
    rows.output_ids[row][0] = request["token"]
    rows.bootstrap_room[row][0] = request["room"]
    wanted = numbers[sender.pop_decode_prefix_len() // page_size:]
    sender.init(len(wanted), row)
    first = len(wanted) // 2
    if first:
        sender.send(wanted[:first])
    sender.send(wanted[first:])
    say(room=request["room"], status="success" if poll(sender, KVPoll.Success) else "failed")


def receive(request):
    if not manager.try_ensure_parallel_info(request["bootstrap"]):
        return say(room=request["room"], status="failed", why="no bootstrap server")
    numbers = numbers_of(request)
    row = 5
    rows.clear_slot(row)
    receiver = mooncake.MooncakeKVReceiver(manager, request["bootstrap"], request["room"])
    receiver.init(0)
    receiver.send_metadata(numbers, row, decode_prefix_len=request.get("prefix", 0))
    if request.get("abort"):
        receiver.abort()
        end = time.time() + 30
        while not manager.is_abort_release_safe(request["room"], 1) and time.time() < end:
            time.sleep(0.005)
        return say(room=request["room"], status="aborted", released=manager.is_abort_release_safe(request["room"], 1))
    success = poll(receiver, KVPoll.Success)
    parts = [page(buffer, int(number)) for buffer in buffers for number in numbers]
    torch.cat(parts).numpy().tofile(request["file"])
    say(room=request["room"], status="success" if success else "failed", token=int(rows.output_ids[row][0]),
        row_room=int(rows.bootstrap_room[row][0]), why=manager.failure_records.get(request["room"], ""))


say(status="ready")
for line in sys.stdin:
    (send if role == "prefill" else receive)(json.loads(line))
os._exit(0)
