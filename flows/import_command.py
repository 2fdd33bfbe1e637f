"""`aerie import`: files that a trainer reads become a store."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from flows.argument_types import count, place
from flows.printing import print_document, print_line, progress_on_stderr
from flows.progress import Counting, current_progress
from flows.secret_block import secret_environment
from storage.storage_dtypes import STORAGE_DTYPES
from tasks.trainer_files.base import Norm

if TYPE_CHECKING:
    from tasks.trainer_files.import_specs import ImportRequest

SOURCES = ("specforge", "safetensors")
CONVENTIONS = ("aerie", "specforge")


def import_(arguments: argparse.Namespace) -> int:
    """Put files of SpecForge or safetensors into a store, states and tokens; done again, it goes on where it was."""
    from tasks.trainer_files.import_specs import ImportRequest  # noqa: PLC0415 - torch takes a second

    request = ImportRequest(
        folder=arguments.folder,
        source=arguments.source,
        store=arguments.store,
        model=arguments.model,
        layers=arguments.layers,
        convention=arguments.layer_convention,
        norm=arguments.norm,
        storage_dtype=arguments.storage_dtype,
        mantissa_bits=arguments.mantissa_bits,
    )
    run = _plan if arguments.dry_run else _import
    with secret_environment(arguments.secret_block), progress_on_stderr():
        run(request, arguments)
    return 0


def _import(request: "ImportRequest", arguments: argparse.Namespace) -> None:
    from tasks.trainer_files.importer import import_files  # noqa: PLC0415 - as above

    info = import_files(request, threads=arguments.threads, on_progress=_tell_steps())
    print_document("Import", {**vars(info), "store": str(request.store)}, as_json=arguments.json)


def _plan(request: "ImportRequest", arguments: argparse.Namespace) -> None:
    from tasks.planning import require_space  # noqa: PLC0415 - as above
    from tasks.trainer_files.importer import plan_import  # noqa: PLC0415

    found = plan_import(request, threads=arguments.threads, on_progress=_tell_steps())
    planned = found.plan
    document = {
        "files": found.files,
        "samples_to_store": len(planned.missing),
        "samples_present": found.files - len(planned.missing),
        "tokens_to_store": planned.missing_tokens,
        "raw_bytes": planned.raw_bytes,
        "stored_bytes_expected": planned.stored_bytes,
        "free_bytes": planned.free_bytes,
        "spec_digest": found.spec_digest,
        "tokens_digest": found.tokens_digest,
    }
    print_document("Import", document, as_json=arguments.json)
    require_space(planned, request.store, compact=True)


def _tell_steps() -> Callable[[str, int, int], None]:
    """Return what shows each step as a phase of its own."""
    progress = current_progress(print_line)
    steps: dict[str, Counting] = {}

    def tell(step: str, done: int, total: int) -> None:
        units = {"states": "tokens", "compact": "samples"}
        steps.setdefault(step, Counting(progress, step, units.get(step, "files")))(done, total)

    return tell


def add_import(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `aerie import`."""
    parser.add_argument("folder", type=Path, help="that of the files, which may lie in folders below it")
    parser.add_argument("--from", dest="source", required=True, choices=SOURCES, help="what wrote them")
    parser.add_argument("--store", type=place, required=True, help="folder of the store, or s3://BUCKET/PREFIX")
    parser.add_argument("--secret-block", metavar="NAME", help="of Prefect, with the AWS_* variables of a bucket")
    parser.add_argument("--model", type=Path, required=True, help="the model that they are of, as for extract")
    parser.add_argument(
        "--layers", help="of the states; by default EAGLE-3's for specforge, and those that safetensors name"
    )
    parser.add_argument(
        "--layer-convention", choices=CONVENTIONS, default="aerie", help="in whose ids --layers is (%(default)s)"
    )
    parser.add_argument(
        "--norm",
        choices=get_args(Norm),
        default="after",
        help="where hidden_state is of specforge (%(default)s the norm)",
    )
    parser.add_argument(
        "--storage-dtype", choices=list(STORAGE_DTYPES), help="as for extract (default: as in the files)"
    )
    parser.add_argument("--mantissa-bits", type=count, metavar="N", help="as for extract")
    parser.add_argument("--threads", type=count, metavar="N", help="that read and encode (default: one a core)")
