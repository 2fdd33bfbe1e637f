"""What the commands over a store that exists do."""

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

from flows.plot_files import write_plots
from flows.prefect_defaults import require_prefect
from flows.printing import print_document, print_pairs, progress_on_stderr
from flows.progress import format_bytes
from flows.report import measure_store
from flows.secret_block import with_secrets
from storage.collection import collect_garbage as find_garbage
from storage.file_checks import check_header, tokens_digests
from storage.files import backend_of
from storage.garbage import Garbage
from storage.layout import check_version
from storage.packs import PackInfo, plan_compaction
from storage.paths import StorePath
from storage.store import Store, find_spec, open_store, spec_digests
from storage.tokens import Tokens
from storage.tokens_listing import find_tokens
from tasks.hub import find_model

SECONDS_PER_DAY = 86_400
_DIGEST_LENGTH = 12


@with_secrets
def show(arguments: argparse.Namespace) -> int:
    """Print what a store holds, and draw it with --plots."""
    stores = [open_store(arguments.store, arguments.spec)] if arguments.spec else _all_specs(arguments.store)
    documents = [_spec_document(store) for store in stores]
    if arguments.plots is not None:
        tokens = _tokens_to_draw(arguments.store, arguments.tokens)
        model = find_model(arguments.model) if arguments.model else None
        for store, document in zip(stores, documents, strict=True):
            folder = arguments.plots / store.spec_digest[:_DIGEST_LENGTH] if len(stores) > 1 else arguments.plots
            files = write_plots(store, tokens, model, folder, arguments.plot_format)
            document["plots"] = [str(file) for file in files]
    if arguments.json:
        print(json.dumps({"store": str(arguments.store.absolute()), "specs": documents}))
        return 0
    for document in documents:
        print_document("States", document, as_json=False)
    if not documents:
        print(f"{arguments.store} is a store without states")
    return 0


@with_secrets
def validate(arguments: argparse.Namespace) -> int:
    """Check a store in full: every sample, and the header, specs and tokens artifacts beside them."""
    check_header(arguments.store)  # refuse at once, before prefect is imported
    if arguments.spec is not None:
        find_spec(arguments.store, arguments.spec)
    require_prefect()
    from flows.crash_detection import watched  # noqa: PLC0415 - see above
    from flows.maintenance import validate_store  # noqa: PLC0415

    options = {"fraction": arguments.fraction, "threads": arguments.threads, "repair": arguments.repair}
    with progress_on_stderr(), watched():
        report = validate_store(arguments.store, arguments.spec, **options)
    for finding in report.findings:
        name = finding.sample_hash or finding.pack_id or f"{finding.where} {finding.digest or ''}".strip()
        detail = finding.detail.removesuffix("; use aerie validate --repair") if arguments.repair else finding.detail
        print(f"{name}: {finding.reason}: {detail}", file=sys.stderr)
    document = {"checked": report.checked, "bad": len(report.findings), "bytes": report.bytes}
    if arguments.json:
        print(json.dumps(document | {"findings": [vars(finding) for finding in report.findings]}))
    else:
        print(f"{report.checked:,} samples checked, {len(report.findings):,} bad, {format_bytes(report.bytes)} read")
        if report.findings:
            print("set aside; the next run makes it anew" if arguments.repair else "--repair sets aside what is bad")
    return 1 if report.findings and not arguments.repair else 0


@with_secrets
def compact(arguments: argparse.Namespace) -> int:
    """Copy loose objects into packs, and many small packs into one."""
    digest = find_spec(arguments.store, arguments.spec)  # refuse at once, before prefect is imported
    if arguments.dry_run:
        print_document("Compaction", _plan_document(arguments.store, digest), as_json=arguments.json)
        return 0
    require_prefect()
    from flows.crash_detection import watched  # noqa: PLC0415 - see above
    from flows.maintenance import compact_store  # noqa: PLC0415

    with progress_on_stderr(), watched():
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


