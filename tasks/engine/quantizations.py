"""What the config of a quantized checkpoint says of its numbers, and the dtypes that SGLang computes it in. Pure."""

from collections.abc import Mapping
from typing import Any

UNQUANTIZED_DTYPES = ("float32", "bfloat16", "float16")
QUANTIZED_DTYPES = ("bfloat16", "float16")
# SGLang without Marlin has only kernels in float16 for them (gptq.py and awq.py of its layers/quantization).
PLAIN_DTYPES = ("float16",)
MARLIN_GROUP_SIZES = {-1, 32, 64, 128}
# Methods that leave what enters a linear layer in its dtype; compressed-tensors says for each checkpoint.
WEIGHT_ONLY = {"gptq", "awq", "mxfp4", "bitsandbytes"}

# How the values were found, who wrote them and what the file is called: no number of a forward depends on it.
_PROVENANCE = frozenset(
    {
        "quant_method", "quantization_status", "global_compression_ratio", "observer", "observer_kwargs", "producer",
        "damp_percent", "true_sequential", "static_groups", "model_name_or_path", "model_file_base_name", "meta",
        "quantizer", "autoround_version", "dataset", "batch_size", "max_input_length", "model_seqlen", "backend",
    }
)  # fmt: skip


def describe_quantization(config: Mapping[str, Any]) -> str:
    """Write a `quantization_config` in one line: the method, then what its numbers depend on, always in one order.

    Lists of layers are left out; the model fingerprint has them.

    Raises:
        KeyError: it has no `quant_method`.
    """
    method = str(config["quant_method"]).lower().replace("_", "-")
    left_out = _PROVENANCE | ({"version"} if method == "compressed-tensors" else set())  # of AWQ: how it is packed
    fields = {key: value for key, value in config.items() if key not in left_out}
    groups = fields.pop("config_groups", None) or {}
    return " ".join([method, *_describe_fields(fields), *(_describe_group(groups[name]) for name in sorted(groups))])


def compute_dtypes(config: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the dtypes that SGLang computes a checkpoint in, the one to choose first; `config` is None if unquantized.

    Raises:
        KeyError: `config` has no `quant_method`.
    """
    if config is None:
        return UNQUANTIZED_DTYPES
    method = str(config["quant_method"]).lower()
    if method not in {"gptq", "awq"}:
        return QUANTIZED_DTYPES
    symmetric = bool(config.get("sym")) if method == "gptq" else bool(config.get("zero_point"))
    has_marlin = symmetric and config.get("bits") in {4, 8} and config.get("group_size") in MARLIN_GROUP_SIZES
    return QUANTIZED_DTYPES if has_marlin else PLAIN_DTYPES


def rounds_inputs(config: Mapping[str, Any] | None) -> bool:
    """Say whether what enters a linear layer is rounded too, to FP8 or the like, which adds noise to every state.

    Raises:
        KeyError: `config` has no `quant_method`.
    """
    if config is None:
        return False
    method = str(config["quant_method"]).lower().replace("_", "-")
    if method == "compressed-tensors":
        return any(group.get("input_activations") for group in (config.get("config_groups") or {}).values())
    return method not in WEIGHT_ONLY


def widest_split(config: Mapping[str, Any] | None, expert_width: int | None) -> int | None:
    """Return among how many ranks at most SGLang may cut experts of `expert_width`, 0 if none; None: any number.

    It puts the scales of `gate_proj` and `up_proj` in the order for one group a column when the part of an expert that
    a rank has is no wider than a group, although what it multiplies is `hidden_size` long
    (hardware_backend/gpu/quantization/gptq_kernels.py and awq_kernels.py of 0.5.17): all states are wrong by a tenth.

    Raises:
        KeyError: `config` has no `quant_method`.
    """
    if config is None or expert_width is None or str(config["quant_method"]).lower() not in {"gptq", "awq"}:
        return None
    group_size = int(config["group_size"])
    return None if group_size < 0 else (int(expert_width) - 1) // group_size


def _describe_group(group: Mapping[str, Any]) -> str:
    return f"group({' '.join(_describe_fields(group))})"


def _describe_fields(fields: Mapping[str, Any]) -> list[str]:
    described = [_describe_field(key, fields[key]) for key in sorted(fields) if key not in _PROVENANCE]
    return [text for text in described if text]


def _describe_field(key: str, value: Any) -> str:
    if value is None or value == {}:
        return ""
    if isinstance(value, Mapping):
        return f"{key}({' '.join(_describe_fields(value))})"
    if isinstance(value, list):
        return f"{key}={'x'.join(map(str, value))}" if value and all(isinstance(item, int) for item in value) else ""
    return f"{key}={str(value).lower() if isinstance(value, bool) else value}"
