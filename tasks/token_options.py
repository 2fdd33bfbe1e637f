"""All that a user may choose about tokens: what is read, rendered, learnt and left out. All of it is in the digest."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from storage.digests import canonical_json
from storage.specs import Scalar
from tasks.inputs.formats import Format
from tasks.inputs.shapes import ShapeRules
from tasks.supervision import Supervision

TooLong = Literal["reject", "truncate", "truncate_turns"]
Duplicates = Literal["keep", "reject"]
CutOff = Literal["refuse", "keep"]


@dataclass(frozen=True)
class TokenOptions:
    """What is made of the data.

    Attributes:
        max_length: tokens of the longest sample.
        too_long: longer ones are rejected, cut, or cut behind the last turn to be learnt that fits.
        data_format: of all files; None to detect that of each.
        shape: how rows are read.
        chat_template: file of a template in place of the model's own.
        template_kwargs: what the template is given beside the messages.
        template_date: what the template is told of the date, as 2026-11-30; None rejects a chat that needs it.
        supervision: what is learnt.
        min_supervised_tokens: a sample with fewer is rejected.
        duplicates: rows with the token ids of an earlier row share its states, or are rejected.
        max_total_tokens: of all distinct samples; the row that goes beyond and all after it are left out.
        sample_fraction: share of the rows to take, chosen by content and `sample_seed`.
        sample_seed: another one takes other rows.
        cut_off: a file that ends within a row is refused, or the rows before are kept.
        reject_content: rejected rows are written down with their content.
    """

    max_length: int
    too_long: TooLong = "reject"
    data_format: Format | None = None
    shape: ShapeRules = field(default_factory=ShapeRules)
    chat_template: Path | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    template_date: str | None = None
    supervision: Supervision = field(default_factory=Supervision)
    min_supervised_tokens: int = 1
    duplicates: Duplicates = "keep"
    max_total_tokens: int | None = None
    sample_fraction: float = 1.0
    sample_seed: int = 0
    cut_off: CutOff = "refuse"
    reject_content: bool = False

    def to_spec(self) -> dict[str, Scalar | None]:
        """Return all but the template, which has a digest of its own, as scalars for `TokensSpec.options`."""
        return {
            "max_length": self.max_length,
            "too_long": self.too_long,
            "data_format": self.data_format,
            "shape": self.shape.shape,
            "columns": _text(self.shape.columns),
            "role_names": _text(self.shape.role_names),
            "template_kwargs": _text(self.template_kwargs),
            "template_date": self.template_date,
            "turns": self.supervision.turns,
            "role_weights": _text(self.supervision.role_weights),
            "end_of_turn": self.supervision.end_of_turn,
            "min_supervised_tokens": self.min_supervised_tokens,
            "duplicates": self.duplicates,
            "max_total_tokens": self.max_total_tokens,
            "sample_fraction": self.sample_fraction,
            "sample_seed": self.sample_seed,
            "cut_off": self.cut_off,
            "reject_content": self.reject_content,
        }


def _text(value: Mapping[str, Any]) -> str:
    return canonical_json(dict(value)).decode("ascii")
