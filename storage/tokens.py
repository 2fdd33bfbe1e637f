"""The tokens artifact: token ids, loss masks and sample hashes of the kept rows, and the accounting of all rows."""

import hashlib
import io
import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from storage.arrays import encode_document, group_document
from storage.columns import DOCUMENT, Column, ColumnWriter
from storage.digests import sample_hash
from storage.errors import ChecksumError, CorruptObjectError, SampleShapeError, SpecError
from storage.files import commit, find_group, has_group, missing_is_torn, read_bytes, read_document, staging, write_file
from storage.hashes import Hashes, names_of
from storage.layout import FORMAT_VERSION, tokens_folder
from storage.limits import MAX_ROWS, is_number
from storage.paths import StorePath, store_path
from storage.specs import TokensSpec

REJECTS = "rejects.jsonl"
CHUNK_ROWS = 1 << 18
# name: dtype, shape of a row
COLUMNS: dict[str, tuple[str, tuple[int, ...]]] = {
    "input_ids": ("<i4", ()),
    "loss_mask": ("u1", ()),
    "offsets": ("<i8", ()),
    "sample_hash": ("u1", (32,)),
    "row": ("<i8", ()),
    "truncated": ("u1", ()),
}
# Only where weights of the loss are other than 0 and 1.
WEIGHT, WEIGHT_DTYPE = "loss_weight", "<f4"


class TokensWriter:
    """Write a tokens artifact in bounded memory; a context manager that discards what was not committed.

    Args:
        root: the store, or any folder.
        spec: names the artifact.

    Raises:
        StoreNotFoundError, StoreReadOnlyError, StoreFullError: `root` cannot be written.
    """

    def __init__(self, root: StorePath, spec: TokensSpec) -> None:
        self._root = root
        self._spec = spec
        self._stack = ExitStack()
        self._folder = self._stack.enter_context(staging(root))
        self._columns = {
            name: ColumnWriter(self._folder / name, dtype, CHUNK_ROWS, row) for name, (dtype, row) in COLUMNS.items()
        }
        self._columns["offsets"].append(np.zeros(1, "<i8"))
        self._rejects = self._stack.enter_context((self._folder / REJECTS).open("xb"))
        self._rejects_sha256 = hashlib.sha256()
        self._rejected: Counter[str] = Counter()
        self._truncated = self._split = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def append(
        self,
        input_ids: npt.NDArray[np.int32],
        loss_mask: npt.NDArray[np.uint8],
        row: int,
        *,
        truncated: bool = False,
        loss_weight: npt.NDArray[np.float32] | None = None,
    ) -> str:
        """Keep one row, or one sample of a row that was split; return its sample hash. Samples may come again.

        Args:
            input_ids: int32[num_tokens].
            loss_mask: uint8[num_tokens], 1 where the token is learnt.
            row: 0-based number of the row over all data files.
            truncated: the row was cut to the longest length allowed.
            loss_weight: float32[num_tokens], for all rows or for none.

        Raises:
            SampleShapeError: the arrays differ in shape, are empty, or the mask is not uint8.
        """
        if (
            input_ids.ndim != 1
            or input_ids.shape != loss_mask.shape
            or not len(input_ids)
            or loss_mask.dtype != np.uint8
        ):
            raise SampleShapeError(
                f"row {row}: input_ids {input_ids.shape}, loss_mask {loss_mask.dtype}{loss_mask.shape}; "
                "give int32 and uint8 of one shape [num_tokens], at least one token"
            )
        name = sample_hash(input_ids)
        total = self._columns["input_ids"].num_rows + len(input_ids)
        self._columns["input_ids"].append(input_ids)
        self._columns["loss_mask"].append(loss_mask)
        self._columns["offsets"].append(np.array([total], "<i8"))
        self._columns["sample_hash"].append(np.frombuffer(bytes.fromhex(name), "u1")[None])
        self._columns["row"].append(np.array([row], "<i8"))
        self._columns["truncated"].append(np.array([truncated], "u1"))
        self._truncated += truncated
        if loss_weight is not None:
            self._weights().append(loss_weight)
        return name

    @property
    def num_samples(self) -> int:
        """Samples kept so far."""
        return self._columns["row"].num_rows

    def note_split(self, num_more: int) -> None:
        """Count samples of a row beyond its first: it was split into several, each kept or rejected for itself."""
        self._split += num_more

    def reject(self, file: str, line: int, row: int, reason: str, hint: str, content: str | None = None) -> None:
        """Count a row that is not kept, and write down which, why, and what would help; with its content, if given."""
        document = {"file": file, "line": line, "row": row, "reason": reason, "hint": hint}
        document |= {} if content is None else {"content": content}
        text = json.dumps(document, ensure_ascii=True).encode("ascii") + b"\n"
        self._rejects.write(text)
        self._rejects_sha256.update(text)
        self._rejected[reason] += 1

    def count_rejected(self, reason: str) -> None:
        """Count a row that is not kept and need not be named: the user chose to leave such rows out."""
        self._rejected[reason] += 1

    def _weights(self) -> ColumnWriter:
        if WEIGHT not in self._columns:
            self._columns[WEIGHT] = ColumnWriter(self._folder / WEIGHT, WEIGHT_DTYPE, CHUNK_ROWS)
        return self._columns[WEIGHT]

    def commit(self) -> "Tokens":
        """Put the artifact in its place, or take the one that another process put there; return it opened."""
        for column in self._columns.values():
            column.close()
        self._rejects.flush()
        os.fsync(self._rejects.fileno())
        write_file(self._folder, DOCUMENT, [encode_document(group_document(self._attributes()))])
        digest = self._spec.digest()
        commit(self._folder, tokens_folder(self._root, digest), self._root)
        return Tokens(tokens_folder(self._root, digest), digest)

    def _attributes(self) -> dict[str, Any]:
        rejected = dict(sorted(self._rejected.items()))
        accounting = {
            "in": self.num_samples + sum(rejected.values()) - self._split,
            "rejected": rejected,
            "truncated": self._truncated,
        }
        return {
            "format_version": FORMAT_VERSION,
            "tokens_spec": self._spec.to_json(),
            "accounting": accounting | ({"split": self._split} if self._split else {}),
            "rejects_sha256": self._rejects_sha256.hexdigest(),
            **({"columns": [WEIGHT]} if WEIGHT in self._columns else {}),
        }


