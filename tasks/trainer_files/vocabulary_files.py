"""Draft vocabularies in the files of each trainer: the same map everywhere, draft id i is target id `i + d2t[i]`."""

from pathlib import Path

import numpy as np

from storage.draft_vocabularies import DraftVocabulary

SPECFORGE_FOLDER = "vocab_mapping"


def write_numpy_vocabulary(folder: Path, vocabulary: DraftVocabulary, is_only: bool) -> list[Path]:  # noqa: ARG001 - all writers take it
    """Write `d2t-{size}.npy` int64 and `t2d-{size}.npy` bool, which speculators finds beside its dataset by size."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{name}-{len(vocabulary.d2t)}.npy" for name in ("d2t", "t2d")]
    for file, values in zip(files, (vocabulary.d2t, vocabulary.t2d), strict=True):
        np.save(file, values)
    return files


def write_specforge_vocabulary(folder: Path, vocabulary: DraftVocabulary, is_only: bool) -> list[Path]:
    """Write what SpecForge's `model.vocab_mapping_path` names: `d2t` and `t2d` in one file."""
    size = "" if is_only else f"-{len(vocabulary.d2t)}"
    file = folder / SPECFORGE_FOLDER / f"vocab_mapping{size}.pt"
    _save(file, {"d2t": vocabulary.d2t, "t2d": vocabulary.t2d})
    return [file]


def write_modelopt_vocabulary(folder: Path, vocabulary: DraftVocabulary, is_only: bool) -> list[Path]:  # noqa: ARG001 - all writers take it
    """Write what ModelOpt's `data.draft_vocab_cache` names: `d2t` alone, under a name that no sample has."""
    file = folder / f"d2t-{len(vocabulary.d2t)}.torch"  # whatever ends with .pt below the folder is taken for a sample
    _save(file, vocabulary.d2t)
    return [file]


def _save(file: Path, value: object) -> None:
    import torch  # noqa: PLC0415 - heavy, and most exports have no vocabulary

    file.parent.mkdir(parents=True, exist_ok=True)
    arrays = value if isinstance(value, dict) else {"": value}
    tensors = {name: torch.tensor(array) for name, array in arrays.items()}
    torch.save(tensors if isinstance(value, dict) else tensors[""], file)
