"""The benchmarks of extraction run, small, and measure what they say."""

import extract
import long_run
from record import read_results


def test_all_ways_are_run_and_what_ours_leaves_is_whole(tmp_path, capsys) -> None:
    arguments = ["--device", "cpu", "--small", "--rounds", "1", "--model", "llama-8b", "--no-transformers"]
    trace = tmp_path / "trace"
    extract.main([str(tmp_path / "bench"), *arguments, "--results", str(tmp_path), "--trace", str(trace)])
    [document] = read_results("extraction", tmp_path)
    found = document["figures"]["llama-8b"]
    assert set(found["ways"]) == {"forward", "ours", "torch.save", "torch.save, padded", "disk"}
    assert found["checked"] | {"seconds": 0} == {"samples": found["samples"], "missing": 0, "findings": 0, "seconds": 0}
    ours, forward = found["ways"]["ours"], found["ways"]["forward"]
    assert ours["stored_bytes"]["median"] > 0
    assert ours["first_commit_seconds"]["median"] > 0
    assert 0 < ours["in_flight_bytes"]["max"] <= found["tokens"] * found["bytes_per_token"] + 64 * found["samples"]
    assert all(0 <= way["idle_share"]["median"] < 1 for way in (ours, forward))
    assert found["ratios"]["forward"] == 1
    assert "| ours |" in capsys.readouterr().out
    spans = {
        line.split('"name":"')[1].split('"')[0] for line in trace.with_suffix(".llama-8b.json").open() if '"X"' in line
    }
    assert spans == {"forward", "wait", "copy", "write", "encode", "commit"}
    assert not (tmp_path / "bench" / "llama-8b").exists()


def run(status: str, done: int, reused: int) -> dict:
    rows = {"done": done, "reused": reused, "unfinished": 0, "quarantined": {}}
    return {
        "status": status, "rows": rows, "seconds": {"extract": 2.0}, "tokens": 1000, "tokens_computed": 10 * done,
        "bytes": {"raw": 4000, "stored": 3000, "ratio": 1.33}, "exit_code": 0, "seconds_in_all": 3.0, "engines": [],
    }  # fmt: skip


def test_a_sample_that_was_done_twice_is_found() -> None:
    runs = [run("interrupted", 30, 0), run("interrupted", 33, 30), run("completed", 36, 64)]
    sound = long_run.account(runs, 9.0, 100, 0)
    assert (sound["faults"], sound["untold"], sound["done"]) == ([], 1, [30, 33, 36])
    assert sound["extract_tokens_per_second"] == 990 / 6
    runs[-1] = run("completed", 38, 64)
    assert long_run.account(runs, 9.0, 100, 1)["faults"] == ["samples were done twice", "the check found something"]
