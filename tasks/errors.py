"""Errors of the steps: of the data, of the plan, and of the engine process."""

from pathlib import Path
from typing import ClassVar, Self


class TaskError(Exception):
    """What a step can fail with; `kind` is stable, the message is one line with value, limit and cure."""

    kind: ClassVar[str] = "task"


class DataError(TaskError):
    """The data files cannot be used."""

    kind = "data"


class DataNotFoundError(DataError):
    """A data file does not exist or is not a file."""

    kind = "data_not_found"


class EmptyDataError(DataError):
    """No row, or no usable row, is in the data files."""

    kind = "empty_data"


class TruncatedDataError(DataError):
    """A data file ends in the middle of a row, or is damaged from some byte on: a copy or download was cut off."""

    kind = "truncated_data"

    def __init__(
        self,
        file: Path,
        line: int,
        byte: int,
        problem: str = "the last line has no newline and is not complete JSON",
        unit: str = "line",
    ) -> None:
        self.file, self.line, self.byte, self.problem, self.unit = file, line, byte, problem, unit
        super().__init__(
            f"{file}: cut off in {unit} {line}, at byte {byte}: {problem}; copy the file again, or keep the rows "
            "before with cut_off = keep"
        )

    def __reduce__(self) -> tuple[type[Self], tuple[Path, int, int, str, str]]:
        return type(self), (self.file, self.line, self.byte, self.problem, self.unit)


class TokenizerError(TaskError):
    """The model's tokenizer or chat template is missing or cannot be loaded."""

    kind = "tokenizer"


class TokenizationError(TaskError):
    """A process that tokenizes has died."""

    kind = "tokenization"


class PlanError(TaskError):
    """The work cannot be planned."""

    kind = "plan"


class NotEnoughSpaceError(PlanError):
    """The store has no room for what the run would write."""

    kind = "not_enough_space"


class WorkerError(TaskError):
    """An engine process died or stopped answering; `log_path` holds what it printed."""

    kind = "worker"

    def __init__(self, message: str, log_path: Path) -> None:
        self.message, self.log_path = message, log_path
        super().__init__(f"{message}; its log is {log_path}")

    def __reduce__(self) -> tuple[type[Self], tuple[str, Path]]:
        return type(self), (self.message, self.log_path)


class LandingError(TaskError):
    """There is no memory where states of a GPU could land."""

    kind = "landing"


class EncoderLostError(TaskError):
    """A process that encodes and commits has died."""

    kind = "encoder_lost"


class RunEndedError(TaskError):
    """Work was asked of a run that is over."""

    kind = "run_ended"


class PartError(TaskError):
    """A part of a job was given to nodes again and again, and none could do it."""

    kind = "part"


class TooManyQuarantinedError(TaskError):
    """More samples were set aside than the run allows."""

    kind = "too_many_quarantined"


class ExportError(TaskError):
    """States cannot become the files that were asked for."""

    kind = "export"


class PlotError(TaskError):
    """Something cannot be drawn of these states."""

    kind = "plot"


class ImportFilesError(TaskError):
    """Files of a trainer cannot become states of a store."""

    kind = "import_files"
