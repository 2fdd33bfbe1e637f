from typing import Any

import pytest
from verdicts import judge


def row(variant: str, *, dense: bool = True, **figures: Any) -> dict[str, Any]:
    """A row of two layers that holds by every rule, but for `figures`."""
    return {
        "variant": variant,
        "exact": variant.startswith("cpu-fp32"),
        "dense": dense,
        "layers": [0, "final"],
        "equal": [True, True],
        "ours": {
            "relative_error": [0.0, figures.pop("error", 0.0)],
            "median_token_error": [0.0, figures.pop("median_error", 0.0)],
        },
        "ratio": [0.0, 0.9],
        "ratio_low": [0.0, 0.8],
        "median_ratio": [0.0, 1.0],
        **figures,
    }


def test_a_dense_model_in_float32_on_a_cpu_must_have_the_same_bits():
    assert judge(row("cpu-fp32"))["holds"]
    assert not judge(row("cpu-fp32", equal=[True, False], error=1e-8))["holds"]


def test_experts_and_mla_may_round_otherwise():
    assert judge(row("cpu-fp32", dense=False, equal=[True, False], error=2e-6))["holds"]
    assert not judge(row("cpu-fp32", dense=False, equal=[True, False], error=3e-6))["holds"]


def test_one_token_that_a_router_sent_elsewhere_is_told_apart_by_the_median_token():
    assert judge(row("cpu-fp32", dense=False, error=5e-3, median_error=1e-6))["by_median"]
    assert not judge(row("cpu-fp32", dense=False, error=5e-3, median_error=3e-6))["by_median"]


@pytest.mark.parametrize("variant", ["cpu-bf16", "gpu-bf16", "gpu-fp16"])
def test_elsewhere_ours_may_err_a_tenth_more_than_transformers(variant):
    assert judge(row(variant, ratio=[0.0, 1.1]))["holds"]
    verdict = judge(row(variant, ratio=[0.0, 1.2], ratio_low=[0.0, 1.15]))
    assert (verdict["holds"], verdict["by_median"]) == (False, False)
    assert (verdict["worst"], verdict["worst_layer"]) == (1.2, "final")


def test_more_is_told_apart_from_chance_by_the_median_token_and_by_the_interval():
    assert judge(row("gpu-bf16", ratio=[0.0, 1.3], ratio_low=[0.0, 1.0]))["by_median"]
    assert not judge(row("gpu-bf16", ratio=[0.0, 1.3], ratio_low=[0.0, 1.0], median_ratio=[0.0, 1.2]))["by_median"]
