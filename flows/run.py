"""One run of the flow: what is known of it so far, its report, and what it shows."""

import socket
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice

from flows import artifacts
from flows.accounting import Ledger
from flows.board import Board
from flows.job import Job
from flows.plots import draw_plots
from flows.report import RunReport, Status, measure_states, new_run_id, run_folder
from flows.report_page import write_page
from storage.errors import StorageError
from storage.files import backend_of
from storage.store import open_store
from storage.tokens import Tokens
from tasks.state_summaries import NUM_SAMPLES, StatesSummary, summarize_states
from tasks.token_summaries import TokensSummary


@dataclass
class Run:
    """One run of the flow: the job, what is known of it so far, and its ledger.

    Attributes:
        run_id: names its folder in the store; chosen, unless given.
    """

    job: Job
    ledger: Ledger
    board: Board
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    tokens: Tokens | None = None
    summary: TokensSummary | None = None
    run_id: str = ""

    def __post_init__(self) -> None:
        self.run_id = self.run_id or new_run_id(self.started)
        self.folder = run_folder(self.job.store, self.run_id)
        self.log_folder = backend_of(self.folder).local_folder(self.folder)

    @property
    def tokens_digest(self) -> str:
        """The digest that names the tokens artifact."""
        return self.job.tokens_spec.digest()

    def close(self, status: Status, error: str | None = None) -> RunReport:
        """Write the report."""
        job, ledger, plan = self.job, self.ledger, self.ledger.plan
        report = RunReport(
            run_id=self.run_id,
            status=status,
            error=error,
            started=self.started,
            finished=datetime.now(UTC),
            store=job.store.absolute(),
            rows=ledger.rows(),
            truncated=ledger.truncated,
            tokens=plan.tokens if plan else 0,
            tokens_computed=ledger.tokens_done(),
            data=self.summary,
            bytes=measure_states(job.store, job.spec_digest),
            seconds={phase: round(seconds, 3) for phase, seconds in ledger.seconds.items()},
            model=str(job.settings.model),
            revision=job.revision,
            host=socket.gethostname(),
            settings=job.settings.model_dump(mode="json"),
            spec=job.spec.to_json(),
            spec_digest=job.spec_digest,
            tokens_digest=self.tokens_digest if self.tokens else None,
            states=self._summarize_states() if status == "completed" else None,
            quarantined=[
                {"sample_hash": name, "reason": reason, "detail": detail}
                for name, (reason, detail) in ledger.quarantined.items()
            ],
            engines=[replace(counts) for counts in ledger.engines],
        )
        report.write()
        plots = {} if status == "interrupted" else self._draw(report)  # who was told to stop does so
        backend_of(self.folder).publish(self.log_folder, self.folder)
        self.show_report(report)
        for title, url in plots.items():
            self.board.put_image(title.lower().replace(" ", "-"), url, title)
        return report

    def _draw(self, report: RunReport) -> dict[str, str]:
        """Write the page of the report, and return its plots."""
        try:
            plots = draw_plots(report)
            write_page(report, plots)
        except Exception as error:  # noqa: BLE001 - no picture may hide what the run came to
            self.ledger.progress.note(f"report.html cannot be drawn: {type(error).__name__}: {error}")
            return {}
        return plots

    def _summarize_states(self) -> StatesSummary | None:
        if self.ledger.plan is None or not self.ledger.plan.rows:
            return None
        try:
            store = open_store(self.job.store, self.job.spec_digest)
            return summarize_states(store, sorted(self.ledger.done) or list(islice(store, NUM_SAMPLES)))
        except StorageError as error:  # of what was there before; to find that is not what this run is for
            self.ledger.progress.note(f"states are not summarized: {error}")
            return None

    def show_engines(self) -> None:
        """Bring the table of engines up to date."""
        if self.ledger.engines:
            self.board.put_table("engines", artifacts.engines_table(self.ledger.engines), "What each engine did")

    def show_report(self, report: RunReport) -> None:
        """Show what the run came to."""
        self.show_engines()
        self.board.put_table("accounting", artifacts.accounting_table(report.rows), "Every row is in one column")
        if report.quarantined:
            self.board.put_table("quarantine", artifacts.quarantine_table(report), "Samples that were set aside")
        self.board.put_text("report", artifacts.report_text(report), f"Run {report.run_id}")
