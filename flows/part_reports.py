"""What nodes report of the parts of a job, taken into the ledger of the whole."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from flows.part_runs import Share
from flows.report import RunReport, run_folder
from flows.run import Run
from storage.files import exists, read_bytes
from storage.hashes import names_of
from tasks.engine_counts import EngineCounts
from tasks.planning import Plan, make_plan

_SUMS = ("restarts", "batches", "samples", "tokens", "busy_seconds")
_PEAKS = ("peak_memory_bytes", "peak_device_bytes")


def add_reports(run: Run, share: Share) -> None:
    """Take in what the runs of one part have reported, a run that failed too."""
    ledger = run.ledger
    for report in _reports(run, share):
        for phase in ("forward", "wait"):
            ledger.seconds[phase] += report.seconds.get(phase, 0.0)
        for entry in report.quarantined:
            ledger.quarantined[entry["sample_hash"]] = (entry["reason"], entry["detail"])
        for counts in report.engines:
            _add_engine(ledger.engines, replace(counts, device=f"{report.host}:{counts.device}"))


def settle(run: Run, plan: Plan) -> None:
    """Let the store say what was done of the plan: a node that died has reported nothing, and stored what it did."""
    assert run.tokens is not None  # noqa: S101 - there was a plan
    job, ledger = run.job, run.ledger
    left = set(make_plan(job.store, job.spec, run.tokens).missing.tolist())
    names = names_of(run.tokens.hashes[plan.missing])
    rows = list(zip(plan.missing.tolist(), names, plan.lengths.tolist(), strict=True))
    ledger.done = {name: length for index, name, length in rows if index not in left}
    lacking = {name for index, name, _ in rows if index in left}
    ledger.quarantined = {name: why for name, why in ledger.quarantined.items() if name in lacking}


def _reports(run: Run, share: Share) -> Iterator[RunReport]:
    for run_id in share.reports():
        file = run_folder(run.job.store, run_id) / "report.json"
        if exists(file):
            document: dict[str, Any] = json.loads(read_bytes(file))
            yield RunReport.model_validate(document)


def _add_engine(known: list[EngineCounts], counts: EngineCounts) -> None:
    same = next((one for one in known if one.device == counts.device), None)
    if same is None:
        known.append(counts)
        return
    for name in _SUMS:
        setattr(same, name, getattr(same, name) + getattr(counts, name))
    same.timeline.join(counts.timeline)
    for name in _PEAKS:
        setattr(same, name, max(getattr(same, name), getattr(counts, name)))
