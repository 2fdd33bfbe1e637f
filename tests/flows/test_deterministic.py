"""`deterministic`, from the settings to the bits in the store."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import chat, write_lines

from flows import Settings, extract_hidden_states
from flows.cli import make_parser
from flows.job import prepare_job
from tasks.engine.base import EngineOptions
from tasks.engine.loading import load_engine

LINES = [str(chat(f"Count to {n}.", "One. " * n)).replace("'", '"') for n in range(1, 9)]


def settings_for(model: Path, folder: Path, **changes: Any) -> Settings:
    return Settings(
        model=model, data=write_lines(folder / "chats.jsonl", LINES), store=folder / "store", devices="cpu", **changes
    )


def test_a_sample_has_the_bits_that_it_has_alone(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """A mixture of experts in float32, where packing shows in nearly every sample."""
    model = tiny_model("qwen3-moe")
    asked = settings_for(model, tmp_path, deterministic=True, storage_dtype="float32", layers="8,final")
    result = extract_hidden_states(asked)
    assert result.report.rows["done"] == len(LINES)
    assert result.report.spec["numerics"] == {"deterministic": True}
    options = EngineOptions(model, (8, "final"), "float32", "float32", "cpu", 512, deterministic=True)
    engine = load_engine(options)
    try:
        for index, name in enumerate(result.tokens.sample_hashes):
            alone = engine.forward([result.tokens.input_ids(index)]).numpy()
            assert np.array_equal(result.store[name].hidden_states(), alone)
    finally:
        engine.close()


def test_it_names_other_states_and_without_it_the_names_are_what_they_were(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    plain, exact = (
        prepare_job(settings_for(tiny_model("llama"), tmp_path, deterministic=on)).spec for on in (False, True)
    )
    assert (plain.numerics, exact.numerics) == ({}, {"deterministic": True})
    assert plain.digest() != exact.digest()


@pytest.mark.parametrize(("flags", "expected"), [("", None), ("--deterministic", "true"), ("--deterministic no", "no")])
def test_the_flag_needs_no_value(flags: str, expected: str | None) -> None:
    arguments = make_parser().parse_args(["settings", *flags.split(), "--layers", "0"])
    assert arguments.deterministic == expected
