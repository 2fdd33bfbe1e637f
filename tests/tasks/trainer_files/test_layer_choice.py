"""Which layers a format takes of a store, and how a store that lacks some says how to get them."""

from dataclasses import replace
from typing import Any

import pytest
from export_worlds import SPEC

from storage.errors import StorageError
from tasks.engine.errors import LayerError
from tasks.errors import ExportError
from tasks.trainer_files.base import LayerChoice
from tasks.trainer_files.formats import FORMATS
from tasks.trainer_files.layer_choice import choose_layers

BOTH: tuple[Any, ...] = (2, 4, 5, 8, "final")


@pytest.mark.parametrize(
    ("form", "layers", "wanted", "expected", "owner_ids"),
    [
        ("specforge", BOTH, None, LayerChoice((2, 4, 5), "final", "after"), [1, 3, 4]),
        ("specforge", (0, 2, 4, 5, "final"), "2,L//2,L-3", LayerChoice((2, 4, 5), "final", "after"), [1, 3, 4]),
        ("specforge", BOTH, "eagle3", LayerChoice((2, 4, 5), "final", "after"), [1, 3, 4]),
        ("speculators", BOTH, None, LayerChoice((2, 4, 5), 8, "before"), [2, 4, 5]),
        ("speculators", BOTH, "4,L", LayerChoice((4,), 8, "before"), [4]),
        ("speculators-fp8", (2, 8), None, LayerChoice((2,), 8, "before"), [2]),
        ("modelopt", BOTH, None, LayerChoice((2, 4, 5), "final", "after"), [1, 3, 4]),
        ("modelopt", (2, 4, 8), None, LayerChoice((2, 4), 8, "before"), [1, 3]),
        ("safetensors", BOTH, None, LayerChoice(BOTH), [2, 4, 5, 8]),
        ("safetensors", BOTH, "final", LayerChoice(("final",)), []),
    ],
)
def test_a_format_takes_its_layers(
    form: str, layers: tuple[Any, ...], wanted: str | None, expected: LayerChoice, owner_ids: list[int]
) -> None:
    found = choose_layers(FORMATS[form], replace(SPEC, layers=layers), wanted)
    assert found == expected
    assert FORMATS[form].owner_ids(found) == owner_ids


@pytest.mark.parametrize(
    ("form", "layers", "wanted", "words"),
    [
        (
            "speculators",
            (2, 4, 5, "final"),
            None,
            (
                "layer 8, which cannot be had from the one after it; the store has 2,4,5,final: run aerie extract with "
                "--layers 2,4,5,8,final"
            ),
        ),
        (
            "specforge",
            (2, 4, 5, 8),
            None,
            (
                "the state after the final norm, layer final; the store has 2,4,5,8: run aerie extract with --layers "
                "2,4,5,8,final"
            ),
        ),
        (
            "specforge",
            (2, 5, "final"),
            None,
            (
                "exactly 3 of the layers before the last, not 2 (2,5); the store has 2,5,final: choose with --layers, "
                "or run aerie extract with --layers 2,L//2,L-3,final"
            ),
        ),
        ("specforge", (0, *BOTH), None, "exactly 3 of the layers before the last, not 4 (0,2,4,5)"),
        ("modelopt", ("final",), None, "modelopt reads at least one of the layers before the last, not 0 (none)"),
        (
            "safetensors",
            (2, "final"),
            "3,final",
            (
                "layer 3 is not in the store, which has 2,final: choose among these, or run aerie extract with "
                "--layers 2,3,final"
            ),
        ),
        ("safetensors", BOTH, "2,99", "layer 99 is outside 0..8"),
    ],
)
def test_a_store_that_lacks_something_says_how_to_get_it(
    form: str, layers: tuple[Any, ...], wanted: str | None, words: str
) -> None:
    with pytest.raises((ExportError, LayerError, StorageError)) as refused:
        choose_layers(FORMATS[form], replace(SPEC, layers=layers), wanted)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
