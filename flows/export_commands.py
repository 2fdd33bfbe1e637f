"""`aerie export`: states of a store as files that a trainer reads."""

import argparse
from pathlib import Path
from typing import Any

from flows.argument_types import count
from flows.prefect_defaults import require_prefect
from flows.printing import print_document, progress_on_stderr
from flows.secret_block import secret_environment
from tasks.trainer_files.exporter import ExportInfo
from tasks.trainer_files.formats import FORMATS
from tasks.trainer_files.plan import ExportPlan, require_room
from tasks.trainer_files.requests import ExportRequest, make_export_plan


def export(arguments: argparse.Namespace) -> int:
    """Write the states of a store as files that a trainer reads; those that are there and right stay."""
    wanted = {
        "spec_digest": arguments.spec,
        "tokens_digest": arguments.tokens,
        "layers": arguments.layers,
        "rows": arguments.rows,
        "missing": arguments.missing,
        "allow_lossy": arguments.allow_lossy,
    }
    with secret_environment(arguments.secret_block):
        plan = make_export_plan(ExportRequest(arguments.store, arguments.format, arguments.to, **wanted))
        if arguments.dry_run:
            print_document("Export", _plan_document(plan), as_json=arguments.json)
            require_room(plan)
        else:
            info = _export(arguments, wanted)
            print_document("Export", _info_document(info, arguments.format), as_json=arguments.json)
    return 0


def _export(arguments: argparse.Namespace, wanted: dict[str, Any]) -> ExportInfo:
    require_prefect()
    from flows.crash_detection import watched  # noqa: PLC0415 - imports prefect, after what can be refused was
    from flows.maintenance import export_store  # noqa: PLC0415

    with progress_on_stderr(), watched():
        info: ExportInfo = export_store(
            arguments.store, arguments.format, arguments.to, threads=arguments.threads, **wanted
        )
    return info


def add_export(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `aerie export`, but the store."""
    formats = "; ".join(f"{name}: {form.summary}" for name, form in FORMATS.items())
    parser.add_argument("--format", required=True, choices=list(FORMATS), help=formats)
    parser.add_argument(
        "--to", type=Path, required=True, metavar="FOLDER", help="an empty folder, or one to go on with"
    )
    parser.add_argument(
        "--tokens", metavar="DIGEST", help="which tokens, by a prefix of the digest, if there are several"
    )
    parser.add_argument("--layers", metavar="LAYERS", help="as for extract, of those that the store has")
    parser.add_argument("--rows", metavar="START:STOP", help="of the rows that were kept (default: all)")
    parser.add_argument(
        "--missing",
        choices=["error", "skip"],
        default="error",
        help="what to do about rows without states (%(default)s)",
    )
    parser.add_argument("--allow-lossy", action="store_true", help="export rounded states, or round them to bfloat16")
    parser.add_argument("--threads", type=count, metavar="N", help="that read, decode and write (default: two a core)")


def _plan_document(plan: ExportPlan) -> dict[str, Any]:
    return {
        "format": plan.form.name,
        "folder": str(plan.folder),
        "rows": len(plan.kept),
        "rows_without_states": plan.num_missing,
        "tokens": plan.num_tokens,
        "write_bytes": plan.num_bytes,
        "free_bytes": plan.free_bytes(),
        **_layers_document(plan.choice.aux, plan.form.owner_ids(plan.choice), plan.choice.last, plan.choice.norm),
        "spec_digest": plan.store.spec_digest,
        "tokens_digest": plan.tokens.digest,
    }


def _info_document(info: ExportInfo, name: str) -> dict[str, Any]:
    return {
        "format": name,
        "folder": str(info.folder),
        "rows": info.rows,
        "written": info.written,
        "present": info.present,
        "rows_without_states": info.missing,
        "all_bytes": info.bytes,
        **_layers_document(info.layers, info.owner_ids, info.last, info.norm),
        "draft_vocabularies": [str(file) for file in info.vocabularies],
    }


def _layers_document(layers: Any, owner_ids: list[int], last: Any, norm: str | None) -> dict[str, Any]:
    return {
        "layers": list(layers),
        "layers_as_the_trainer_counts": owner_ids,
        "last_layer": last,
        "norm": norm,
    }
