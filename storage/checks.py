"""The full check of a spec's samples, loose and packed."""

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from storage.codecs import decode_chunk, join_checksum
from storage.errors import CorruptObjectError, RowCountError
from storage.files import default_threads, find_group, has_group, missing_is_torn, read_document
from storage.findings import CheckReport, Finding, Where
from storage.hashes import Hashes, HashIndex, hashes_of, is_in_share, names_of
from storage.layout import check_version, loose_hashes, object_path
from storage.objects import loose_documents, open_loose
from storage.pack_index import Pack
from storage.pack_listing import live_positions, open_unless_gone, pack_ids
from storage.paths import StorePath
from storage.samples import StoredRows
from storage.specs import StateSpec
from storage.store import read_spec
from storage.values import ValueCheck
from storage.verification import verify_checksum, verify_ids

# Copies handed to the threads at a time: bounds the futures of a store with millions of samples.
BATCH = 1024

Choose = Callable[[Hashes], npt.NDArray[np.bool_]]


@dataclass(frozen=True)
class _Copy:
    sample_hash: str
    spec_digest: str
    pack: Pack | None = None
    position: int = 0

    def finding(self, error: CorruptObjectError) -> Finding:
        pack_id = None if self.pack is None else self.pack.pack_id
        where: Where = "pack" if pack_id else "loose"
        return Finding(self.sample_hash, where, error.reason, str(error), pack_id, self.spec_digest)


def check_store(
    path: StorePath,
    spec_digest: str,
    *,
    hashes: Collection[str] | None = None,
    fraction: float = 1.0,
    threads: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> CheckReport:
    """Read samples back and check structure, checksums, sample hashes, row counts and values.

    Args:
        path: the store's folder.
        spec_digest: the spec.
        hashes: the samples to check; all by default. A pack whose index is damaged is always reported.
        fraction: share of the samples to check: those with the lowest hashes, so always the same ones.
        threads: threads that read and decode; by default one a core, or more where the store is far away.
        on_progress: called with the number of copies done and in all.

    Raises:
        SpecError, CorruptObjectError: the spec is not there, or damaged.
    """
    check_version(path)
    check = _Check(path, read_spec(path, spec_digest), on_progress)
    choose = _chooser(hashes, fraction)
    with ThreadPoolExecutor(threads or default_threads(path)) as pool:
        while moved := check.run(choose, pool):
            choose = _chooser(moved, 1.0)
    return check.report


def _chooser(names: Collection[str] | None, fraction: float) -> Choose:
    if names is None:
        return lambda hashes: is_in_share(hashes, fraction)
    index = HashIndex(hashes_of(sorted(set(names))))
    return lambda hashes: (index.find(hashes) >= 0) & is_in_share(hashes, fraction)


class _Check:
    def __init__(self, store: StorePath, spec: StateSpec, on_progress: Callable[[int, int], None] | None) -> None:
        self._store = store
        self._spec = spec
        self._digest = spec.digest()
        self._on_progress = on_progress
        self.report = CheckReport()

    def run(self, choose: Choose, pool: ThreadPoolExecutor) -> set[str]:
        """Check the copies of the chosen samples; return the samples of those that left their place meanwhile."""
        loose = hashes_of(sorted(loose_hashes(self._store, self._digest)))
        chosen = [(pack, self._choose_packed(pack, choose)) for pack in self._open_sound_packs()]
        loose = loose[choose(loose)]
        total = self.report.checked + len(loose) + sum(len(positions) for _, positions in chosen)
        moved: set[str] = set()
        for copy, result in self._check_copies(self._copies(loose, chosen), pool):
            if result is None:
                moved.add(copy.sample_hash)
                continue
            self._count(result)
            if self._on_progress is not None:
                self._on_progress(self.report.checked, total)
        return moved

    def _choose_packed(self, pack: Pack, choose: Choose) -> list[int]:
        live = live_positions(self._store, self._digest, pack)
        chosen: list[int] = live[choose(pack.hashes[live])].tolist()
        return chosen

    def _copies(self, loose: Hashes, packed: list[tuple[Pack, list[int]]]) -> Iterator[_Copy]:
        yield from (_Copy(name, self._digest) for name in names_of(loose))
        for pack, positions in packed:
            yield from (_Copy(pack.name(position), self._digest, pack, position) for position in positions)

    def _open_sound_packs(self) -> list[Pack]:
        """Open the packs of the spec; one whose index is damaged is a finding."""
        packs: dict[str, Pack | None] = {}
        while not packs.keys() >= (found := set(pack_ids(self._store, self._digest))):
            for pack_id in found - packs.keys():  # those that came meanwhile may hold what has gone from others
                try:
                    packs[pack_id] = open_unless_gone(self._store, self._spec, pack_id)
                except CorruptObjectError as error:
                    packs[pack_id] = None
                    finding = Finding(None, "pack", error.reason, str(error), pack_id, self._digest)
                    self.report.findings += [] if finding in self.report.findings else [finding]
        return [pack for _, pack in sorted(packs.items()) if pack is not None]

    def _check_copies(
        self, copies: Iterator[_Copy], pool: ThreadPoolExecutor
    ) -> Iterator[tuple[_Copy, int | Finding | None]]:
        while batch := list(islice(copies, BATCH)):
            yield from zip(batch, pool.map(self._check_copy, batch), strict=True)

    def _count(self, result: int | Finding) -> None:
        self.report.checked += 1
        if isinstance(result, Finding):
            self.report.findings.append(result)
        else:
            self.report.bytes += result

    def _check_copy(self, copy: _Copy) -> int | Finding | None:
        """Return the encoded bytes of a sound copy, or what is wrong with it; None if it has left its place."""
        folder = copy.pack.folder if copy.pack else object_path(self._store, self._digest, copy.sample_hash)
        try:
            with missing_is_torn(f"sample {copy.sample_hash}"):
                if copy.pack is None:
                    return _check_loose(folder, self._spec, copy.sample_hash)
                return _check_packed(copy.pack, copy.position)
        except CorruptObjectError as error:
            return copy.finding(error) if has_group(folder) else None


def _check_loose(place: StorePath, spec: StateSpec, name: str) -> int:
    folder = find_group(place)
    rows = open_loose(folder, spec)
    documents = loose_documents(spec, spec.digest(), name, rows.num_tokens, rows.checksum, rows.error)
    for path, expected in documents.items():
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
        values = decode_chunk(data, spec.stored_dtype, spec.stored_width, f"chunk {chunk}, layer {spec.layers[slot]}")
        check.check(chunk, slot, values)
        num_bytes += len(data)
        checksum = join_checksum(data, checksum)
    check.finish()
    verify_checksum(checksum, rows.checksum)
    return num_bytes
