"""The reports that runs have left in a store, found by run id, and read."""

from pydantic import ValidationError

from flows.errors import ReportError
from flows.report import RunReport, run_folder
from storage.errors import CorruptObjectError
from storage.files import exists, names, read_document
from storage.layout import HEADER, check_version
from storage.paths import StorePath

REPORT = "report.json"
# Ids that an error names: the newest.
MOST_NAMED = 5


def is_store(place: StorePath) -> bool:
    """Say whether a place has the header of a store."""
    return exists(place / HEADER)


def run_ids(store: StorePath) -> list[str]:
    """List the runs that have left a folder, the oldest first.

    Raises:
        StorageError: `store` is no store of this version.
    """
    check_version(store)
    return sorted(name for name in names(store / "runs") if not name.startswith("."))


def find_run(store: StorePath, prefix: str) -> StorePath:
    """Return the folder of the one run whose id, or the random part at the end of it, begins with `prefix`.

    Raises:
        ReportError: none fits, or more than one.
        StorageError: `store` is no store of this version.
    """
    known = run_ids(store)
    fitting = [name for name in known if name.startswith(prefix) or name.rpartition("-")[2].startswith(prefix)]
    if prefix in known:
        fitting = [prefix]
    if len(fitting) != 1:
        raise ReportError(
            f"{len(fitting)} runs begin with {prefix!r}, exactly one must be meant; {store} has {_name(known)}"
        )
    return run_folder(store, fitting[0])


def last_runs(store: StorePath, count: int) -> list[StorePath]:
    """Return the folders of the last runs that have a report, the oldest of them first.

    Raises:
        ReportError: there are not so many.
        StorageError: `store` is no store of this version.
    """
    folders = [run_folder(store, name) for name in run_ids(store)]
    found = [folder for folder in folders if exists(folder / REPORT)][-count:]
    if len(found) < count:
        raise ReportError(f"{store} has {len(found)} runs with a report, {count} are needed; extract into it first")
    return found


def read_report(folder: StorePath) -> RunReport:
    """Read the report of a run, given its folder or the file itself.

    Raises:
        ReportError: there is none, or it is none of this version.
    """
    file = folder if folder.name == REPORT else folder / REPORT
    try:
        return RunReport.model_validate(read_document(file))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ReportError(
            f"there is no {file}; give a run that has ended: one that was killed, or goes on, has no report"
        ) from error
    except CorruptObjectError as error:
        raise ReportError(f"{file} is damaged: {str(error).partition('; ')[0]}; give another run") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ReportError(
            f"{file} is no report of this version: {where}: {first['msg']}; compare runs of one version"
        ) from error


def _name(known: list[str]) -> str:
    if not known:
        return "no runs"
    newest = ", ".join(reversed(known[-MOST_NAMED:]))
    more = len(known) - MOST_NAMED
    return f"{newest} and {more} older ones" if more > 0 else newest
