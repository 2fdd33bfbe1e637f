"""The order of rows: what depends on the rows before, and the accounting of all of them."""

from collections import Counter
from collections.abc import Iterable

from storage.digests import sample_hash
from storage.tokens import TokensWriter
from tasks.rejections import BY_CHOICE, RowRejectedError
from tasks.row_tokenizer import Outcome
from tasks.token_options import TokenOptions
from tasks.token_policies import Sample

# Of a sample hash, enough to tell samples apart; about 100 bytes of memory a sample, where they are remembered.
_HASH_BYTES = 16


class Intake:
    """Takes in outcomes in the order of the rows; the artifact does not depend on how they were cut into chunks.

    Attributes:
        num_rows: rows so far.
        rejected: rows, or parts of rows that were split, by reason.
    """

    def __init__(self, writer: TokensWriter, options: TokenOptions) -> None:
        self._writer = writer
        self._options = options
        self._seen: set[bytes] = set()
        self._total = 0
        self._is_full = False
        self.num_rows = 0
        self.rejected: Counter[str] = Counter()

    @property
    def num_kept(self) -> int:
        """Samples kept so far."""
        return self._writer.num_samples

    def take(self, file: str, outcomes: Iterable[Outcome]) -> None:
        """Keep or reject each sample of each row."""
        for outcome in outcomes:
            self._writer.note_split(len(outcome.samples) - 1)
            for part, sample in enumerate(outcome.samples, start=1):
                error = sample if isinstance(sample, RowRejectedError) else self._keep(sample)
                if error is not None:
                    self._reject(file, outcome, part, error)
            self.num_rows += 1

    def _keep(self, sample: Sample) -> RowRejectedError | None:
        """Keep a sample, or say why the rows before it leave no place for it."""
        name = bytes.fromhex(sample_hash(sample.input_ids))[:_HASH_BYTES] if self._remembers else b""
        is_new = name not in self._seen
        if self._options.duplicates == "reject" and not is_new:
            return RowRejectedError("duplicate")
        if self._is_over(sample, is_new=is_new):
            return RowRejectedError("over_total")
        if self._remembers:
            self._seen.add(name)
        self._writer.append(
            sample.input_ids,
            sample.loss_mask,
            self.num_rows,
            truncated=sample.truncated,
            loss_weight=sample.loss_weight if self._options.supervision.is_weighted else None,
        )
        return None

    @property
    def _remembers(self) -> bool:
        return self._options.duplicates == "reject" or self._options.max_total_tokens is not None

    def _is_over(self, sample: Sample, *, is_new: bool) -> bool:
        """Say whether a sample goes beyond the total; then none after it is taken, however short."""
        limit = self._options.max_total_tokens
        if limit is None:
            return False
        added = len(sample.input_ids) if is_new else 0
        self._is_full |= self._total + added > limit
        self._total += 0 if self._is_full else added
        return self._is_full

    def _reject(self, file: str, outcome: Outcome, part: int, error: RowRejectedError) -> None:
        self.rejected[error.reason] += 1
        if error.reason in BY_CHOICE:
            self._writer.count_rejected(error.reason)
            return
        parts = len(outcome.samples)
        hint = error.hint if parts == 1 else f"sample {part} of {parts} that the row was split into: {error.hint}"
        self._writer.reject(file, outcome.line, self.num_rows, error.reason, hint, content=outcome.content)
