from jobs import Finished

from flows.artifacts import accounting_table, engines_table, quarantine_table, report_text
from tasks.engine_counts import EngineCounts


def test_the_accounting_has_a_row_a_reason_and_adds_up(finished: Finished) -> None:
    table = {row["column"]: row["rows"] for row in accounting_table(finished.report.rows)}
    assert table["rejected: invalid_json"] == 2
    assert table["in"] + table["split"] == sum(n for name, n in table.items() if name not in ("in", "split"))


def test_engines_have_rate_memory_and_restarts() -> None:
    busy = EngineCounts("gpu-0", 1, 9, 2, 30_000, 2.0, peak_memory_bytes=5_000_000, peak_device_bytes=7_000_000_000)
    assert engines_table([busy, EngineCounts("gpu-1")]) == [
        {
            "device": "gpu-0",
            "tokens": "30,000",
            "tokens/s": "15,000",
            "samples": 2,
            "memory": "5.0 MB",
            "GPU memory": "7.0 GB",
            "restarts": 1,
        },
        {
            "device": "gpu-1",
            "tokens": "0",
            "tokens/s": "-",
            "samples": 0,
            "memory": "-",
            "GPU memory": "-",
            "restarts": 0,
        },
    ]


def test_a_report_links_to_store_and_report(finished: Finished) -> None:
    text = report_text(finished.report)
    assert text.startswith("### completed\n")
    assert f"[store](file://{finished.store})" in text
    assert f"[report.json](file://{finished.report.folder}/report.json)" in text
    assert quarantine_table(finished.report) == []
