"""The full check of a spec's samples, loose and packed, and setting aside what it finds."""

from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Literal

from storage.codecs import decode_chunk, join_checksum
from storage.errors import CorruptObjectError, RowCountError
from storage.files import TAKEN, clear_errors, make_folder, mark, missing_is_torn, read_document, remove_folders
from storage.layout import check_version, loose_hashes, object_path, packs_folder, quarantine_folder, removals_folder
from storage.objects import loose_documents, open_loose
from storage.pack_index import Pack
from storage.pack_listing import open_pack, open_unless_gone, pack_ids, removed_hashes
from storage.samples import StoredRows
from storage.specs import StateSpec
from storage.store import read_spec
from storage.values import ValueCheck
from storage.verification import verify_checksum, verify_ids

Where = Literal["loose", "pack"]
# Copies handed to the threads at a time: bounds the futures of a store with millions of samples.
BATCH = 1024


@dataclass(frozen=True)
class Finding:
    """The first fault of one stored copy of a sample.

    Attributes:
        sample_hash: the sample; None if the index of a whole pack is damaged, so that its samples are not known.
        where: `loose` or `pack`.
        reason: `torn`, `checksum`, `metadata`, `hash_mismatch`, `row_count`, `non_finite` or `all_zero`.
        detail: one line for people.
        pack_id: the pack, if `where` is `pack`.
    """

    sample_hash: str | None
    where: Where
    reason: str
    detail: str
    pack_id: str | None = None


@dataclass
class CheckReport:
    """What `check_store` saw.

    Attributes:
        checked: stored copies of samples checked; a sample that is loose and packed counts twice.
        findings: their faults.
        bytes: encoded bytes read of the sound ones.
    """

    checked: int = 0
    findings: list[Finding] = field(default_factory=list)
    bytes: int = 0


@dataclass(frozen=True)
class _Copy:
    sample_hash: str
    pack: Pack | None = None
    position: int = 0

    def finding(self, error: CorruptObjectError) -> Finding:
        if self.pack is None:
            return Finding(self.sample_hash, "loose", error.reason, str(error))
        return Finding(self.sample_hash, "pack", error.reason, str(error), self.pack.pack_id)


def check_store(
    path: Path,
    spec_digest: str,
    *,
    hashes: Collection[str] | None = None,
    threads: int = 1,
    on_progress: Callable[[int, int], None] | None = None,
) -> CheckReport:
    """Read samples back and check structure, checksums, sample hashes, row counts and values.

    Args:
        path: the store's folder.
        spec_digest: the spec.
        hashes: the samples to check; all by default. A pack whose index is damaged is always reported.
        threads: threads that read and decode.
        on_progress: called with the number of copies done and in all.

    Raises:
        SpecError, CorruptObjectError: the spec is not there, or damaged.
    """
    check_version(path)
    spec = read_spec(path, spec_digest)
    report = CheckReport()
    wanted = None if hashes is None else set(hashes)
    with ThreadPoolExecutor(threads) as pool:
        while wanted is None or wanted:
            copies = _list_copies(path, spec, wanted, report)
            wanted = set()
            for copy, result in _check_copies(path, spec, copies, pool):
                if result is None:  # moved: looked for again in the next round
                    wanted.add(copy.sample_hash)
                    continue
                _count(report, result)
                if on_progress is not None:
                    on_progress(report.checked, max(report.checked, len(copies)))
    return report


def _list_copies(store: Path, spec: StateSpec, wanted: set[str] | None, report: CheckReport) -> list[_Copy]:
    copies = [_Copy(name) for name in sorted(loose_hashes(store, spec.digest()))]
    for pack in _open_sound_packs(store, spec, report):
        removed = removed_hashes(store, spec.digest(), pack.pack_id)
        copies += [_Copy(name, pack, i) for i, name in enumerate(pack.sample_hashes) if name not in removed]
    return [copy for copy in copies if wanted is None or copy.sample_hash in wanted]


def _open_sound_packs(store: Path, spec: StateSpec, report: CheckReport) -> list[Pack]:
    """Open the packs of the spec; one whose index is damaged is a finding."""
    packs: dict[str, Pack | None] = {}
    while not packs.keys() >= (found := set(pack_ids(store, spec.digest()))):
        for pack_id in found - packs.keys():  # those that came meanwhile may hold what has gone from others
            try:
                packs[pack_id] = open_unless_gone(store, spec, pack_id)
            except CorruptObjectError as error:
                packs[pack_id] = None
                finding = Finding(None, "pack", error.reason, str(error), pack_id)
                report.findings += [] if finding in report.findings else [finding]
    return [pack for _, pack in sorted(packs.items()) if pack is not None]


