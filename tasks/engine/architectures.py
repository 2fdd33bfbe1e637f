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
        cuda_attention: SGLang's attention backend on a GPU.
        needs_cuda: why SGLang cannot run it on a CPU, or not right; empty where it can.
    """

    causal_lm: str = ""
    setter: str | None = DFLASH
    unit_offset: bool = False
    mla: bool = False
    cuda_attention: str = "triton"
    needs_cuda: str = ""


_LLAMA = Architecture()
_DEEPSEEK = Architecture(mla=True)
# SGLang's setter captures what a block adds, without the stream that it is added to.
_GEMMA3 = Architecture(setter=None, unit_offset=True)

ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "Phi3ForCausalLM": _LLAMA,
    "Qwen2ForCausalLM": Architecture(setter=EAGLE3),
    "Qwen2MoeForCausalLM": Architecture(setter=EAGLE3, needs_cuda="the gate of its shared expert is a Triton kernel"),
    "Qwen3ForCausalLM": Architecture(),
    "Qwen3MoeForCausalLM": Architecture(),
    "Qwen3NextForCausalLM": Architecture(unit_offset=True, needs_cuda="its linear attention has only compiled kernels"),
    "DeepseekV2ForCausalLM": _DEEPSEEK,
    "DeepseekV3ForCausalLM": _DEEPSEEK,  # R1 and Kimi-K2 too
    "KimiK25ForConditionalGeneration": replace(_DEEPSEEK, causal_lm="language_model"),
    "GptOssForCausalLM": Architecture(needs_cuda="SGLang's CPU attention has no sinks"),
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": replace(_GEMMA3, causal_lm="language_model"),
    "Glm4MoeForCausalLM": Architecture(setter=EAGLE3),
}


def get_architecture(name: str, device: str = "cuda") -> Architecture:
    """Look up how an architecture is captured on `device`, `cpu` or `cuda`.

    Raises:
        UnsupportedArchitectureError: `name` has no row, or cannot run on `device`.
    """
    architecture = ARCHITECTURES.get(name)
    if architecture is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise UnsupportedArchitectureError(
            f"architecture {name} is not in the table of captured models ({known}); "
            "docs/adding-a-model.md says how to add a row to tasks/engine/architectures.py"
        )
    if device == "cpu" and architecture.needs_cuda:
        raise UnsupportedArchitectureError(
            f"SGLang cannot run {name} on a CPU ({architecture.needs_cuda}); choose a GPU with devices"
        )
    return architecture
