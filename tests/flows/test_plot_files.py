"""`aerie show --plots` draws what a store holds into files, and says where they are."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch
from jobs import Finished, snapshot

from flows.cli import main
from tasks.readouts import measure_agreement

TITLES = ["lengths", "learnt-share", "compression-by-layer", "norms-by-layer", "channels-that-stand-out"]
PNG = b"\x89PNG\r\n\x1a\n"


def show(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert main(["show", *map(str, arguments), "--json"]) == 0
    [states] = json.loads(capsys.readouterr().out)["specs"]
    return states


def test_the_plots_of_the_report_are_files(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot(finished.store)
    files = show(capsys, finished.store, "--plots", tmp_path / "deep" / "plots")["plots"]
    assert files == [str(tmp_path / "deep" / "plots" / f"{title}.png") for title in TITLES]
    assert all(Path(file).read_bytes().startswith(PNG) for file in files)
    assert snapshot(finished.store) == before


def test_the_next_token_is_drawn_where_there_is_the_model(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--plots", tmp_path, "--plot-format", "svg", "--model", finished.settings.model)
    files = show(capsys, finished.store, *flags)["plots"]
    assert [Path(file).name for file in files] == [f"{title}.svg" for title in [*TITLES, "next-token-by-position"]]
    texts = {node.text for node in ET.parse(files[-1]).iter("{http://www.w3.org/2000/svg}text")}  # noqa: S314 - ours
    assert "next token ranked first" in texts


def test_the_next_token_is_what_the_model_itself_ranks_first(finished: Finished) -> None:
    from transformers import AutoModelForCausalLM

    store = finished.result.store
    names = list(store)[:3]
    model = AutoModelForCausalLM.from_pretrained(finished.settings.model, dtype=torch.float32).eval()
    found = measure_agreement(store, names, finished.settings.model)
    counts, agreed = np.zeros((2, len(found.counts)), np.int64)
    for name in names:
        ids = torch.from_numpy(store[name].input_ids.astype(np.int64))[:513]
        with torch.no_grad():
            ranked = model(ids[None]).logits[0].argmax(-1)
        for position in range(len(ids) - 1):
            place = position.bit_length()  # bins are 0, 1, 2 to 3, 4 to 7, ...
            counts[place] += 1
            agreed[place] += bool(ranked[position] == ids[position + 1])
    assert found.counts == counts.tolist()
    assert np.abs(found.agreed - agreed).sum() <= 0.01 * counts.sum(), "stored states are rounded to bfloat16"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model", "qwen3"], "is not the model of these states; give that, or leave --model out"),
        (["--tokens", "beef"], "0 tokens artifacts begin with 'beef'"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(
    finished: Finished,
    tiny_model: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    words: str,
) -> None:
    given = [str(tiny_model(flag)) if flag == "qwen3" else flag for flag in flags]
    assert main(["show", str(finished.store), "--plots", str(tmp_path / "plots"), *given]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert words in line
    assert not (tmp_path / "plots").exists()
