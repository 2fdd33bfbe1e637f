"""What a Prefect server is to offer: the deployments of `data/prefect.yaml`, with the settings that are known now."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from flows.errors import SettingsError
from flows.form import group_settings
from flows.settings import Explained

NIGHTLY = "extract-nightly"
PART_ENTRYPOINT = "flows.nodes:extract_part"
REQUIRED = ("model", "data", "store")


@dataclass(frozen=True)
class Deployment:
    """One entry of the list.

    Attributes:
        entrypoint: `module:function` of the flow.
        parameters: what its form starts with, and what a schedule runs with.
        cron, timezone, is_active: its schedule, if it has one.
        concurrency: how many of its runs there may be at once, and what becomes of more, as Prefect has it.
    """

    name: str
    description: str
    entrypoint: str
    pool: str
    queue: str
    parameters: dict[str, Any] = field(default_factory=dict)
    cron: str | None = None
    timezone: str = "UTC"
    is_active: bool = False
    concurrency: dict[str, Any] | None = None


def list_deployments(known: Mapping[str, Any], nightly: str | None = None) -> list[Deployment]:
    """Return all deployments.

    Args:
        known: settings by name that their forms start with; `store` is that of the flows over a store, too.
        nightly: cron expression of the nightly run, which then starts unpaused.

    Raises:
        SettingsError: a nightly run is asked for, and it is not known of what.
    """
    missing = [name for name in REQUIRED if name not in known]
    if nightly is not None and missing:
        raise SettingsError(f"a nightly run needs {', '.join(missing)}; give them as flags, AERIE_* or in aerie.toml")
    return [_read(entry, known, nightly) for entry in _document()["deployments"]]


def known_settings(explained: list[Explained]) -> dict[str, Any]:
    """Return the settings that do not come from their defaults, with absolute paths: a worker runs elsewhere."""
    return {
        item.name: absolute(item.name, item.value) for item in explained if item.source not in ("default", "not set")
    }


def _document() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((files("flows") / "data" / "prefect.yaml").read_text())
    return document


def _read(entry: Mapping[str, Any], known: Mapping[str, Any], nightly: str | None) -> Deployment:
    schedule = next(iter(entry.get("schedules", ())), None)
    deployment = {
        "name": entry["name"],
        "description": entry["description"],
        "entrypoint": entry["entrypoint"],
        "pool": entry["work_pool"]["name"],
        "queue": entry["work_pool"]["work_queue_name"],
        "parameters": _parameters(entry["entrypoint"], known),
        "concurrency": entry.get("concurrency_limit"),
    }
    if schedule is not None:
        chosen = nightly if entry["name"] == NIGHTLY else None
        deployment |= {
            "cron": chosen or schedule["cron"],
            "timezone": schedule["timezone"],
            "is_active": schedule["active"] or chosen is not None,
        }
    return Deployment(**deployment)


def _parameters(entrypoint: str, known: Mapping[str, Any]) -> dict[str, Any]:
    if entrypoint == PART_ENTRYPOINT:  # who hands out parts says of what
        return {}
    if entrypoint.startswith(("flows.pipeline:", "flows.nodes:")):
        return {"settings": group_settings(known)} if known else {}
    return {"store": str(known["store"])} if "store" in known else {}


def absolute(name: str, value: Any) -> Any:
    """Return the value of a setting with absolute paths; the id of a model in the Hub stays one."""
    if isinstance(value, tuple):
        return [absolute(name, item) for item in value]
    if isinstance(value, Path) and (name != "model" or value.exists()):  # else it is the id of a model in the Hub
        return str(value.absolute())
    return value