def _plan_document(store: StorePath, digest: str) -> dict[str, Any]:
    planned = plan_compaction(store, digest)
    return {
        "samples_to_pack": planned.samples,
        "loose_bytes": planned.bytes,
        "packs_to_merge": len(planned.merged),
        "merge_bytes": planned.merged_bytes,
        "free_bytes": backend_of(store).free_bytes(store),
    }


@with_secrets
def gc(arguments: argparse.Namespace) -> int:
    """Say what a store holds that nobody needs, and free it with --yes."""
    check_version(arguments.store)  # refuse at once, before prefect is imported
    age = None if arguments.older_than is None else arguments.older_than * SECONDS_PER_DAY
    garbage = _collect(arguments.store, age) if arguments.yes else find_garbage(arguments.store, age, is_dry=True)
    _print_garbage(garbage, is_freed=arguments.yes, as_json=arguments.json)
    return 0


def _collect(store: StorePath, age: float | None) -> Garbage:
    require_prefect()
    from flows.crash_detection import watched  # noqa: PLC0415 - imports prefect; to look needs no flow
    from flows.maintenance import collect_garbage  # noqa: PLC0415

    with progress_on_stderr(), watched():
        return collect_garbage(store, older_than_seconds=age, dry_run=False)


def _print_garbage(garbage: Garbage, *, is_freed: bool, as_json: bool) -> None:
    total = sum(garbage.bytes.values())
    if as_json:
        kinds = {kind: {"count": count, "bytes": garbage.bytes[kind]} for kind, count in garbage.counts.items()}
        names = ("copied_bytes", "foreign_bytes", "is_unsure", "stayed")
        rest = {name: getattr(garbage, name) for name in names}
        print(json.dumps({"is_freed": is_freed, "bytes": total, "kinds": kinds, **rest}))
        return
    rows = [(kind, f"{count:,}, {format_bytes(garbage.bytes[kind])}") for kind, count in garbage.counts.items()]
    print_pairs("Garbage", [*rows, ("total", format_bytes(total))])
    for note in _notes(garbage, is_freed=is_freed):
        print(note)


def _notes(garbage: Garbage, *, is_freed: bool) -> Iterator[str]:
    if garbage.is_unsure:
        yield "no sample counts as unreferenced, since a tokens artifact was set aside: run its job again first"
    if garbage.foreign_bytes:
        yield f"{format_bytes(garbage.foreign_bytes)} of staging of other hosts stay; --older-than DAYS frees them"
    if garbage.stayed:
        yield f"{len(garbage.stayed):,} packs stay: a sample is damaged (aerie validate) or another process is at work"
    if garbage.copied_bytes:
        yield f"{format_bytes(garbage.copied_bytes)} that stay in use {'were' if is_freed else 'have to be'} copied"
    if not is_freed:
        yield "nothing was changed; --yes frees it"


def _tokens_to_draw(store: StorePath, prefix: str | None) -> Tokens | None:
    """Return the tokens artifact whose lengths are drawn; without a choice among several, none."""
    known = tokens_digests(store)
    if prefix is None and len(known) != 1:
        if known:
            print(f"{len(known)} tokens artifacts: --tokens DIGEST has the lengths of one drawn", file=sys.stderr)
        return None
    return find_tokens(store, prefix)


def _spec_document(store: Store) -> dict[str, Any]:
    size = measure_store(store)
    return {
        "spec_digest": store.spec_digest,
        "samples": len(store),
        "tokens": store.num_tokens(),
        "raw_bytes": size.raw,
        "stored_bytes": size.stored,
        "ratio": size.ratio,
        "rounding_error": error._asdict() if (error := store.rounding_error()) else None,
        **store.spec.to_json(),
    }


def _all_specs(path: StorePath) -> list[Store]:
    check_version(path)
    return [open_store(path, digest) for digest in spec_digests(path)]
