"""Bad parameters of a flow are refused in one line."""

from pathlib import Path
from typing import Any

import pytest

from flows import compact_store, validate_store
from flows.errors import SettingsError


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"fraction": 2}, "fraction is 2: Input should be less than or equal to 1; correct it"),
        ({"threads": "many"}, "threads is 'many': Input should be a valid integer, unable to parse .*; correct it"),
        ({"store": 3}, "store is 3: Value error, Input is not a valid path; correct it"),
        ({"repair": "perhaps", "fraction": 2}, "fraction is 2: "),
    ],
    ids=str,
)
def test_the_first_of_them_is_named_with_its_value(
    with_server: dict[str, str],  # noqa: ARG001 - it runs
    tmp_path: Path,
    given: dict[str, Any],
    words: str,
) -> None:
    with pytest.raises(SettingsError, match=f"^{words}") as refused:
        validate_store(**{"store": tmp_path, **given})
    assert "\n" not in str(refused.value)


def test_what_prefect_refuses_for_other_reasons_is_one_line_too(with_server: dict[str, str]) -> None:  # noqa: ARG001
    with pytest.raises(SettingsError) as refused:
        compact_store({"$ref": "no block"})
    assert "\n" not in str(refused.value)
