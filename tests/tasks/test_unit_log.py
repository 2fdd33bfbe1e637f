from pathlib import Path

import pytest

from tasks import messages, unit_log
from tasks.engine_counts import EngineCounts
from tasks.unit_log import UnitLog, last_lines


def test_lines_have_device_phase_and_batch_and_everything_is_passed_on() -> None:
    lines: list[str] = []
    heard: list[messages.Message] = []
    counts = EngineCounts("gpu-0")
    log = UnitLog(lines.append, counts, heard.append)
    said = [
        messages.Phase("load model", "gpu-0"),
        messages.BatchStarted(16_384),
        messages.BatchStarted(9_000),
        messages.Quarantined("ab" * 32, 7, "non_finite", "NaN in layer 2"),
    ]
    for message in said:
        counts.hear(message)
        log(message)
    log.close(messages.UnitDone(1, 1.25, 0.5, 0, 0))
    assert heard == said
    assert lines == [
        "gpu-0: load model",
        "gpu-0: forward, batch 1 of 16,384 tokens",
        "gpu-0: set aside abababababab: non_finite, NaN in layer 2",
        "gpu-0: unit done, forward 1.2 s, waited for the writing 0.5 s",
    ]


def test_a_long_unit_tells_of_a_batch_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    clock = iter([0.0, 10.0, 30.0, 59.0, 60.0])
    monkeypatch.setattr(unit_log.time, "monotonic", lambda: next(clock))
    counts = EngineCounts("cpu")
    log = UnitLog(lines.append, counts, lambda _: None)
    for _ in range(5):
        counts.hear(messages.BatchStarted(10))
        log(messages.BatchStarted(10))
    assert [line.split()[3] for line in lines] == ["1", "3", "5"]


def test_the_last_lines_of_a_log(tmp_path: Path) -> None:
    path = tmp_path / "engine-cpu.log"
    path.write_text("".join(f"line {i}\n" for i in range(50)))
    assert last_lines(path, 2) == "line 48\nline 49"
    assert last_lines(tmp_path / "none") == ""
