"""The standalone SGLang forward: no server, no scheduler, no LM head. The only file that imports sglang.

Written against one SGLang release, whose internals change with each; `load_engine` refuses any other and prepares a
machine without a GPU before this file is imported.
"""

import contextlib
import functools
import inspect
import json
import operator
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sglang.srt.batch_invariant_ops import disable_batch_invariant_mode
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.distributed.communication_op import tensor_model_parallel_all_gather
from sglang.srt.distributed.parallel_state import cleanup_dist_env_and_memory, get_tp_group
from sglang.srt.layers.moe import initialize_moe_config
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch
from sglang.srt.model_executor.model_runner import ModelRunner, ParallelState
from sglang.srt.model_loader.loader import DefaultModelLoader
from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import AttnForwardMethod
from sglang.srt.runtime_context import publish, reset_context
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from tasks.engine.architectures import Architecture, get_architecture
from tasks.engine.base import DTYPES, EngineOptions
from tasks.engine.cpu_blocks import replace_kernels
from tasks.engine.errors import EngineOutOfMemoryError, EngineStateError
from tasks.engine.models import read_model
from tasks.engine.weight_check import WeightCheck


class SGLangEngine:
    """One model, loaded as SGLang serves it, run one EXTEND batch at a time; see `Engine`.

    Raises:
        UnsupportedArchitectureError: the model is not in the table.
        ModelLoadError: the checkpoint did not fill the model.
    """

    def __init__(self, options: EngineOptions, rank: int, port: int) -> None:
        self.options = options
        self._info = read_model(options.model)
        self._architecture = get_architecture(self._info.architecture)
        self._tap = _StateTap()
        self._hooked: dict[object, torch.Tensor] = {}
        try:
            self._runner = _load_runner(options, self._architecture, rank, port)
            room = int(self._runner.max_total_num_tokens)  # less than was asked for where memory is short
            self.options = replace(options, max_batch_tokens=min(options.max_batch_tokens, room))
            self._install_capture()
        except BaseException:
            _leave_process_groups()
            raise

    def forward(self, sequences: Sequence[npt.NDArray[np.int32]]) -> torch.Tensor:
        """Run one packed forward; see `Engine.forward`."""
        num_tokens = sum(map(len, sequences))
        self._check_batch(sequences, num_tokens)
        try:
            with torch.inference_mode():
                final, between = self._extend(sequences)
                return self._gather(num_tokens, final, between)
        except torch.OutOfMemoryError as error:
            raise EngineOutOfMemoryError(
                f"a batch of {num_tokens} tokens in {len(sequences)} sequences does not fit the device ({error}); "
                "lower max_batch_tokens"
            ) from error
        finally:
            self._free_pools()

    def next_tokens(self, sequences: Sequence[npt.NDArray[np.int32]]) -> torch.Tensor:
        """Return the greedy next token after each sequence, by SGLang's own logits processor: int64[num_sequences]."""
        causal_lm = self._causal_lm
        causal_lm.logits_processor = self._logits_processor
        try:
            with torch.inference_mode():
                tokens: torch.Tensor = self._run(sequences).next_token_logits.argmax(-1)
                return tokens
        finally:
            causal_lm.logits_processor = self._tap
            self._free_pools()

    def read_out(self, final: torch.Tensor) -> torch.Tensor:
        """Return the LM head's logits over final states: float32[num_tokens, vocab_size]."""
        head = self._causal_lm.lm_head
        with torch.inference_mode():
            logits: torch.Tensor = self._logits_processor._compute_lm_head(  # noqa: SLF001
                final.to(head.weight.dtype), head
            )
            if self.options.tp_size > 1:  # each rank has the logits of its part of the vocabulary
                logits = tensor_model_parallel_all_gather(logits)
        return logits[:, : self._info.vocab_size].float()

    def close(self) -> None:
        """Free the model."""
        del self._runner
        _leave_process_groups()

    def _free_pools(self) -> None:
        self._hooked.clear()
        self._runner.req_to_token_pool.clear()
        self._runner.token_to_kv_pool_allocator.clear()

    def _check_batch(self, sequences: Sequence[npt.NDArray[np.int32]], num_tokens: int) -> None:
        limit = self.options.max_batch_tokens
        longest = max(map(len, sequences), default=0)
        if longest > self._info.context_length:
            raise EngineStateError(
                f"a sequence of {longest} tokens is over the {self._info.context_length} tokens up to which "
                f"{self._info.architecture} is computed right; make it shorter"
            )
        if num_tokens > limit or len(sequences) > self.options.max_sequences:
            raise EngineStateError(
                f"a batch of {num_tokens} tokens in {len(sequences)} sequences is over the engine's {limit} tokens in "
                f"{self.options.max_sequences} sequences; make smaller batches"
            )

    # -- capture ---------------------------------------------------------------------------------------------------

    @property
    def _causal_lm(self) -> Any:
        return _find_causal_lm(self._runner.model, self._architecture)

    def _install_capture(self) -> None:
        """Make the model hand out the streams of `options.layers`.

        SGLang's setters cover 1..L-1: on Llama layer 0 would add a residual that is still None, and hardly any captures
        L. Those two are taken by hooks on the first block and on the final norm, and all where the setter is wrong.
        """
        causal_lm, num_layers, setter = self._causal_lm, self._info.num_layers, self._architecture.setter
        body = causal_lm.model
        between = [int(layer) for layer in self.options.layers if layer not in {0, num_layers, "final"}]
        for block in body.layers:
            block._is_layer_to_capture = False  # noqa: SLF001 - the MoE setters only ever add to this mark
        if between and setter:
            getattr(causal_lm, setter)([layer - 1 for layer in between])
        for layer, module in enumerate([*body.layers, body.norm]):
            if layer in self.options.layers and not (setter and layer in between):
                module.register_forward_pre_hook(functools.partial(self._keep_stream, layer), with_kwargs=True)
        self._logits_processor = causal_lm.logits_processor
        causal_lm.logits_processor = self._tap
        if self.options.device == "cpu":
            replace_kernels(body.layers, self._architecture.on_cpu)
            if self._architecture.mla:
                _force_mla(body.layers)

    def _keep_stream(self, layer: int, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the stream that enters a block or the final norm: its input and the residual not yet added to it."""
        if layer == self._info.num_layers:
            hidden, residual = args[0], args[1] if len(args) > 1 else None
        else:
            given = inspect.signature(module.forward).bind(*args, **kwargs).arguments
            hidden, residual = given["hidden_states"], given.get("residual")
        # A copy either way: the fused add-and-norm kernels write into both of their inputs.
        self._hooked[layer] = hidden.clone() if residual is None else hidden + residual

    def _gather(self, num_tokens: int, final: torch.Tensor, between: Sequence[torch.Tensor]) -> torch.Tensor:
        """Put the captured streams into one tensor, in the order of `options.layers`."""
        rest = iter(between)
        captured = [
            final if layer == "final" else self._hooked[layer] if layer in self._hooked else next(rest, None)
            for layer in self.options.layers
        ]
        shape = (num_tokens, len(captured), self._info.hidden_size)
        states = torch.empty(shape, dtype=DTYPES[self.options.output_dtype], device=final.device)
        for slot, (layer, stream) in enumerate(zip(self.options.layers, captured, strict=True)):
            if stream is None or tuple(stream.shape) != (num_tokens, self._info.hidden_size):
                got = None if stream is None else tuple(stream.shape)
                raise EngineStateError(f"layer {layer} gave {got}, expected {(num_tokens, self._info.hidden_size)}")
            states[:, slot].copy_(stream)
        return states

    # -- one EXTEND batch --------------------------------------------------------------------------------------------

    def _extend(self, sequences: Sequence[npt.NDArray[np.int32]]) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """Run the batch; returns (final: [num_tokens, hidden_size], the streams that SGLang's setter captured)."""
        final, between = self._run(sequences)
        if isinstance(between, torch.Tensor):
            between = torch.split(between, self._info.hidden_size, dim=-1)
        return final, between or ()

    def _run(self, sequences: Sequence[npt.NDArray[np.int32]]) -> Any:
        """Run the batch; returns what the logits processor makes of it."""
        forward_batch = ForwardBatch.init_new(
            self._make_batch(sequences),
            self._runner,
            capture_hidden_mode=CaptureHiddenMode.FULL,
            return_hidden_states_before_norm=False,
        )
        return self._runner.forward(forward_batch).logits_output

    def _make_batch(self, sequences: Sequence[npt.NDArray[np.int32]]) -> Any:
        runner = self._runner
        batch = ScheduleBatch.init_new(
            reqs=[_make_request(str(index), ids) for index, ids in enumerate(sequences)],
            req_to_token_pool=runner.req_to_token_pool,
            token_to_kv_pool_allocator=runner.token_to_kv_pool_allocator,
            tree_cache=_NoPrefixCache(
                page_size=runner.server_args.page_size,
                device=runner.device,
                token_to_kv_pool_allocator=runner.token_to_kv_pool_allocator,
            ),
            model_config=runner.model_config,
            enable_overlap=False,
            spec_algorithm=SpeculativeAlgorithm.NONE,
        )
        batch.prepare_for_extend()
        if batch.input_ids is None:
            batch.input_ids = batch.prefill_input_ids_cpu.to(batch.device, non_blocking=True)
            batch.prefill_input_ids_cpu = None
        return batch


def meet_ranks(seconds: float) -> None:
    """Wait until all ranks of the engine in this process are here, none of them in a collective operation.

    Raises:
        RuntimeError: some did not come within `seconds`.
    """
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    torch.distributed.monitored_barrier(get_tp_group().cpu_group, timedelta(seconds=seconds))


def _leave_process_groups() -> None:
    """Undo what SGLang keeps for the whole process, so that another engine can start in it."""
    disable_batch_invariant_mode()
    cleanup_dist_env_and_memory()
    reset_context()


class _StateTap(torch.nn.Module):
    """Stands where the logits processor was and hands the states through, so that no LM head is computed."""

    def forward(
        self,
        _input_ids: torch.Tensor,
        hidden_states: torch.Tensor,
        _lm_head: torch.nn.Module,
        _forward_batch: Any,
        aux_hidden_states: Any = None,
        *_: Any,
        **__: Any,
    ) -> tuple[torch.Tensor, Any]:
        return hidden_states, aux_hidden_states


class _NoPrefixCache(SimpleNamespace):
    """The least of a tree cache that `ScheduleBatch` asks for: no prefix is ever shared."""

    def supports_swa(self) -> bool:
        return False

    def supports_mamba(self) -> bool:
        return False

    def supports_prefix_sharing(self) -> bool:
        return False

    def is_chunk_cache(self) -> bool:
        return False

    def is_tree_cache(self) -> bool:
        return True

    def evict(self, _params: Any) -> None:
        """Nothing is cached."""

    def maybe_hand_to_session(self, _req: Any) -> None:
        """There are no sessions."""


def _make_request(rid: str, input_ids: npt.NDArray[np.int32]) -> Any:
    request = Req(
        rid=rid,
        origin_input_text="",
        origin_input_ids=array("q", input_ids.astype(np.int64).tobytes()),
        sampling_params=SamplingParams(temperature=0, max_new_tokens=1),
    )
    request.full_untruncated_fill_ids = request.origin_input_ids
    request.logprob_start_len = -1
    request.set_extend_range(0, len(input_ids))
    return request


def _load_runner(options: EngineOptions, architecture: Architecture, rank: int, port: int) -> Any:
    """Load weights and pools as SGLang's own `benchmark/one_batch.py` does; the ranks meet at a loopback port."""
    server_args = _server_args(options, architecture)
    publish(server_args, role="scheduler")
    initialize_moe_config(server_args)
    with _checked_loading(options, architecture):
        runner = ModelRunner(
            model_config=ModelConfig.from_server_args(server_args),
            mem_fraction_static=server_args.mem_fraction_static,
            gpu_id=rank,
            ps=_parallel_state(rank, options.tp_size, options.ep_size),
            nccl_port=port,
            server_args=server_args,
        )
    runner.alloc_memory_pool()
    runner.init_attention_backends()
    runner.init_cuda_graphs()
    return runner


@contextlib.contextmanager
def _checked_loading(options: EngineOptions, architecture: Architecture) -> Iterator[None]:
    """Check that the checkpoint fills the model, in the one place where SGLang's loader reads weights into it."""
    load = DefaultModelLoader.load_weights_and_postprocess

    def load_checked(model: Any, weights: Iterable[tuple[str, torch.Tensor]], target_device: torch.device) -> None:
        causal_lm, read = _find_causal_lm(model, architecture), model.load_weights
        is_quantized = getattr(model, "quant_config", None) is not None
        check = WeightCheck(
            causal_lm,
            causal_lm.model.layers,
            is_whole=options.tp_size == 1 and not is_quantized,
            has_scales=is_quantized and options.quantization is None,
        )
        check.poison()

        def read_checked(weights: Iterable[tuple[str, torch.Tensor]]) -> None:
            read(check.watch(weights))
            check.check()  # before the loader packs and quantizes

        model.load_weights = read_checked
        load(model, weights, target_device)
        del model.load_weights

    DefaultModelLoader.load_weights_and_postprocess = staticmethod(load_checked)
    try:
        yield
    finally:
        DefaultModelLoader.load_weights_and_postprocess = staticmethod(load)


def _find_causal_lm(model: Any, architecture: Architecture) -> Any:
    return operator.attrgetter(architecture.causal_lm)(model) if architecture.causal_lm else model


def _server_args(options: EngineOptions, architecture: Architecture) -> Any:
    on_cpu = options.device == "cpu"
    return ServerArgs(
        model_path=str(options.model),
        device=options.device,
        dtype=options.compute_dtype,
        quantization=options.quantization,
        tp_size=options.tp_size,
        ep_size=options.ep_size,
        skip_tokenizer_init=True,
        disable_radix_cache=True,
        chunked_prefill_size=-1,
        disable_cuda_graph=True,
        disable_overlap_schedule=True,
        max_total_tokens=options.max_batch_tokens,
        max_prefill_tokens=options.max_batch_tokens,
        max_running_requests=options.max_sequences,
        mem_fraction_static=0.5 if on_cpu else None,  # must be given on CPU, where SGLang cannot work it out
        # Without AMX `intel_amx` becomes `torch_native`, which SGLang refuses by that name for gpt-oss.
        attention_backend="intel_amx" if on_cpu else "triton",
        disable_hybrid_swa_memory=True,  # a pool of its own for sliding windows would hold less than a whole batch
        enforce_disable_flashinfer_allreduce_fusion=True,  # the setters would capture streams not yet reduced
        json_model_override_args=json.dumps(
            {"architectures": [loaded_as]} if (loaded_as := architecture.loaded_as) else {}
        ),
        enable_deterministic_inference=options.deterministic and not on_cpu,
        sampling_backend="pytorch",
        random_seed=0,
    )


def _parallel_state(rank: int, tp_size: int, ep_size: int) -> Any:
    """Say where a rank stands. Neighbours share one part of the experts, as in SGLang's `entrypoints/engine.py`."""
    return ParallelState(
        tp_rank=rank, tp_size=tp_size, pp_rank=0, pp_size=1, dp_rank=None, dp_size=1,
        attn_tp_rank=rank, attn_tp_size=tp_size, attn_cp_rank=0, attn_cp_size=1, attn_dp_rank=0, attn_dp_size=1,
        moe_ep_rank=rank // (tp_size // ep_size), moe_ep_size=ep_size, moe_dp_rank=None, moe_dp_size=1, dcp_size=1,
        gpu_id=rank,
    )  # fmt: skip


def _force_mla(blocks: Sequence[Any]) -> None:
    """Take the absorbed MLA path on CPU, where `torch_native` has no entry in the dispatch table."""
    for block in blocks:
        block.self_attn.dispatch_attn_forward_method = lambda _batch: AttnForwardMethod.MLA