def open_tokens(store: StorePath | str, tokens_digest: str) -> "Tokens | None":
    """Open a tokens artifact; None if there is none of this digest.

    Raises:
        CorruptObjectError: its metadata is damaged.
    """
    place = tokens_folder(store_path(store), tokens_digest)
    return Tokens(place, tokens_digest) if has_group(place) else None


class Tokens:
    """A tokens artifact on disk; every read is checked against its checksum.

    Attributes:
        digest: its name.
        offsets: int64[n + 1]; row i has tokens offsets[i] to offsets[i + 1].
        rows: int64[n], 0-based number of each kept row over all data files.
        truncated: uint8[n], 1 where the row was cut to the longest length allowed.
        accounting: `{"in": rows read, "rejected": {reason: rows}, "truncated": kept rows that were cut}`, and `split`
            where rows were split: samples beyond the first of each. `in` plus `split` is `len(self)` plus the rejected.

    Raises:
        CorruptObjectError: the artifact is damaged (here or while reading).
    """

    def __init__(self, place: StorePath, digest: str) -> None:
        self.digest = digest
        with missing_is_torn(f"tokens artifact {digest}"):
            folder = self._folder = find_group(place)
            self._attributes = self._read_attributes()
            self._columns = {name: Column(folder / name, dtype, row) for name, (dtype, row) in COLUMNS.items()}
            if self.is_weighted:
                self._columns[WEIGHT] = Column(folder / WEIGHT, WEIGHT_DTYPE)
            self.offsets: npt.NDArray[np.int64] = self._columns["offsets"][:]
            self.rows: npt.NDArray[np.int64] = self._columns["row"][:]
            self.truncated: npt.NDArray[np.uint8] = self._columns["truncated"][:]
        self.accounting: dict[str, Any] = self._attributes["accounting"]
        if not self._adds_up():
            raise CorruptObjectError(f"{self._folder}: its counts do not add up; {self._cure()}")

    def __len__(self) -> int:
        return self._columns["row"].num_rows

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all kept rows."""
        return self._columns["input_ids"].num_rows

    @property
    def spec(self) -> dict[str, Any]:
        """The TokensSpec as JSON values: all that the artifact depends on."""
        return dict(self._attributes["tokens_spec"])

    @property
    def is_weighted(self) -> bool:
        """Whether tokens have weights in the loss other than 0 and 1."""
        return WEIGHT in self._attributes.get("columns", [])

    @property
    def sample_hashes(self) -> list[str]:
        """The sample hash of each kept row, duplicates included."""
        return names_of(self.hashes)

    @property
    def hashes(self) -> Hashes:
        """The same as uint8[n, 32]: 32 bytes each instead of 113."""
        with missing_is_torn(f"tokens artifact {self.digest}"):
            return self._columns["sample_hash"][:]

    def input_ids(self, i: int) -> npt.NDArray[np.int32]:
        """Return the token ids of kept row `i`, int32[num_tokens]."""
        return self._read("input_ids", i)

    def loss_mask(self, i: int) -> npt.NDArray[np.uint8]:
        """Return the loss mask of kept row `i`, uint8[num_tokens]."""
        return self._read("loss_mask", i)

    def ids_of(self, start: int, stop: int) -> npt.NDArray[np.int32]:
        """Return the token ids of kept rows `start` to `stop`, one after the other."""
        with missing_is_torn(f"tokens artifact {self.digest}"):
            return self._columns["input_ids"][int(self.offsets[start]) : int(self.offsets[stop])]

    def loss_masks(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Return the loss masks of kept rows `start` to `stop`, one after the other."""
        with missing_is_torn(f"tokens artifact {self.digest}"):
            return self._columns["loss_mask"][int(self.offsets[start]) : int(self.offsets[stop])]

    def loss_weight(self, i: int) -> npt.NDArray[np.float32]:
        """Return the weights in the loss of kept row `i`, float32[num_tokens]; the mask's zeros and ones by default."""
        return self._read(WEIGHT, i) if self.is_weighted else self.loss_mask(i).astype(np.float32)

    def rejects(self) -> Iterator[dict[str, Any]]:
        """Read the rejected rows in order: `{"file", "line", "row", "reason", "hint"}`, and `content` if it was asked.

        Rows that the user chose to leave out (`not_sampled`, `over_total`) are only counted.
        """
        sha256 = hashlib.sha256()
        with missing_is_torn(f"tokens artifact {self.digest}"):
            lines = read_bytes(self._folder / REJECTS)
        for line in io.BytesIO(lines):
            sha256.update(line)
            yield self._decode_reject(line)
        if sha256.hexdigest() != self._attributes["rejects_sha256"]:
            raise ChecksumError(f"{self._folder / REJECTS} does not have its sha256; {self._cure()}")

    def _read(self, name: str, i: int) -> npt.NDArray[Any]:
        with missing_is_torn(f"tokens artifact {self.digest}"):
            return self._columns[name][int(self.offsets[i]) : int(self.offsets[i + 1])]

    def _decode_reject(self, line: bytes) -> dict[str, Any]:
        try:
            document = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise CorruptObjectError(f"{self._folder / REJECTS} has a line that is not JSON; {self._cure()}") from error
        if not isinstance(document, dict):
            raise CorruptObjectError(f"{self._folder / REJECTS} has a line that is no object; {self._cure()}")
        return document

    def _read_attributes(self) -> dict[str, Any]:
        document = read_document(self._folder / DOCUMENT)
        attributes: Any = document.get("attributes")
        names = {"format_version", "tokens_spec", "accounting", "rejects_sha256"}
        fits = isinstance(attributes, dict) and set(attributes) - {"columns"} == names
        fits = fits and attributes.get("columns", [WEIGHT]) == [WEIGHT] and document == group_document(attributes)
        if not fits or not _is_spec_of(attributes["tokens_spec"], self.digest):
            raise CorruptObjectError(f"{self._folder / DOCUMENT} is not that of this tokens artifact; {self._cure()}")
        if attributes["format_version"] != FORMAT_VERSION:
            raise CorruptObjectError(
                f"{self._folder} has format version {attributes['format_version']!r}; {self._cure()}"
            )
        return dict(attributes)

    def _adds_up(self) -> bool:
        counts = self.accounting
        if not _is_accounting(counts) or not len(self.offsets):
            return False
        kept = {len(self), len(self.offsets) - 1, self._columns["sample_hash"].num_rows, len(self.truncated)}
        of_tokens = ["loss_mask", *([WEIGHT] if self.is_weighted else [])]
        tokens = {self.num_tokens, int(self.offsets[-1]), *(self._columns[name].num_rows for name in of_tokens)}
        # Compared, not subtracted: a difference may wrap.
        is_ragged = self.offsets[0] == 0 and bool((self.offsets[1:] > self.offsets[:-1]).all())
        samples = len(self) + sum(counts["rejected"].values())
        is_whole = counts["in"] + counts.get("split", 0) == samples and counts["truncated"] == int(self.truncated.sum())
        return len(kept) == len(tokens) == 1 and is_ragged and is_whole

    def _cure(self) -> str:
        return f"remove {self._folder} and run again"


def _is_spec_of(document: Any, digest: str) -> bool:
    try:
        return TokensSpec.from_json(document).digest() == digest
    except SpecError:
        return False


def _is_accounting(counts: Any) -> bool:
    """Say whether an accounting has the counts that it must have, and as numbers."""
    if not isinstance(counts, dict) or not {"in", "truncated"} <= set(counts) <= {
        "in",
        "rejected",
        "truncated",
        "split",
    }:
        return False
    rejected = counts.get("rejected")
    numbers = [number for name, number in counts.items() if name != "rejected"]
    return isinstance(rejected, dict) and all(is_number(number, MAX_ROWS) for number in [*numbers, *rejected.values()])
