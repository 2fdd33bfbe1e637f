"""Settings as flags of the command line."""

import argparse
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from flows.settings import Settings


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each setting, so that there is one list of them."""
    parser.add_argument("--config", type=Path, help="TOML file of settings (AERIE_CONFIG, else aerie.toml)")
    for name, field in Settings.model_fields.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            **_takes(name, field),
            metavar=name.upper(),
            help=_describe(field).replace("%", "%%"),
        )


def given_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that were given as flags."""
    names = {*Settings.model_fields, "config"}
    return {name: value for name, value in vars(arguments).items() if name in names and value is not None}


def _takes(name: str, field: FieldInfo) -> dict[str, Any]:
    """Say how many values a flag has; one that turns something on needs none."""
    if name == "data":
        return {"nargs": "+"}
    return {"nargs": "?", "const": "true"} if field.annotation is bool else {}


def _describe(field: FieldInfo) -> str:
    notes = [" | ".join(get_args(field.annotation))] if get_origin(field.annotation) is Literal else []
    if not field.is_required() and field.default is not None:
        notes.append(f"default {field.default}")
    return f"{field.description} ({'; '.join(notes)})" if notes else str(field.description)
