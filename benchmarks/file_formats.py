"""The same samples in other files: one `torch.save` or safetensors file a sample, and our store, packed and loose."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from storage import Store, open_store
from storage.dataset import to_tensor

PAGE_BYTES = 4096
FILES = ("torch.save", "safetensors")
KEY = "hidden_states"


def write_files(folder: Path, store: Store) -> None:
    """Write the samples of a store as files, in a folder for each format."""
    for name in FILES:
        (folder / name).mkdir(parents=True)
    for name, sample in store.items():
        tensors = {
            KEY: to_tensor(sample.hidden_states()).contiguous(),
            "input_ids": torch.from_numpy(sample.input_ids.astype("int64")),
        }
        torch.save(tensors, folder / "torch.save" / f"{name}.pt")
        save_file(tensors, folder / "safetensors" / f"{name}.safetensors")
    os.sync()


def make_readers(folders: Mapping[str, Path], names: Sequence[str], threads: int) -> dict[str, Callable[[], object]]:
    """Return for each format how to read all samples, in the order of `names`, until their states are in memory."""
    readers: dict[str, Callable[[], object]] = {
        name: partial(_read_store, open_store(folders[name]), names, threads) for name in ("packed", "loose")
    }
    load_pt = partial(torch.load, weights_only=True)
    for name, load, suffix in (("torch.save", load_pt, "pt"), ("safetensors", load_file, "safetensors")):
        files = [folders[name] / f"{sample}.{suffix}" for sample in names]
        readers[name] = partial(_read_files, load, files, threads)
    return readers


def drop_cache(folder: Path) -> None:
    """Let the system forget the content of all files below a folder, which must be on disk already."""
    for parent, _, names in os.walk(folder):
        for name in names:
            descriptor = os.open(Path(parent, name), os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _read_store(store: Store, names: Sequence[str], threads: int) -> None:
    # One after the other on one thread, as a loop would; on several, as many samples at a time as there are threads.
    for first in range(0, len(names), threads):
        for states in store.read_hidden_states(names[first : first + threads], threads=threads):
            _touch(to_tensor(states))


def _read_files(load: Callable[[Path], Mapping[str, torch.Tensor]], files: Iterable[Path], threads: int) -> None:
    def read(file: Path) -> None:
        _touch(load(file)[KEY])

    if threads == 1:
        for file in files:
            read(file)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(read, files))


def _touch(states: torch.Tensor) -> None:
    # safetensors maps files into memory: without this, nothing of them would have been read.
    states.view(torch.int16)[..., :: PAGE_BYTES // 2].sum()
