"""Read a folder as speculators does, in its environment: OUT MODEL FOLDER..., those named *fp8 by its fp8 backend."""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch
from hs_connectors import FileTransfer, FP8Transfer
from hs_connectors.fp8_utils import quantize_tensor_to_fp8
from safetensors.torch import load_file
from speculators.data_generation.offline import find_corrupt_hidden_state_indices, get_existing_hidden_state_indices
from speculators.models.utils import resolve_verifier_norm_class
from speculators.train.cli import parse_vocab_mappings
from speculators.train.data import ArrowDataset, CollateFn
from speculators.utils.loading import load_model_layers
from transformers import AutoConfig

MAX_LEN = 4096


def main(out: str, model: str, *folders: str) -> None:
    warnings.simplefilter("error", UserWarning)  # such as token ids that are not those of the row
    read_out = make_head(model)
    torch.save([read(folder, read_out) for folder in folders], out)


def read(folder: str, read_out: Callable) -> dict:
    states = Path(folder) / "hidden_states"
    indices = get_existing_hidden_state_indices(states)
    assert not find_corrupt_hidden_state_indices(states, indices)
    transfer = FP8Transfer(states) if folder.endswith("fp8") else FileTransfer(states)
    dataset = ArrowDataset(MAX_LEN, folder, transfer=transfer, on_missing="raise")
    items = [dataset[i] for i in range(len(dataset))]
    hidden_size = items[0]["verifier_last_hidden_states"].shape[-1]
    batch = CollateFn(MAX_LEN, hidden_size)([dataset[i] for i in range(len(dataset))])
    raw = [load_file(states / f"hs_{i}.safetensors") for i in indices]
    sizes = [int(path.stem.split("-")[1]) for path in Path(folder).glob("d2t-*.npy")]
    return {
        "indices": indices,
        "approx_lengths": dataset.approx_lengths,
        "items": items,
        "batch": {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)},
        "errors": batch["error_records"],
        "raw": raw,
        "as_they_round": [quantize_tensor_to_fp8(sample["hidden_states"]) for sample in raw],
        "vocabularies": {size: _vocabulary(folder, size) for size in sizes},
        "argmax": [read_out(item["verifier_last_hidden_states"]) for item in items],
    }


def _vocabulary(folder: str, size: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    return parse_vocab_mappings(
        SimpleNamespace(d2t_path=None, t2d_path=None, data_path=folder, draft_vocab_size=size, token_freq_path=None)
    )


def make_head(model: str) -> Callable:
    """Return what speculators makes of the last states: its norm of the verifier, then the head."""
    config = AutoConfig.from_pretrained(model)
    weights = load_model_layers(["embed_tokens.weight", "lm_head.weight", "model.norm.weight"], model)
    verifier = SimpleNamespace(speculators_config=SimpleNamespace(verifier=SimpleNamespace(name_or_path=model)))
    norm = resolve_verifier_norm_class(verifier)(config.hidden_size, eps=config.rms_norm_eps).to(torch.bfloat16)
    norm.load_state_dict({"weight": weights["model.norm.weight"]})
    head = weights.get("lm_head.weight", weights["embed_tokens.weight"])

    @torch.no_grad()
    def read_out(states: torch.Tensor) -> torch.Tensor:
        return (norm(states).float() @ head.float().T).argmax(-1)  # logits of bfloat16 have ties

    return read_out


if __name__ == "__main__":
    main(*sys.argv[1:])
