"""Errors of the flows."""

from typing import ClassVar


class SettingsError(Exception):
    """A setting is missing, unknown or out of bounds, or a settings file cannot be read."""

    kind: ClassVar[str] = "settings"


class ReportError(Exception):
    """The report of a run is not there, is not the only one that is meant, or cannot be read."""

    kind: ClassVar[str] = "report"
