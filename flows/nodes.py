"""One job on several machines: a flow hands out parts of it, and a flow on each node does them.

Tokens are made once, by the first flow, and lie in the store; so do the states. Whatever a node has committed before it
died is there for the next one.
"""

from collections.abc import Iterable
from contextlib import closing
from typing import Annotated

from prefect import flow, get_run_logger, runtime
from pydantic import Field

from flows.accounting import Ledger
from flows.board import Board
from flows.errors import SettingsError
from flows.form import SettingsForm, read_form, titled
from flows.job import Job, prepare_job, prepare_part
from flows.part import Part, PartForm, read_part, settings_of_nodes
from flows.part_reports import add_reports, settle
from flows.part_runs import PartRuns, Share, require_deployment
from flows.prefect_defaults import tie_server
from flows.presence import present
from flows.progress import format_count, run_progress
from flows.report import RunResult
from flows.run import Run
from flows.secret_block import secret_environment
from flows.settings import Settings
from flows.steps import compact_states, extract_missing, finish, plan_run, reported, tokenize_data, validate_done
from storage.hashes import names_of
from storage.store import add_spec, init_store, read_spec
from storage.tokens import open_tokens
from tasks.engine.devices import layout_of
from tasks.errors import PartError, PlanError
from tasks.planning import Plan, cut_parts

tie_server()

# Of eight H200 that compute an 8B model, in a quarter of an hour.
PART_TOKENS = 250_000_000

PartTokens = Annotated[int, Field(ge=1), titled("Tokens of a part")]


def _name_run() -> str:
    settings = read_form(runtime.flow_run.parameters["settings"])
    return f"extract {settings.model.name} into {settings.store.name} on nodes"


# Prefect's own check of parameters says what is wrong on several lines.
@flow(name="extract-on-nodes", flow_run_name=_name_run, persist_result=False, validate_parameters=False)
def extract_on_nodes(settings: SettingsForm, part_tokens: PartTokens = PART_TOKENS) -> RunResult:
    """Turn chats into stored hidden states on all nodes whose workers pull from the queue `gpu`, as they come and go.

    Args:
        settings: as of `extract_hidden_states`; the devices are those of each node.
        part_tokens: tokens that a node is given at a time: what it does in half an hour is good, since its engines
            start anew for each part, and at the end nodes wait for the last one.

    Returns:
        The report and the store.

    Raises:
        SettingsError, EngineError, StorageError, TaskError: one line with the value, the limit and the cure.
    """
    settings = read_form(settings)
    board = Board(runtime.flow_run.id)
    with present(runtime.flow_run.id), secret_environment(settings.secret_block), board.shown():
        require_deployment()
        progress = run_progress(get_run_logger().info, board)
        job = prepare_job(settings, progress, (layout_of(settings.devices),))
        init_store(job.store)
        run = Run(job, Ledger(progress, settings.max_quarantined), board)
        with reported(run):
            tokenize_data(run)
            _extract_parts(run, plan_run(run), _require_count(part_tokens))
            compact_states(run)
        return finish(run)


@flow(name="extract-part", persist_result=False, validate_parameters=False)
def extract_part(settings: SettingsForm, part: PartForm) -> RunResult:
    """Do a part of a job on this machine; `extract_on_nodes` hands them out.

    Args:
        settings: of the whole job; those of the machine may come from the environment.
        part: what to do of it.

    Raises:
        SettingsError, EngineError, StorageError, TaskError: one line with the value, the limit and the cure.
    """
    settings, part = read_form(settings), read_part(part)
    board = Board(runtime.flow_run.id)
    with present(runtime.flow_run.id), secret_environment(settings.secret_block), board.shown():
        progress = run_progress(get_run_logger().info, board)
        run = _prepare(settings, part, Ledger(progress, settings.max_quarantined), board)
        with reported(run):
            plan = plan_run(run, part.rows)
            extract_missing(run, plan)
            others = _stored_before(run, plan) if part.is_again else []
            validate_done(run, others)
            compact_states(run, only={*run.ledger.done, *others})
        return finish(run)


def _extract_parts(run: Run, plan: Plan, part_tokens: int) -> None:
    """Hand out what the store lacks, and take in what the nodes say of it, whatever ends it."""
    if len(plan.missing) or plan.reused:
        add_spec(run.job.store, run.job.spec)
    shares = list(_cut_shares(run, plan, part_tokens))
    if not shares:
        return
    progress = run.ledger.progress
    progress.start_phase("extract", plan.missing_tokens)
    progress.note(f"{format_count(len(shares), 'part')} of about {plan.missing_tokens // len(shares):,} tokens")
    runs = PartRuns(settings_of_nodes(run.job.settings), shares, run.run_id, progress.note)
    try:
        with run.ledger.timed("extract"), closing(runs.done()) as done:
            for share in done:
                progress.advance(share.tokens)
                add_reports(run, share)
                run.show_engines()
    finally:
        settle(run, plan)
    _require_all(run)


def _require_all(run: Run) -> None:
    if lacking := run.ledger.rows()["unfinished"]:
        raise PartError(f"{lacking:,} rows have no states though all parts are done; run again, and see their logs")


def _cut_shares(run: Run, plan: Plan, part_tokens: int) -> Iterable[Share]:
    for number, samples in enumerate(cut_parts(plan, part_tokens), start=1):
        part = Part(
            run_id=f"{run.run_id}/parts/{number:04}",
            tokens_digest=run.tokens_digest,
            spec_digest=run.job.spec_digest,
            first=int(samples[0]),
            stop=int(samples[-1]) + 1,
        )
        yield Share(part, number, plan.tokens_of(samples))


def _prepare(settings: Settings, part: Part, ledger: Ledger, board: Board) -> Run:
    tokens = open_tokens(settings.store, part.tokens_digest)
    if tokens is None:
        raise PlanError(
            f"{settings.store} has no tokens artifact {part.tokens_digest[:12]}; all nodes need the same store, at the "
            "same place"
        )
    job = prepare_part(settings, tokens, ledger.progress)
    _require_spec(job, part)
    return Run(job, ledger, board, tokens=tokens, run_id=part.run_id)


def _require_spec(job: Job, part: Part) -> None:
    """Refuse to compute other states than those that were asked for."""
    if job.spec_digest == part.spec_digest:
        return
    asked, ours = read_spec(job.store, part.spec_digest).to_json(), job.spec.to_json()
    differing = [f"{name} {ours.get(name)!r}, not {asked[name]!r}" for name in asked if ours.get(name) != asked[name]]
    raise PlanError(
        f"this node would compute other states than were asked for: {', '.join(differing)}; give all nodes the same "
        "model and version of SGLang, and where they have no GPU set devices to cpu"
    )


def _stored_before(run: Run, plan: Plan) -> list[str]:
    assert run.tokens is not None  # noqa: S101 - _prepare has opened them
    return names_of(run.tokens.hashes[plan.stored])


def _require_count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise SettingsError(f"part_tokens is {value!r}; give a whole number of at least 1")
    return value
