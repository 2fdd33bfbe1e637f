"""transformers as the reference: the same states, one sequence at a time, for tests and benchmarks."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForCausalLM

from tasks.engine.base import DTYPES, EngineOptions


class ReferenceEngine:
    """Hidden states by transformers with eager attention.

    transformers' last `hidden_states` entry is after the final norm, so the stream before it (`num_layers`) is taken by
    a hook on that norm.
    """

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self._model = AutoModelForCausalLM.from_pretrained(
            options.model, dtype=DTYPES[options.compute_dtype], local_files_only=True
        ).to(options.device)
        self._model.eval()
        self._before_norm: torch.Tensor | None = None
        self._model.model.norm.register_forward_pre_hook(self._keep_before_norm)

    def forward(self, sequences: Sequence[npt.NDArray[np.int32]]) -> torch.Tensor:
        """Run each sequence alone; see `Engine.forward`."""
        return torch.cat([self._forward_one(ids) for ids in sequences])

    def close(self) -> None:
        """Free the model."""
        del self._model

    @torch.no_grad()
    def _forward_one(self, input_ids: npt.NDArray[np.int32]) -> torch.Tensor:
        ids = torch.from_numpy(input_ids.astype(np.int64))[None].to(self.options.device)
        states = self._model.model(ids, output_hidden_states=True, use_cache=False).hidden_states
        num_layers = len(states) - 1
        named = dict(enumerate(states[:-1])) | {num_layers: self._before_norm, "final": states[-1]}
        stacked = torch.stack([named[layer][0] for layer in self.options.layers], dim=1)
        return stacked.to(DTYPES[self.options.output_dtype])

    def _keep_before_norm(self, _module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        self._before_norm = args[0]
