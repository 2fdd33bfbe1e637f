"""The report of a run as one HTML file that needs nothing beside it."""

from collections.abc import Mapping
from importlib.resources import files

from jinja2 import Environment

from flows import artifacts
from flows.advice import advise
from flows.report import RunReport, summarize
from storage.files import clear_errors, replace_file
from storage.paths import StorePath

NAME = "report.html"
MOST_QUARANTINED = 200


def make_page(report: RunReport, plots: Mapping[str, str]) -> str:
    """Return the page; all that comes from data is escaped, and it loads nothing.

    Args:
        report: of the run.
        plots: those of `plots.draw_plots`.
    """
    text = files("flows").joinpath("data/report.html.jinja").read_text()
    return (
        Environment(autoescape=True)
        .from_string(text)
        .render(
            report=report,
            plots=plots,
            advice=list(advise(report)),
            summary=summarize(report),
            accounting=artifacts.accounting_table(report.rows),
            engines=artifacts.engines_table(report.engines),
            limit=MOST_QUARANTINED,
        )
    )


def write_page(report: RunReport, plots: Mapping[str, str]) -> StorePath:
    """Write the page beside `report.json`, whole or not at all.

    Raises:
        StorageError: the store cannot be written.
    """
    path = report.folder / NAME
    with clear_errors(path):
        replace_file(path, make_page(report, plots).encode())
    return path
