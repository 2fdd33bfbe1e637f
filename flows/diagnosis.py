"""One thing about a machine that was looked at: whether it will do, what it is, and what to do about it. Pure."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["pass", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """What was found of one thing.

    Attributes:
        name: of the thing.
        verdict: `pass`; `warn`: runs work, but slowly, or not all of them; `fail`: they do not.
        value: what was found.
        cure: what to do about it; empty where all is well.
    """

    name: str
    verdict: Verdict
    value: str
    cure: str = ""


def passed(name: str, value: str) -> Check:
    """Say that something is as it should be."""
    return Check(name, "pass", value)


def warned(name: str, value: str, cure: str) -> Check:
    """Say that something will do for some work only."""
    return Check(name, "warn", value, cure)


def failed(name: str, value: str, cure: str) -> Check:
    """Say that nothing will run like this."""
    return Check(name, "fail", value, cure)


def at_least(name: str, found: float, text: str, least: tuple[float, float], cure: str) -> Check:
    """Judge a number by two others.

    Args:
        name: of the thing.
        found: the number.
        text: the number for people.
        least: below the first it fails, below the second it warns.
        cure: what to do about too little.
    """
    if found < least[0]:
        return failed(name, text, cure)
    return warned(name, text, cure) if found < least[1] else passed(name, text)


def count_verdict(checks: Iterable[Check], verdict: Verdict) -> int:
    """Return how many checks came out so."""
    return sum(check.verdict == verdict for check in checks)


def as_json(checks: list[Check]) -> dict[str, Any]:
    """Return all checks, and how many warn and fail."""
    counts = {"failed": count_verdict(checks, "fail"), "warned": count_verdict(checks, "warn")}
    return {**counts, "checks": [asdict(check) for check in checks]}
