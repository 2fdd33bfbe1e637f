from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from storage import StateSpec, TokensSpec
from storage.errors import SpecError
from storage.specs import bits_of


def test_a_spec_survives_its_json(spec: StateSpec) -> None:
    full = replace(
        spec, quantization="int4", numerics={"tp_size": 2, "eps": 1e-6, "deterministic": True, "backend": "triton"}
    )
    assert StateSpec.from_json(full.to_json()) == full


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_fingerprint", "0"),
        ("architecture", "Qwen3ForCausalLM"),
        ("num_layers", 9),
        ("hidden_size", 49),
        ("layers", (2, 5)),
        ("compute_dtype", "bfloat16"),
        ("storage_dtype", "float32"),
        ("quantization", "int4"),
        ("engine", "other"),
        ("engine_version", "2"),
        ("numerics", {"a": 1}),
    ],
)
def test_every_field_changes_the_digest(spec: StateSpec, field: str, value: object) -> None:
    assert replace(spec, **{field: value}).digest() != spec.digest()


@pytest.mark.parametrize(
    "layers", [(), (5, 2), (2, 2), (2, 9), (-1,), ("final", 2), ("final", "final"), ("last",), (True,), (2.0,), [2, 5]]
)
def test_layers_that_are_not_canonical_are_refused(spec: StateSpec, layers: object) -> None:
    with pytest.raises(SpecError, match="layers"):
        replace(spec, layers=layers)


@pytest.mark.parametrize("layers", [(0,), (8,), ("final",), (0, 1, 8, "final")])
def test_canonical_layers_are_taken(spec: StateSpec, layers: tuple) -> None:
    assert replace(spec, layers=layers).num_captured == len(layers)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("storage_dtype", "float8_e5m2"),
        ("hidden_size", 0),
        ("num_layers", "8"),
        ("engine", ""),
        ("quantization", ""),
        ("numerics", {"a": [1]}),
    ],
)
def test_bad_fields_are_named(spec: StateSpec, field: str, value: object) -> None:
    with pytest.raises(SpecError, match=field):
        replace(spec, **{field: value})


def test_numbers_without_json_are_refused(spec: StateSpec) -> None:
    with pytest.raises(SpecError, match="nan"):
        replace(spec, numerics={"a": float("nan")})


def test_unknown_and_missing_keys_are_refused(spec: StateSpec) -> None:
    document = spec.to_json()
    with pytest.raises(SpecError, match="colour"):
        StateSpec.from_json({**document, "colour": "red"})
    del document["engine"]
    with pytest.raises(SpecError, match="engine"):
        StateSpec.from_json(document)


@pytest.mark.parametrize(("dtype", "expected"), [("bfloat16", 288), ("float16", 288), ("float32", 576)])
def test_bytes_per_token_are_raw_bytes(spec: StateSpec, dtype: str, expected: int) -> None:
    assert replace(spec, storage_dtype=dtype).bytes_per_token == expected


def test_bits_are_taken_without_conversion(spec: StateSpec) -> None:
    values = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    assert bits_of(values, spec).tolist() == [0x3FC0, 0xC000]
    assert bits_of(values.view(np.uint16), spec).tolist() == [0x3FC0, 0xC000]
    with pytest.raises(SpecError, match="float32"):
        bits_of(values.astype(np.float32), spec)


def test_tokens_depend_on_the_order_of_the_files() -> None:
    one = TokensSpec(("a", "b"), "t", "c", {"max_length": None}, 1)
    assert one.digest() != replace(one, data=("b", "a")).digest()
    with pytest.raises(SpecError, match="data"):
        replace(one, data=())
