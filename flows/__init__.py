"""Run Aerie: flows over chats, models and stores.

from flows import Settings, extract_hidden_states
result = extract_hidden_states(Settings(model="...", data="chats.jsonl", store="states"))
"""

import importlib
from typing import TYPE_CHECKING, Any

from flows import prefect_defaults as _prefect_defaults  # before anything imports prefect

if TYPE_CHECKING:
    from flows.maintenance import compact_store, export_store, validate_store
    from flows.nodes import extract_on_nodes
    from flows.pipeline import extract_hidden_states
    from flows.report import RunReport, RunResult
    from flows.settings import Settings

__all__ = [
    "RunReport",
    "RunResult",
    "Settings",
    "compact_store",
    "export_store",
    "extract_hidden_states",
    "extract_on_nodes",
    "validate_store",
]

_HOMES = {
    "RunReport": "flows.report",
    "RunResult": "flows.report",
    "Settings": "flows.settings",
    "compact_store": "flows.maintenance",
    "export_store": "flows.maintenance",
    "extract_hidden_states": "flows.pipeline",
    "extract_on_nodes": "flows.nodes",
    "validate_store": "flows.maintenance",
}

_prefect_defaults.apply()
_prefect_defaults.quiet_notebook()


def __getattr__(name: str) -> Any:
    """Import a public name on first use: prefect takes over a second, and the command line often does without."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
