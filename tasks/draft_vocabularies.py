"""Draft vocabularies, counted from the tokens that are learnt."""

import numpy as np
import numpy.typing as npt

from storage.draft_vocabularies import (
    DraftVocabulary,
    DraftVocabularySpec,
    open_draft_vocabulary,
    write_draft_vocabulary,
)
from storage.paths import StorePath
from storage.tokens import Tokens
from tasks.errors import TokenizerError

# Rows read at a time.
_BLOCK_ROWS = 4096


def make_spec(tokens: Tokens, tokenizer: str, *, target_size: int, draft_size: int) -> DraftVocabularySpec:
    """Return what names the draft vocabulary of a tokens artifact.

    Args:
        tokens: the artifact.
        tokenizer: digest of the model's tokenizer (`tokenizer_spec`).
        target_size: rows of the model's embedding.
        draft_size: ids of the drafter.

    Raises:
        TokenizerError: the artifact was made with another tokenizer.
        SpecError: the sizes do not fit each other.
    """
    own = tokens.spec["tokenizer"]
    if own != tokenizer:
        raise TokenizerError(
            f"tokens artifact {tokens.digest} was made with tokenizer {own[:12]}, the model has {tokenizer[:12]}; "
            "give the model that the tokens are of"
        )
    return DraftVocabularySpec(tokens.digest, tokenizer, target_size, draft_size)


def ensure_draft_vocabulary(store: StorePath, tokens: Tokens, spec: DraftVocabularySpec) -> DraftVocabulary:
    """Return the draft vocabulary of a spec from the store; counted and written there if it is missing.

    Raises:
        StorageError: store or artifact are damaged, or the store cannot be written.
    """
    found = open_draft_vocabulary(store, spec)
    if found is None:
        found = choose_tokens(count_supervised(tokens, spec.target_size), spec.draft_size)
        write_draft_vocabulary(store, spec, found)
    return found


def count_supervised(tokens: Tokens, target_size: int) -> npt.NDArray[np.int64]:
    """Return int64[target_size], how often each id is learnt; every row counts, copies too."""
    counts = np.zeros(target_size, np.int64)
    for start in range(0, len(tokens), _BLOCK_ROWS):
        stop = min(start + _BLOCK_ROWS, len(tokens))
        ids = tokens.ids_of(start, stop)[tokens.loss_masks(start, stop) == 1]
        counts += np.bincount(ids, minlength=target_size)
    return counts


def choose_tokens(counts: npt.NDArray[np.int64], draft_size: int) -> DraftVocabulary:
    """Choose the ids that are learnt most often; of equally frequent ones, such as those never learnt, the lower."""
    order = np.argsort(-counts, kind="stable")
    chosen = np.sort(order[:draft_size])
    t2d = np.zeros(len(counts), bool)
    t2d[chosen] = True
    total = int(counts.sum())
    coverage = round(int(counts[chosen].sum()) / total, 6) if total else 0.0
    return DraftVocabulary(chosen - np.arange(draft_size), t2d, coverage)
