"""What a check finds."""

from dataclasses import dataclass, field
from typing import Literal

Where = Literal["loose", "pack", "tokens", "spec", "header"]


@dataclass(frozen=True)
class Finding:
    """The first fault of one stored copy of a sample, or of another part of a store.

    Attributes:
        sample_hash: the sample; None if the index of a whole pack is damaged, so that its samples are not known, or if
            the fault is in no sample.
        where: `loose` or `pack`; `tokens` is a tokens artifact, `spec` the file of a spec, `header` aerie.json.
        reason: `torn`, `checksum`, `metadata`, `hash_mismatch`, `row_count`, `non_finite` or `all_zero`.
        detail: one line for people.
        pack_id: the pack, if `where` is `pack`.
        digest: of the spec or of the tokens artifact.
    """

    sample_hash: str | None
    where: Where
    reason: str
    detail: str
    pack_id: str | None = None
    digest: str | None = None


@dataclass
class CheckReport:
    """What a check saw.

    Attributes:
        checked: stored copies of samples checked; a sample that is loose and packed counts twice.
        findings: what is wrong, the first fault of each copy.
        bytes: encoded bytes read of the sound ones.
    """

    checked: int = 0
    findings: list[Finding] = field(default_factory=list)
    bytes: int = 0

    def add(self, other: "CheckReport") -> None:
        """Add what another check saw."""
        self.checked += other.checked
        self.findings += other.findings
        self.bytes += other.bytes
