import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.engine.errors import LayerError
from tasks.engine.layers import DEFAULT_LAYERS, resolve_layers


@pytest.mark.parametrize(
    ("expression", "num_layers", "expected"),
    [
        ("0", 30, (0,)),
        ("final", 30, ("final",)),
        ("final,L,0", 30, (0, 30, "final")),
        (DEFAULT_LAYERS, 30, (2, 15, 27, "final")),
        (DEFAULT_LAYERS, 7, (2, 3, 4, "final")),
        (DEFAULT_LAYERS, 3, (0, 1, 2, "final")),
        (" L - 1 , L // 4 ", 9, (2, 8)),
        ([5, "final", "L-1"], 9, (5, 8, "final")),
        ((1,), 1, (1,)),
    ],
)
def test_layers_resolve_to_ascending_ids_with_final_last(expression, num_layers, expected):
    assert resolve_layers(expression, num_layers) == expected


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("31", ["layer 31", "0..30"]),
        ("-1", ["layer -1", "0..30", "L-<n>"]),
        ("L-31", ["L-31 = -1", "0..30"]),
        ("2,2", ["'2' is given twice", "keep one"]),
        ("15,L//2", ["'15' and 'L//2' are both layer 15", "0..30", "keep one"]),
        ("L,30", ["'L' and '30' are both layer 30"]),
        ("final,final", ["'final' is given twice"]),
        ("L//0", ["'L//0'", "is not"]),
        ("1,,2", ["layer ''", "is not"]),
        ("l", ["layer 'l'", "final"]),
        ("1.5", ["'1.5'"]),
        ("9" * 5000, ["is not"]),
        ([True], ["'True'"]),
        ([1.0], ["'1.0'"]),
        ("", ["no layers"]),
        (" ", ["no layers"]),
        ([], ["no layers"]),
    ],
)
def test_a_bad_layer_is_named_with_its_limit_and_cure(expression, words):
    with pytest.raises(LayerError) as error:
        resolve_layers(expression, 30)
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("num_layers", [1, 2, 4, 5, 6])
def test_a_model_too_small_for_the_default_says_so(num_layers):
    with pytest.raises(LayerError, match="The default 2,L//2,L-3,final needs") as error:
        resolve_layers(DEFAULT_LAYERS, num_layers)
    cure = str(error.value).rsplit(" ", 1)[1]
    assert resolve_layers(cure, num_layers)[-1] == "final"


@settings(deadline=None)
@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n), min_size=1))))
def test_every_valid_set_of_ids_is_its_own_canonical_form(case):
    num_layers, ids = case
    assert resolve_layers(list(ids), num_layers) == tuple(sorted(ids))
    assert resolve_layers(",".join(map(str, ids)), num_layers) == tuple(sorted(ids))
