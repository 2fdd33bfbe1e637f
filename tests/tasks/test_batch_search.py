"""The size of batches is found by trying, is one that fits, and is remembered."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from storage.specs import StateSpec
from tasks.batch_search import choose_batch_tokens, measure_rates, pick
from tasks.batches import CANDIDATES, list_candidates
from tasks.engine.errors import EngineOutOfMemoryError

SPEC = StateSpec(
    model_fingerprint="f" * 64, architecture="LlamaForCausalLM", num_layers=8, hidden_size=32, layers=(4, "final"),
    compute_dtype="float32", storage_dtype="bfloat16", quantization=None, engine="test", engine_version="1",
)  # fmt: skip


class Timed:
    """An engine whose forward takes so long for so many tokens, by a clock of its own, and has room for so many."""

    def __init__(self, seconds: Callable[[int], float], room: int) -> None:
        self.options: Any = SimpleNamespace(device="cpu", max_sequences=8, tp_size=1, ep_size=1)
        self._seconds, self._room = seconds, room
        self.now = 0.0
        self.batches: list[int] = []

    def forward(self, sequences: Sequence[Any]) -> torch.Tensor:
        num_tokens = sum(map(len, sequences))
        self.batches.append(num_tokens)
        assert len(sequences) <= self.options.max_sequences
        if num_tokens > self._room:
            raise EngineOutOfMemoryError("no room")
        self.now += self._seconds(num_tokens)
        return torch.zeros(0)

    def close(self) -> None:
        """Hold nothing."""


def test_it_is_the_smallest_that_is_nearly_as_fast_as_any_that_fits() -> None:
    engine = Timed(lambda tokens: 0.01 + tokens / 40_000, room=40_000)
    rates = measure_rates(engine, 100, CANDIDATES, lambda: engine.now)
    assert list(rates) == [4096, 8192, 16_384, 32_768]
    assert pick(rates) == 16_384
    assert pick({4096: 37_700.0, 16_384: 39_100.0, 32_768: 39_100.0}) == 16_384


def test_it_is_remembered_for_the_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    engine = Timed(lambda _: 1.0, room=20_000)
    found = [choose_batch_tokens(engine, SPEC, 100, CANDIDATES) for _ in range(2)]
    assert found[0] == found[1]
    assert engine.batches == [4096, 4096, 8192, 8192, 16_384, 16_384, 32_768]
    [file] = (tmp_path / "aerie" / "batch_tokens").iterdir()
    file.write_text("torn")
    choose_batch_tokens(engine, SPEC, 100, CANDIDATES)
    assert len(engine.batches) == 14


def test_states_of_a_batch_take_at_most_half_of_what_may_wait() -> None:
    assert list_candidates(57_344, 2 << 30) == [4096, 8192, 16_384]
    assert list_candidates(2048, 2 << 30) == list(CANDIDATES)
    assert list_candidates(1 << 20, 1 << 20) == [4096]
