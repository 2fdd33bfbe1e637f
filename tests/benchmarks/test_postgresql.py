"""The benchmark of work units on PostgreSQL, small: real workers, server and database, no error in any log."""

from pathlib import Path

from postgresql import find_errors, run_units


def test_workers_do_every_unit_once_and_no_log_has_an_error(tmp_path: Path) -> None:
    figures = run_units(tmp_path, workers=2, units=3)
    assert figures["errors"] == []
    assert figures["states"] == {"Completed": 3}
    assert figures["started_more_than_once"] == 0
    assert sum(figures["units_of_each_worker"]) == 3
    assert "database system is ready" in (tmp_path / "postgresql.log").read_text()


def test_an_error_in_any_log_is_found(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text("12:00:00.000 | ERROR   | prefect.server - lost\nall is well\n")
    (tmp_path / "worker-0.log").write_text("Traceback (most recent call last):\n")
    (tmp_path / "postgresql.log").write_text("2026-01-01 UTC [1] LOG:  no errors\n2026-01-01 UTC [1] FATAL:  gone\n")
    assert [line.partition(":")[0] for line in find_errors(tmp_path)] == [
        "postgresql.log",
        "server.log",
        "worker-0.log",
    ]
