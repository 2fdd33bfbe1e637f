"""Table: Hugging Face architecture -> how SGLang captures its hidden states.

Adding a model is one row here and one tiny config in the tests.
"""

from dataclasses import dataclass

from tasks.engine.errors import UnsupportedArchitectureError


@dataclass(frozen=True, slots=True)
class Architecture:
    """How one SGLang model class is captured.

    Attributes:
        body: attribute path from the SGLang model to the module that holds `layers` and `norm`.
        setter: method that takes output-of-block ids and makes the model capture the streams behind those blocks.
            `set_dflash_layers_to_capture` adds 1 to each id on every model that has it, whereas
            `set_eagle3_layers_to_capture` does so on DeepSeek only when the first id is 1 (read in SGLang 0.5.17).
        mla: attention is multi-head latent attention, whose dispatch has no CPU entry for `torch_native`.
    """

    body: str = "model"
    setter: str = "set_dflash_layers_to_capture"
    mla: bool = False


ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": Architecture(),
    "Qwen3ForCausalLM": Architecture(),
    "Qwen3MoeForCausalLM": Architecture(),
    "DeepseekV3ForCausalLM": Architecture(mla=True),
}


def get_architecture(name: str) -> Architecture:
    """Look up how an architecture is captured.

    Raises:
        UnsupportedArchitectureError: `name` has no row.
    """
    try:
        return ARCHITECTURES[name]
    except KeyError:
        known = ", ".join(sorted(ARCHITECTURES))
        raise UnsupportedArchitectureError(
            f"architecture {name} is not in the table of captured models ({known}); "
            "add a row to tasks/engine/architectures.py and a tiny config to the tests"
        ) from None
