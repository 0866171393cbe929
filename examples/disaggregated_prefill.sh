#!/usr/bin/env bash
# Starts a prefill server, a decode server and a router, waits until all are ready, and asks one question through the router.
#
#   examples/disaggregated_prefill.sh              PyNcclConnector, the model of this repository
#   MODEL=... KEEP=1 examples/disaggregated_prefill.sh     another model; goes on until it is interrupted
#
# MODEL, PREFILL_PORT, DECODE_PORT, ROUTER_PORT, KV_PORT and BATON (the command) can be set.
set -euo pipefail
home=$(cd "$(dirname "$0")/.." && pwd)
BATON=${BATON:-$home/baton}
MODEL=${MODEL:-$home/models/tiny-ledger}
PREFILL_PORT=${PREFILL_PORT:-8100}
DECODE_PORT=${DECODE_PORT:-8200}
ROUTER_PORT=${ROUTER_PORT:-8000}
KV_PORT=${KV_PORT:-14579}

pids=()
cleanup() {
  trap - EXIT
  [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
  wait
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# Arguments: role, rank, HTTP port.
serve() {
  $BATON serve "$MODEL" --port "$3" --kv-transfer-config '{
    "kv_connector": "PyNcclConnector", "kv_role": "'"$1"'", "kv_rank": '"$2"', "kv_parallel_size": 2,
    "kv_port": '"$KV_PORT"', "kv_buffer_size": "1e9", "kv_load_failure_policy": "recompute"}' &
  pids+=($!)
}

# Waits until http://127.0.0.1:$1/health answers 200, for two minutes at most, as long as all processes live.
wait_for() {
  for _ in $(seq 240); do
    if curl -sf --max-time 5 "http://127.0.0.1:$1/health" >/dev/null; then
      return
    fi
    for pid in "${pids[@]}"; do
      kill -0 "$pid" 2>/dev/null || { echo "a process has ended" >&2; exit 1; }
    done
    sleep 0.5
  done
  echo "port $1 is not ready in time" >&2
  exit 1
}

serve kv_producer 0 "$PREFILL_PORT"
serve kv_consumer 1 "$DECODE_PORT"
wait_for "$PREFILL_PORT"
wait_for "$DECODE_PORT"
$BATON route --port "$ROUTER_PORT" --prefill "http://127.0.0.1:$PREFILL_PORT" --decode "http://127.0.0.1:$DECODE_PORT" &
pids+=($!)
wait_for "$ROUTER_PORT"

curl -sf "http://127.0.0.1:$ROUTER_PORT/v1/completions" -H "Content-Type: application/json" \
  -d '{"prompt": "Once upon a time there was a miller", "max_tokens": 16, "temperature": 0}'
echo
echo "Where the decode server had the prompt from:"
curl -sf "http://127.0.0.1:$DECODE_PORT/metrics" | grep '^vllm:prompt_tokens_by_source_total'

if [ -n "${KEEP:-}" ]; then
  echo "Serving at http://127.0.0.1:$ROUTER_PORT until interrupted."
  wait
fi
