"""The main flow: chats and a model in, a store of hidden states out."""

from prefect import flow, get_run_logger, runtime

from flows.accounting import Ledger
from flows.board import Board
from flows.form import SettingsForm, read_form
from flows.job import prepare_job
from flows.prefect_defaults import tie_server
from flows.presence import present
from flows.progress import run_progress
from flows.report import RunResult
from flows.run import Run
from flows.secret_block import secret_environment
from flows.steps import compact_states, extract_missing, finish, plan_run, reported, tokenize_data, validate_done
from storage.store import init_store

tie_server()


def _name_run() -> str:
    settings = read_form(runtime.flow_run.parameters["settings"])
    return f"extract {settings.model.name} into {settings.store.name}"


# Prefect's own check of parameters says what is wrong on several lines.
@flow(name="extract-hidden-states", flow_run_name=_name_run, persist_result=False, validate_parameters=False)
def extract_hidden_states(settings: SettingsForm) -> RunResult:
    """Turn chats into stored hidden states; what the store has already is not computed again.

    Args:
        settings: model, data, store and the rest; unset fields come from the environment, `.env` and TOML.

    Returns:
        The report and the store. The report also lies in `<store>/runs/<run id>/report.json`.

    Raises:
        SettingsError, EngineError, StorageError, TaskError: one line with the value, the limit and the cure.
    """
    settings = read_form(settings)
    board = Board(runtime.flow_run.id)
    with present(runtime.flow_run.id), secret_environment(settings.secret_block), board.shown():
        progress = run_progress(get_run_logger().info, board)
        job = prepare_job(settings, progress)
        init_store(job.store)
        run = Run(job, Ledger(progress, settings.max_quarantined), board)
        with reported(run):
            tokenize_data(run)
            extract_missing(run, plan_run(run))
            validate_done(run)
            compact_states(run)
        return finish(run)
