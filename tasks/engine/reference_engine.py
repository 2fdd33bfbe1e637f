"""transformers as the reference: the same states, one sequence at a time, for tests and benchmarks."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tasks.engine.architectures import get_architecture
from tasks.engine.base import DTYPES, EngineOptions
from tasks.engine.models import read_model

# What transformers does not know, but computes as one that it does; Kimi-K2.5's vision part is left out.
SAME_AS = {"kimi_k2": "deepseek_v3", "kimi_k25": "deepseek_v3"}


class ReferenceEngine:
    """Hidden states by transformers with eager attention, its positions counted as the served model counts them.

    transformers' last `hidden_states` entry is after the final norm, so the stream before it (`num_layers`) is taken by
    a hook on that norm.
    """

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self._model = _load(options.model, DTYPES[options.compute_dtype]).to(options.device)
        self._model.eval()
        self._first_position = get_architecture(read_model(options.model).architecture).first_position
        self._decoder = _find_decoder(self._model)
        self._before_norm: torch.Tensor | None = None
        self._decoder.norm.register_forward_pre_hook(self._keep_before_norm)

    def forward(self, sequences: Sequence[npt.NDArray[np.int32]]) -> torch.Tensor:
        """Run each sequence alone; see `Engine.forward`."""
        return torch.cat([self._forward_one(ids) for ids in sequences])

    def close(self) -> None:
        """Free the model."""
        del self._model, self._decoder

    @torch.no_grad()
    def _forward_one(self, input_ids: npt.NDArray[np.int32]) -> torch.Tensor:
        ids = torch.from_numpy(input_ids.astype(np.int64))[None].to(self.options.device)
        states = self._decoder(
            ids, output_hidden_states=True, use_cache=False, **self._positions(len(input_ids))
        ).hidden_states
        num_layers = len(states) - 1
        named = dict(enumerate(states[:-1])) | {num_layers: self._before_norm, "final": states[-1]}
        stacked = torch.stack([named[layer][0] for layer in self.options.layers], dim=1)
        return stacked.to(DTYPES[self.options.output_dtype])

    def _positions(self, num_tokens: int) -> dict[str, torch.Tensor]:
        if self._first_position == 0:  # where transformers itself starts
            return {}
        return {"position_ids": torch.arange(num_tokens, device=self.options.device)[None] + self._first_position}

    def _keep_before_norm(self, _module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        self._before_norm = args[0]


def _find_decoder(model: Any) -> Any:
    decoder = model.get_decoder()
    return getattr(decoder, "model", decoder)  # Llama-4 names itself as its decoder


def _load(folder: Path, dtype: torch.dtype) -> Any:
    model = _from_pretrained(folder, dtype)
    if model.config.model_type == "deepseek_v2":
        _repair_deepseek_v2(model)
    return model


def _from_pretrained(folder: Path, dtype: torch.dtype) -> Any:
    config = json.loads((folder / "config.json").read_bytes())
    if config["model_type"] == "minimax_m2":
        return AutoModelForCausalLM.from_pretrained(
            folder, config=_repaired_minimax_m2(folder), dtype=dtype, local_files_only=True
        )
    if (known := SAME_AS.get(config["model_type"])) is None:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    text = {key: value for key, value in (config.get("text_config") or config).items() if key != "model_type"}
    return AutoModelForCausalLM.from_pretrained(
        folder,
        config=AutoConfig.for_model(known, **text),
        key_mapping={"^language_model.": ""},
        dtype=dtype,
        local_files_only=True,
    )


def _repaired_minimax_m2(folder: Path) -> Any:
    """Say in transformers' words that only `rotary_dim` of each head's numbers are rotated.

    transformers 5.12.1 does not know that field, which is all that published checkpoints have, and rotates all
    (github.com/huggingface/transformers/issues/48241).
    """
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    rotary_dim = getattr(config, "rotary_dim", config.head_dim)
    config.rope_parameters.setdefault("partial_rotary_factor", rotary_dim / config.head_dim)
    return config


def _repair_deepseek_v2(model: Any) -> None:
    """Add what transformers 5.12.1 leaves out of DeepSeek-V2, and has in DeepSeek-V3.

    That is yarn's factor of the attention scores, which the modeling file of the published checkpoints has, and an
    attribute that routing in groups reads.
    """
    rope, experts = model.config.rope_parameters, model.config.n_routed_experts
    mscale = 0.1 * rope.get("mscale_all_dim", 0) * math.log(rope.get("factor", 1)) + 1
    for layer in model.model.layers:
        layer.self_attn.scaling *= mscale**2
        layer.mlp.num_experts = experts
