"""A store as a mapping from sample hash to sample; creating and opening one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from storage.catalog import LOOSE, read_catalog
from storage.digests import canonical_json, is_digest, sha256_hex
from storage.errors import CorruptObjectError, NotAStoreError, SampleNotFoundError, SpecError
from storage.files import (
    backend_of,
    clear_errors,
    exists,
    folder_bytes,
    missing_is_torn,
    names,
    read_bytes,
    read_document,
    replace_file,
)
from storage.hashes import PIECE, hashes_of, names_of
from storage.layout import (
    HEADER,
    MEND,
    check_version,
    header_bytes,
    objects_folder,
    packs_folder,
    spec_path,
)
from storage.leftovers import sweep
from storage.limits import MAX_DOCUMENT_BYTES
from storage.parallel_reads import read_samples
from storage.paths import StorePath, store_path
from storage.samples import RoundingError, Sample, StoredRows
from storage.specs import LayerId, StateSpec


def init_store(path: StorePath | str) -> None:
    """Make sure that `path` is a store of this version that can be written, and sweep what dead processes left in it.

    Args:
        path: the store's folder, or `s3://bucket/prefix`.

    Raises:
        NotAStoreError: the folder holds something else.
        StoreVersionError: the store has another version.
        StoreReadOnlyError, StoreFullError: it cannot be written.
    """
    path = store_path(path)
    with clear_errors(path):
        backend_of(path).make_root(path)
        if not exists(path / HEADER):
            _write_header(path)
    check_version(path)
    backend_of(path).prove_writable(path)
    sweep(path)


def _write_header(path: StorePath) -> None:
    # Names that start with a dot: another process's header on its way.
    foreign = sorted(name for name in names(path) if not name.startswith(f".{HEADER}"))
    if foreign and HEADER not in foreign:
        raise NotAStoreError(
            f"{path} is not empty and no store (it holds {foreign[0]!r}); give an empty folder or a store{MEND}"
        )
    replace_file(path / HEADER, header_bytes())


def add_spec(path: StorePath, spec: StateSpec) -> str:
    """Record a spec in the store, if it is not there yet or damaged; return its digest.

    Raises:
        StoreReadOnlyError, StoreFullError: the store cannot be written.
    """
    check_version(path)
    digest = spec.digest()
    file, text = spec_path(path, digest), canonical_json(spec.to_json())
    if not _has(file, text):
        with clear_errors(path):
            replace_file(file, text)
    return digest


def _has(file: StorePath, text: bytes) -> bool:
    try:
        return exists(file) and read_bytes(file, len(text)) == text
    except CorruptObjectError:
        return False


def read_spec(path: StorePath, spec_digest: str) -> StateSpec:
    """Read a recorded spec.

    Raises:
        SpecError: there is none of this digest.
        CorruptObjectError: the file does not have the digest that names it.
    """
    file = spec_path(path, spec_digest)
    if not exists(file):
        raise SpecError(f"{path} has no spec {spec_digest}; it has {spec_digests(path)}")
    if sha256_hex(read_bytes(file, MAX_DOCUMENT_BYTES)) != spec_digest:
        raise CorruptObjectError(f"{file} does not have the digest in its name; run the job that made it again")
    return StateSpec.from_json(read_document(file))


def spec_digests(path: StorePath) -> list[str]:
    """List the digests of the recorded specs."""
    found = (name.removesuffix(".json") for name in names(path / "specs"))
    return sorted(name for name in found if is_digest(name))


def open_store(path: StorePath | str, spec_digest: str | None = None) -> "Store":
    """Open the states of one spec for reading.

    Args:
        path: the store's folder, or `s3://bucket/prefix`.
        spec_digest: a digest or a unique prefix of one; may be left out when the store has one spec.

    Raises:
        StoreNotFoundError, NotAStoreError, StoreVersionError: `path` is no store of this version.
        SpecError: no spec, or more than one, fits.
        CorruptObjectError: the spec or a pack's index is damaged.
    """
    path = store_path(path)
    return Store(path, read_spec(path, find_spec(path, spec_digest)))


def find_spec(path: StorePath, spec_digest: str | None = None) -> str:
    """Return the digest of the one recorded spec that fits; no state is looked at, so a damaged pack is no hindrance.

    Raises:
        StoreNotFoundError, NotAStoreError, StoreVersionError: `path` is no store of this version.
        SpecError: no spec, or more than one, fits.
    """
    check_version(path)
    known = spec_digests(path)
    fitting = [digest for digest in known if digest.startswith(spec_digest or "")]
    if len(fitting) == 1:
        return fitting[0]
    if not known:
        raise SpecError(f"{path} has no states yet; extract some first")
    wanted = "are there" if spec_digest is None else f"begin with {spec_digest!r}"
    raise SpecError(
        f"{len(fitting)} specs {wanted}, exactly one must be meant; {path} has {', '.join(known)}; give one as "
        "spec_digest (--spec on the command line), a prefix will do"
    )


class Store(Mapping[str, Sample]):
    """The samples of one spec, by sample hash, as of opening or the last `refresh`.

    Args:
        path: the store's folder.
        spec: the spec of the states to read.

    Attributes:
        catalog: which samples there are, and where.
    """

    def __init__(self, path: StorePath, spec: StateSpec) -> None:
        self.path = path
        self.spec = spec
        self.spec_digest = spec.digest()
        self.catalog = read_catalog(path, spec)

    def __len__(self) -> int:
        return len(self.catalog)

    def __iter__(self) -> Iterator[str]:
        hashes = self.catalog.index.hashes
        for start in range(0, len(hashes), PIECE):
            yield from names_of(hashes[start : start + PIECE])

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and is_digest(name) and self.catalog.index.find_one(name) >= 0

    def __getitem__(self, name: str) -> Sample:
        return Sample(name, self.spec, lambda lost: self._locate(name, lost))

    def missing(self, hashes: Iterable[str]) -> list[str]:
        """Return those of `hashes` that the store lacks, in their order; no payload is read."""
        names = list(hashes)
        positions = self.catalog.index.find(hashes_of(names))
        return [names[i] for i in np.flatnonzero(positions < 0)]

    def read_hidden_states(
        self,
        hashes: Iterable[str],
        layers: Sequence[LayerId] | None = None,
        rows: slice | None = None,
        *,
        threads: int | None = None,
        out: npt.NDArray[Any] | None = None,
    ) -> list[npt.NDArray[Any]]:
        """Read the states of many samples on threads: for each what `store[name].hidden_states(layers, rows)` returns.

        The arrays are views of one block of memory, which lives as long as one of them.

        Args:
            hashes: the samples; one may come again.
            layers: captured layers, in the order wanted; all by default.
            rows: a slice of step 1 over the tokens of each sample; all by default.
            threads: that read and decode; by default one a core, at most 16.
            out: the block, [len(layers), at least all rows, hidden_size] in the storage dtype, such as a view of pinned
                memory; by default fresh memory, which costs about as much as the decoding.

        Raises:
            SampleNotFoundError: there is no such sample.
            SpecError, ValueError, CorruptObjectError: as for one sample.
            SampleShapeError: `out` does not fit.
        """
        return read_samples([self[name] for name in hashes], self.spec, layers, rows, threads, out)

    def num_tokens(self) -> int:
        """Return the tokens of all samples; one small file is read for each loose one.

        Raises:
            CorruptObjectError: the metadata of a loose object is damaged.
        """
        loose = names_of(self.catalog.index.hashes[self.catalog.pack == LOOSE])
        lengths = backend_of(self.path).each(lambda name: self[name].num_tokens, loose)
        return int(self.catalog.packed_tokens().sum()) + sum(lengths)

    def rounding_error(self) -> RoundingError | None:
        """Return the largest and the mean error of all states; None where the spec is exact, or no sample is stored.

        Raises:
            CorruptObjectError: the metadata of a loose object is damaged.
        """
        if self.spec.is_exact or not len(self):
            return None
        num_tokens, errors = self.catalog.packed_tokens(), self.catalog.packed_errors()
        loose = np.flatnonzero(self.catalog.pack == LOOSE).tolist()
        found = backend_of(self.path).each(lambda at: self[self.catalog.name(at)].stored_rows, loose)
        for at, rows in zip(loose, found, strict=True):
            num_tokens[at], errors[at] = rows.num_tokens, rows.error
        return RoundingError(float(errors[:, 0].max()), float(np.average(errors[:, 1], weights=num_tokens)))

    def stored_bytes(self) -> int:
        """Return the bytes of all files of the spec's objects and packs."""
        folders = (objects_folder(self.path, self.spec_digest), packs_folder(self.path, self.spec_digest))
        return sum(map(folder_bytes, folders))

    def refresh(self) -> None:
        """Look again at what the store holds: directory listings and the indexes of new packs.

        Raises:
            CorruptObjectError: a pack's index is damaged.
        """
        self.catalog = read_catalog(self.path, self.spec, self.catalog.packs)

    def _locate(self, name: str, lost: StoredRows | None) -> StoredRows:
        """Find the rows of a sample; `lost` is where they were found before, if a file has gone from there."""
        with suppress(FileNotFoundError):  # moved into a pack since the last listing
            rows = self._rows(name)
            if lost is None or rows.states.path != lost.states.path:  # else nobody has looked again since
                return rows
        self.refresh()
        with missing_is_torn(f"sample {name}"):
            return self._rows(name)

    def _rows(self, name: str) -> StoredRows:
        catalog = self.catalog  # a refresh on another thread gives the store a new one
        at = catalog.index.find_one(name) if is_digest(name) else -1
        if at < 0:
            raise SampleNotFoundError(
                f"{self.path} has no sample {name} of spec {self.spec_digest[:12]}; extract it first"
            )
        return catalog.rows(at)
