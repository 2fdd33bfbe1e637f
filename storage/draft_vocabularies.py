"""Draft vocabularies: which target tokens a drafter can say, addressed by the tokens and the tokenizer they are of."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from storage.arrays import encode_document, group_document
from storage.columns import DOCUMENT, Column, write_column
from storage.digests import canonical_json, sha256_hex
from storage.errors import CorruptObjectError, SpecError
from storage.files import backend_of, commit, find_group, has_group, missing_is_torn, read_document, staging, write_file
from storage.layout import FORMAT_VERSION, digest_in
from storage.limits import MAX_ROWS, is_number
from storage.paths import StorePath

P = TypeVar("P", bound=StorePath)

FOLDER = "draft_vocabularies"


@dataclass(frozen=True)
class DraftVocabularySpec:
    """All that a draft vocabulary depends on; its digest names it.

    Attributes:
        tokens_digest: the tokens artifact whose learnt tokens were counted.
        tokenizer: digest of the tokenizer, as in the TokensSpec.
        target_size: ids of the target model: rows of its embedding.
        draft_size: ids of the drafter.

    Raises:
        SpecError: the sizes do not fit each other.
    """

    tokens_digest: str
    tokenizer: str
    target_size: int
    draft_size: int

    def __post_init__(self) -> None:
        digests = (self.tokens_digest, self.tokenizer)
        is_named = all(isinstance(digest, str) and digest for digest in digests)
        is_sized = is_number(self.target_size, MAX_ROWS, 1) and is_number(self.draft_size, self.target_size, 1)
        if not is_named or not is_sized:
            sizes = f"{self.draft_size!r:.40} for {self.target_size!r:.40} ids"
            raise SpecError(f"a draft vocabulary of {sizes}; give 1 to {self.target_size!r:.40}")

    def digest(self) -> str:
        """Return sha256 of the canonical JSON of all fields."""
        return sha256_hex(canonical_json(asdict(self)))


@dataclass(frozen=True)
class DraftVocabulary:
    """The map between the ids of a drafter and those of its target, as SpecForge and speculators have it.

    Attributes:
        d2t: int64[draft_size], offsets: draft id i is target id `i + d2t[i]`; target ids ascend.
        t2d: bool[target_size], whether a target id is in the draft vocabulary.
        coverage: share of the learnt tokens that are.
    """

    d2t: npt.NDArray[np.int64]
    t2d: npt.NDArray[np.bool_]
    coverage: float

    @property
    def target_ids(self) -> npt.NDArray[np.int64]:
        """int64[draft_size], the target id of each draft id."""
        return self.d2t + np.arange(len(self.d2t))


def draft_vocabulary_folder(store: P, digest: str) -> P:
    """The place of one draft vocabulary."""
    return cast("P", store / FOLDER / digest)


def write_draft_vocabulary(store: P, spec: DraftVocabularySpec, vocabulary: DraftVocabulary) -> P:
    """Put a draft vocabulary in its place, whole or not at all; return the place.

    Raises:
        StorageError: the store cannot be written.
    """
    place = draft_vocabulary_folder(store, spec.digest())
    attributes = {"format_version": FORMAT_VERSION, "spec": asdict(spec), "coverage": vocabulary.coverage}
    with staging(store) as folder:
        write_column(folder / "d2t", vocabulary.d2t.astype("<i8"))
        write_column(folder / "t2d", vocabulary.t2d.astype("u1"))
        write_file(folder, DOCUMENT, [encode_document(group_document(attributes))])
        commit(folder, place, store)
    return place


def open_draft_vocabulary(store: StorePath, spec: DraftVocabularySpec) -> DraftVocabulary | None:
    """Read the draft vocabulary of exactly this spec; None if there is none.

    Raises:
        CorruptObjectError: it is damaged.
    """
    place = draft_vocabulary_folder(store, spec.digest())
    if not has_group(place):
        return None
    with missing_is_torn(f"draft vocabulary {place.name}"):
        folder = find_group(place)
        attributes: Any = read_document(folder / DOCUMENT).get("attributes")
        if not isinstance(attributes, dict) or attributes.get("spec") != asdict(spec):
            raise CorruptObjectError(f"{folder} is of another spec; remove it and make it again")
        d2t, t2d = Column(folder / "d2t", "<i8")[:], Column(folder / "t2d", "u1")[:]
    coverage = attributes.get("coverage")
    if not isinstance(coverage, int | float) or not 0 <= coverage <= 1:
        raise CorruptObjectError(f"{folder} says coverage {coverage!r:.40}; remove it and make it again")
    vocabulary = DraftVocabulary(d2t, t2d.astype(bool), float(coverage))
    if (len(d2t), len(t2d)) != (spec.draft_size, spec.target_size) or not np.array_equal(
        np.flatnonzero(t2d), vocabulary.target_ids
    ):
        raise CorruptObjectError(f"{folder}: d2t and t2d do not fit each other; remove it and make it again")
    return vocabulary


def read_draft_vocabularies(store: StorePath, tokens_digest: str) -> Iterator[DraftVocabulary]:
    """Read the draft vocabularies of a tokens artifact, small ones first.

    Raises:
        CorruptObjectError: one is damaged.
    """
    digests = sorted({digest_in(name) for name in backend_of(store).group_names(store / FOLDER)})
    mine = [spec for spec in (_read_spec(store, digest) for digest in digests) if spec.tokens_digest == tokens_digest]
    for spec in sorted(mine, key=lambda spec: spec.draft_size):
        found = open_draft_vocabulary(store, spec)
        if found is not None:
            yield found


def _read_spec(store: StorePath, digest: str) -> DraftVocabularySpec:
    place = draft_vocabulary_folder(store, digest)
    with missing_is_torn(f"draft vocabulary {place.name}"):
        attributes: Any = read_document(find_group(place) / DOCUMENT).get("attributes")
    spec = attributes.get("spec") if isinstance(attributes, dict) else None
    try:
        return DraftVocabularySpec(**spec)  # type: ignore[arg-type] # which a TypeError says
    except (TypeError, SpecError) as error:
        raise CorruptObjectError(f"{place} does not say what it is of; remove it and make it again") from error
