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
        median: the largest figure of the median token.
        by_median: whether every layer does by the median token, and, of a ratio, what it is above that can be chance
            (its interval reaches down to it).
        worst_layer: where the figure of the rule is largest, and `worst` that figure.
    """
    rule = _rule(row)
    figures = row["ratio"] if rule == "ratio" else row["ours"]["relative_error"]
    worst = max(range(len(figures)), key=figures.__getitem__)
    verdict = {"rule": rule, "worst_layer": row["layers"][worst], "worst": figures[worst]}
    if rule == "identical":
        return verdict | {"holds": all(row["equal"]), "median": 0.0, "by_median": False}
    if rule == "rounding":
        median = max(row["ours"]["median_token_error"])
        return verdict | {"holds": figures[worst] <= ROUNDING, "median": median, "by_median": median <= ROUNDING}
    median = max(row["median_ratio"])
    by_median = median <= RATIO and max(row["ratio_low"]) <= RATIO
    return verdict | {"holds": figures[worst] <= RATIO, "median": median, "by_median": by_median}


def _rule(row: dict[str, Any]) -> str:
    if not row["exact"]:
        return "ratio"
    return "identical" if row["dense"] and row["variant"] == "cpu-fp32" else "rounding"