def _check_copies(
    store: Path, spec: StateSpec, copies: list[_Copy], pool: ThreadPoolExecutor
) -> Iterator[tuple[_Copy, int | Finding | None]]:
    for first in range(0, len(copies), BATCH):
        batch = copies[first : first + BATCH]
        yield from zip(batch, pool.map(lambda copy: _check_copy(store, spec, copy), batch), strict=True)


def _count(report: CheckReport, result: int | Finding) -> None:
    report.checked += 1
    if isinstance(result, Finding):
        report.findings.append(result)
    else:
        report.bytes += result


def _check_copy(store: Path, spec: StateSpec, copy: _Copy) -> int | Finding | None:
    """Return the encoded bytes of a sound copy, or what is wrong with it; None if it has left its place."""
    folder = copy.pack.folder if copy.pack else object_path(store, spec.digest(), copy.sample_hash)
    try:
        with missing_is_torn(f"sample {copy.sample_hash}"):
            if copy.pack is None:
                return _check_loose(folder, spec, copy.sample_hash)
            return _check_packed(copy.pack, copy.position)
    except CorruptObjectError as error:
        return copy.finding(error) if folder.exists() else None


def _check_loose(folder: Path, spec: StateSpec, name: str) -> int:
    rows = open_loose(folder, spec)
    for path, expected in loose_documents(spec, spec.digest(), name, rows.num_tokens, rows.checksum).items():
        if read_document(folder / path) != expected:
            raise CorruptObjectError(f"{folder / path} is not the document of this sample")
    if rows.ids.num_rows != rows.num_tokens:
        raise RowCountError(f"{folder} has {rows.ids.num_rows} token ids and {rows.num_tokens} rows of states")
    verify_ids(rows, name)
    return _check_states(rows)


def _check_packed(pack: Pack, position: int) -> int:
    rows = pack.rows(position)
    verify_ids(rows, pack.name(position))
    return _check_states(rows)


def _check_states(rows: StoredRows) -> int:
    """Check the states of one sample; return their encoded bytes."""
    spec = rows.states.spec
    check = ValueCheck(spec, rows.num_tokens)
    num_bytes = checksum = 0
    for chunk, slot, data in rows.encoded():
        values = decode_chunk(data, spec.stored_dtype, spec.hidden_size, f"chunk {chunk}, layer {spec.layers[slot]}")
        check.check(chunk, slot, values)
        num_bytes += len(data)
        checksum = join_checksum(data, checksum)
    check.finish()
    verify_checksum(checksum, rows.checksum)
    return num_bytes


def repair(path: Path, spec_digest: str, findings: Iterable[Finding]) -> int:
    """Set aside what `findings` name; a repeat is harmless.

    A loose object moves into the quarantine. A packed sample is recorded as removed from its pack.
    A pack whose index is damaged, or of which every sample is removed, moves into the quarantine.

    Returns:
        How many objects, packed samples and damaged packs were set aside.

    Raises:
        StoreReadOnlyError, StoreFullError: the store cannot be written.
    """
    check_version(path)
    distinct = {(finding.sample_hash, finding.pack_id) for finding in findings}
    with clear_errors(path):
        done = sum(_set_aside(path, spec_digest, *where) for where in sorted(distinct, key=str))
        for pack_id in sorted({pack_id for name, pack_id in distinct if name is not None and pack_id is not None}):
            _set_aside_if_empty(path, spec_digest, pack_id)
    return done


def _set_aside(store: Path, spec_digest: str, name: str | None, pack_id: str | None) -> bool:
    if pack_id is None:
        return name is not None and _quarantine(store, spec_digest, object_path(store, spec_digest, name))
    if name is None:
        return _quarantine(store, spec_digest, packs_folder(store, spec_digest) / pack_id)
    removal = removals_folder(store, spec_digest, pack_id) / name
    is_new = not removal.exists()
    mark(removal)
    return is_new


def _set_aside_if_empty(store: Path, spec_digest: str, pack_id: str) -> None:
    """Free the name of a pack of which nothing is left: the same samples, made again, will want it."""
    try:
        pack = open_pack(store, read_spec(store, spec_digest), pack_id)
    except CorruptObjectError:  # a finding of its own, or already moved
        return
    if set(pack.sample_hashes) <= removed_hashes(store, spec_digest, pack_id):
        _quarantine(store, spec_digest, pack.folder)
        # In this order: a kill between the two leaves removals without a pack, which compaction clears.
        remove_folders(store, [removals_folder(store, spec_digest, pack_id)])


def _quarantine(store: Path, spec_digest: str, folder: Path) -> bool:
    """Move a folder to the first free name in the quarantine; False if it is gone already."""
    make_folder(quarantine_folder(store, spec_digest))
    for n in count(1):
        try:
            folder.rename(quarantine_folder(store, spec_digest) / f"{folder.name}-{n}")
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno not in TAKEN:
                raise
        else:
            return True
    raise AssertionError("count() does not end")
