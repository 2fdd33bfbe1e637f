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
        ("eagle3", 30, (2, 15, 27, "final")),
        # The ids of published drafters for Qwen3-8B and Qwen3.6-27B (1, 9, 17, ... and 1, 16, 31, ...), plus one.
        ("dflash", 36, (2, 10, 18, 26, 34)),
        ("dflash:5", 64, (2, 17, 32, 47, 62)),
        ("dflash:1", 36, (19,)),
        ("dflash:2", 5, (2, 3)),
        (" dflash:3 , final", 8, (2, 4, 6, "final")),
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
        ("dflash:0", ["'dflash:0'", "is not"]),
        ("dflash:30", ["dflash:30", "30 different layers among 2..28", "choose fewer"]),
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


@pytest.mark.parametrize("num_layers", [1, 3])
def test_a_model_too_small_for_a_set_says_so(num_layers):
    with pytest.raises(LayerError, match=f"dflash:2 needs 2 different layers .* a model of {num_layers} blocks"):
        resolve_layers("dflash:2", num_layers)


def test_sets_may_share_layers_with_each_other_and_with_ids():
    assert resolve_layers("eagle3,dflash,10,final", 36) == (2, 10, 18, 26, 33, 34, "final")


@settings(deadline=None)
@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n), min_size=1))))
def test_every_valid_set_of_ids_is_its_own_canonical_form(case):
    num_layers, ids = case
    assert resolve_layers(list(ids), num_layers) == tuple(sorted(ids))
    assert resolve_layers(",".join(map(str, ids)), num_layers) == tuple(sorted(ids))
