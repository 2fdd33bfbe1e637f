"""The benchmark of tokenizing measures what it says, on a little data."""

import json

import tokenization


def test_the_same_chats_are_written_each_time(tmp_path):
    for name in ("a", "b"):
        tokenization.write_chats(tmp_path / name, 50_000)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    rows = [json.loads(line) for line in (tmp_path / "a").read_bytes().splitlines()]
    assert 50_000 <= (tmp_path / "a").stat().st_size < 100_000
    assert [row["id"] for row in rows] == list(range(len(rows)))
    assert all(len(row["messages"]) in (2, 4, 6, 8) for row in rows)


def test_both_are_timed_over_the_same_tokens(tmp_path, smollm2):
    assert smollm2.is_dir()
    figures = tokenization.measure_speed(tmp_path, 20_000, rounds=1)
    assert figures["tokens"] > 1000
    assert set(figures["tokens_per_second"]) == {"aerie", "encode_batch"}
    assert figures["ratio"] > 0


def test_the_memory_of_every_part_is_seen(tmp_path, smollm2, monkeypatch):
    assert smollm2.is_dir()
    monkeypatch.setattr(tokenization, "SAMPLE_SECONDS", 0.01)
    figures = tokenization.measure_memory(tmp_path, 100_000)
    assert figures["processes"] >= 1
    assert figures["peak_bytes_by_part"][0] > 1 << 20
