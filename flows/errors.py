"""Errors of the flows."""

from typing import ClassVar


class SettingsError(Exception):
    """A setting is missing, unknown or out of bounds, or a settings file cannot be read."""

    kind: ClassVar[str] = "settings"
