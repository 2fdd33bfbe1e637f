"""The steps of a run, each with its task, its name in Prefect's pages and its time in the ledger."""

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import cast

from prefect import runtime
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture, as_completed
from prefect.states import Completed

from flows.progress import Counting, format_bytes, format_count
from flows.report import RunResult
from flows.run import Run
from storage.store import add_spec
from tasks import messages
from tasks.compaction import compact
from tasks.device_slots import DeviceSlots
from tasks.engine_pool import EnginePool
from tasks.extraction import extract
from tasks.planning import Plan, cut_units, make_plan, require_space
from tasks.token_summaries import summarize_tokens
from tasks.tokenization import tokenize
from tasks.validation import validate

# What a run is called that has set samples aside: all else is stored, and the next run tries those again.
QUARANTINED = "CompletedWithQuarantine"


def finish(run: Run) -> RunResult:
    """Write the report; a run that set samples aside completes by another name, which a flow says by a state."""
    result = RunResult(run.close("completed"))
    if not result.report.quarantined:
        return result
    reasons = ", ".join(f"{reason} {count}" for reason, count in result.report.count_quarantined().items())
    message = f"{format_count(len(result.report.quarantined), 'sample')} set aside: {reasons}; the next run tries again"
    state: State[RunResult] = Completed(data=result, name=QUARANTINED, message=message)
    return cast("RunResult", state)  # a call gives back the data of a state


@contextmanager
def reported(run: Run) -> Iterator[None]:
    """Leave a report of a run that fails or is interrupted, too."""
    try:
        yield
    except Exception as error:
        run.close("failed", " ".join(str(error).split()))
        raise
    except BaseException as error:
        run.close("interrupted", type(error).__name__)
        raise


def tokenize_data(run: Run) -> None:
    """Make the tokens artifact, or take the one that is there."""
    job, ledger = run.job, run.ledger
    counting = Counting(ledger.progress, "tokenize", "bytes")
    with ledger.timed("tokenize"):
        run.tokens = tokenize.with_options(
            task_run_name=f"tokenize {format_count(len(job.data), 'file')}, {format_bytes(job.data_bytes)}"
        )(
            job.store,
            **job.tokenization,
            on_progress=lambda _, num_bytes: counting(num_bytes, job.data_bytes),
        )
        run.summary = summarize_tokens(run.tokens)
    ledger.rows_in = run.tokens.accounting["in"]
    ledger.split = run.tokens.accounting.get("split", 0)
    ledger.rejected = run.tokens.accounting["rejected"]
    ledger.truncated = run.tokens.accounting["truncated"]


def plan_run(run: Run, span: range | None = None) -> Plan:
    """Ask the store what it lacks, and refuse what it has no room for; `span` are the rows of a part of the job."""
    job, ledger = run.job, run.ledger
    assert run.tokens is not None  # noqa: S101 - it comes after tokenize_data
    with ledger.timed("plan"):
        plan = ledger.plan = make_plan(job.store, job.spec, run.tokens, span)
    if span is not None:
        ledger.rows_in = plan.rows
    ledger.progress.note(
        f"{format_count(ledger.rows_in, 'row')}: {format_count(len(plan.missing), 'sample')} to compute "
        f"({format_count(plan.missing_tokens, 'token')}, {format_bytes(plan.raw_bytes)} raw), {plan.reused:,} reused, "
        f"{format_count(plan.duplicates, 'duplicate')}, {sum(ledger.rejected.values()):,} rejected"
    )
    require_space(plan, job.store, compact=job.settings.compact)
    return plan


def extract_missing(run: Run, plan: Plan) -> None:
    """Hand out units of work: for each engine one to compute, one that it writes meanwhile, and the next."""
    job, ledger = run.job, run.ledger
    units = cut_units(plan, unit_tokens=job.settings.unit_tokens, num_groups=len(job.groups))
    if units or plan.reused:  # also where only its file has been lost
        add_spec(job.store, job.spec)
    if not units:
        return
    ledger.progress.start_phase("extract", plan.missing_tokens)
    start = job.start_message(plan, run.tokens_digest)
    pool = EnginePool(start, job.groups, run.log_folder, job.settings.device_wait_seconds)
    slots = DeviceSlots(runtime.flow_run.id if runtime.deployment.id else None)
    with ledger.timed("extract"), slots, pool as engines:
        ledger.engines = engines.counts
        pending: set[PrefectFuture[messages.UnitDone]] = set()
        for number, unit in enumerate(units, start=1):
            name = f"extract {number}/{len(units)}: {format_count(plan.tokens_of(unit), 'token')}"
            named = extract.with_options(task_run_name=name)
            pending.add(named.submit(unit, engines, ledger.on_event, slots))
            if len(pending) == 3 * len(job.groups):
                _settle_one(pending, run)
        while pending:
            _settle_one(pending, run)


def _settle_one(pending: set[PrefectFuture[messages.UnitDone]], run: Run) -> None:
    """Take in a unit that is done, whichever is first: an engine that is slow or lost keeps no other from its work."""
    done = next(as_completed(list(pending)))
    pending.remove(done)
    run.ledger.add_unit(done.result())
    run.show_engines()


def validate_done(run: Run, others: Collection[str] = ()) -> None:
    """Read back what this run wrote, and others, or a share of them; what is bad is set aside for the next run."""
    job, ledger = run.job, run.ledger
    hashes = _choose(sorted({*ledger.done, *others}), job.settings.validate_fraction)
    if not hashes:
        return
    with ledger.timed("validate"):
        report = validate.with_options(task_run_name=f"validate {format_count(len(hashes), 'sample')}")(
            job.store,
            job.spec_digest,
            hashes=hashes,
            set_aside=True,
            on_progress=Counting(ledger.progress, "validate", "samples"),
        )
    ledger.set_aside(report.findings)


def compact_states(run: Run, only: Collection[str] | None = None) -> None:
    """Copy what lies loose, or only some of it, into packs, unless the settings say otherwise."""
    job, ledger = run.job, run.ledger
    if not job.settings.compact:
        return
    with ledger.timed("compact"):
        compact.with_options(task_run_name=f"compact {job.store.name}")(
            job.store,
            job.spec_digest,
            only=only,
            on_progress=Counting(ledger.progress, "compact", "samples"),
            on_merge=Counting(ledger.progress, "merge packs", "samples"),
        )


def _choose(hashes: list[str], fraction: float) -> list[str]:
    """Choose a share of the hashes, at least one if any share is asked for; hashes are random, so the first will do."""
    return hashes[: math.ceil(len(hashes) * fraction)]
