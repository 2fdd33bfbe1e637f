"""What a row of the fidelity table must show, and whether it does."""

from typing import Any

# An error of ours may be this multiple of that of transformers in the same precision.
RATIO = 1.1
# float32: experts and absorbed MLA multiply in another order, as do GPUs or processes that share a model.
ROUNDING = 2e-6


def judge(row: dict[str, Any]) -> dict[str, Any]:
    """Judge a row by its rule.

    Returns:
        rule: `identical`, `rounding` or `ratio`.
        holds: whether every layer keeps to it.
        by_median: `ratio` only: whether every layer does by the median token, and what the sum over tokens is above it
            can be chance (the interval of the ratio reaches down to it).
        worst_layer: where the figure of the rule is largest, and `worst` that figure.
    """
    rule = _rule(row)
    figures = row["ratio"] if rule == "ratio" else row["ours"]["relative_error"]
    worst = max(range(len(figures)), key=figures.__getitem__)
    verdict = {"rule": rule, "worst_layer": row["layers"][worst], "worst": figures[worst]}
    if rule == "identical":
        return verdict | {"holds": all(row["equal"])}
    if rule == "rounding":
        return verdict | {"holds": figures[worst] <= ROUNDING}
    return verdict | {
        "holds": figures[worst] <= RATIO,
        "by_median": max(row["median_ratio"]) <= RATIO and max(row["ratio_low"]) <= RATIO,
    }


def _rule(row: dict[str, Any]) -> str:
    if not row["exact"]:
        return "ratio"
    return "identical" if row["dense"] and row["variant"] == "cpu-fp32" else "rounding"
