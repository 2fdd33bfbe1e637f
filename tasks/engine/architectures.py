"""Table: Hugging Face architecture -> how SGLang captures its hidden states.

Adding a model is one row here and one tiny config in the tests; docs/adding-a-model.md says how.
"""

from dataclasses import dataclass, replace

from tasks.engine.errors import UnsupportedArchitectureError

# Both take output-of-block ids and add 1 to each, always (read in SGLang 0.5.17, class by class). Not so
# `set_eagle3_layers_to_capture` of DeepSeek (only when the first id is 1) and of gpt-oss (not when the last id is L).
DFLASH = "set_dflash_layers_to_capture"
EAGLE3 = "set_eagle3_layers_to_capture"


@dataclass(frozen=True, slots=True)
class Architecture:
    """How one SGLang model class is captured.

    Attributes:
        causal_lm: attribute path from the SGLang model to the part that has `logits_processor` and, as `model`, the
            body with `layers` and the final `norm`; empty where that is the model itself.
        setter: method of `causal_lm` that takes output-of-block ids and makes it capture the streams behind those
            blocks. None: the class has none, or a wrong one, and what enters each block is taken by hooks.
        unit_offset: the final norm multiplies by 1 + weight (Gemma), not by weight.
        mla: attention is multi-head latent attention, whose dispatch has no CPU entry for `torch_native`.
        loaded_as: SGLang class that loads it right, where the one of its own name does not.
        longest: config field with the most tokens of a sequence that SGLang computes right, and its value where the
            config leaves it out; None where that is the context length.
        first_position: what SGLang counts positions from, so that transformers must be told to count so, too.
        gpu_dtypes: dtypes that its kernels on a GPU take, the one to choose first.
        deals_experts: its experts may be dealt out among GPUs (`:ep2`), each whole on one of them.
        pads_on_cpu: ranks on a CPU may share it unevenly: SGLang pads heads and widths there (`cpu:tp3` tried on each).
        on_cpu: functions of `cpu_blocks` that replace what its blocks know only as compiled kernels, or compute
            otherwise than on a GPU.
    """

    causal_lm: str = ""
    setter: str | None = DFLASH
    unit_offset: bool = False
    mla: bool = False
    loaded_as: str = ""
    longest: tuple[str, int] | None = None
    first_position: int = 0
    gpu_dtypes: tuple[str, ...] = ("bfloat16", "float16")  # no norm of SGLang's takes float32 there
    deals_experts: bool = True
    pads_on_cpu: bool = True
    on_cpu: tuple[str, ...] = ()


_LLAMA = Architecture()
_DEEPSEEK = Architecture(mla=True, on_cpu=("route_in_float32",))
# SGLang's setter captures what a block adds, without the stream that it is added to.
_GEMMA3 = Architecture(setter=None, unit_offset=True)
_LLAMA4 = Architecture(
    causal_lm="language_model",
    longest=("attention_chunk_size", 8192),  # the triton backend attends to the chunks before, too
    on_cpu=("rotate_and_norm_in_place", "weigh_before_experts"),
)

ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "Phi3ForCausalLM": _LLAMA,
    "Qwen2ForCausalLM": Architecture(setter=EAGLE3),
    "Qwen2MoeForCausalLM": Architecture(setter=EAGLE3, pads_on_cpu=False, on_cpu=("gate_shared_expert",)),
    "Qwen3ForCausalLM": Architecture(),
    "Qwen3MoeForCausalLM": Architecture(),
    "Qwen3NextForCausalLM": Architecture(
        unit_offset=True, pads_on_cpu=False, on_cpu=("gate_shared_expert", "norm_and_gate_linear_attention")
    ),
    "DeepseekV2ForCausalLM": _DEEPSEEK,
    "DeepseekV3ForCausalLM": _DEEPSEEK,  # R1 and Kimi-K2 too
    "KimiK25ForConditionalGeneration": replace(_DEEPSEEK, causal_lm="language_model", pads_on_cpu=False),
    # Its loader deals out experts in MXFP4, and fails on others ("The size of tensor a (4) must match ... b (8)").
    "GptOssForCausalLM": Architecture(gpu_dtypes=("bfloat16",), deals_experts=False, on_cpu=("attend_with_sinks",)),
    "Gemma3ForCausalLM": _GEMMA3,
    # The wrapper counts from 1, as transformers did when SGLang took it over
    # (github.com/huggingface/transformers/issues/36856).
    "Gemma3ForConditionalGeneration": replace(_GEMMA3, causal_lm="language_model", first_position=1, pads_on_cpu=False),
    "Glm4MoeForCausalLM": Architecture(setter=EAGLE3),
    "MiniMaxM2ForCausalLM": Architecture(setter=EAGLE3, pads_on_cpu=False, on_cpu=("norm_queries_and_keys",)),
    "Llama4ForConditionalGeneration": _LLAMA4,
    # SGLang's class of that name skips the experts' weights and does not reorder queries and keys for its rotary
    # embedding; the wrapper's class does both, and takes a checkpoint and a config of the text alone.
    "Llama4ForCausalLM": replace(_LLAMA4, loaded_as="Llama4ForConditionalGeneration"),
}


def get_architecture(name: str) -> Architecture:
    """Look up how an architecture is captured.

    Raises:
        UnsupportedArchitectureError: `name` has no row.
    """
    architecture = ARCHITECTURES.get(name)
    if architecture is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise UnsupportedArchitectureError(
            f"architecture {name} is not in the table of captured models ({known}); "
            "docs/adding-a-model.md says how to add a row to tasks/engine/architectures.py"
        )
    return architecture
