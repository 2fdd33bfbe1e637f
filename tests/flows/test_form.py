"""The form of a deployment: all settings in groups, and bad values refused by its schema, as Prefect's server does."""

from pathlib import Path
from typing import Any

import pytest
from prefect.utilities.schema_tools.validation import validate

from flows.errors import SettingsError
from flows.form import GROUPS, form_schema, group_settings, read_form
from flows.pipeline import extract_hidden_states
from flows.settings import Settings

GIVEN: dict[str, Any] = {"model": "org/name", "data": ["/data/a.jsonl"], "store": "/data/store"}


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run where there is neither `.env` nor `aerie.toml`."""
    monkeypatch.chdir(tmp_path)


def errors(**changes: Any) -> list[str]:
    return [error.message for error in validate(group_settings(GIVEN | changes), form_schema())]


def test_every_setting_is_in_one_group_with_title_and_description() -> None:
    fields = [
        (name, field) for group in form_schema()["properties"].values() for name, field in group["properties"].items()
    ]
    assert sorted(name for name, _ in fields) == sorted(Settings.model_fields)
    assert not set(GROUPS) & set(Settings.model_fields)
    for name, field in fields:
        assert field["title"], name
        assert field["description"], name
        assert "anyOf" not in field, f"{name} would be a choice of types, not a field"


def test_what_is_needed_comes_first() -> None:
    schema = form_schema()
    assert schema["required"] == list(schema["properties"])[:3]
    for group in schema["properties"].values():
        in_order = sorted(group["properties"], key=lambda name: group["properties"][name]["position"])
        assert in_order[: len(group["required"])] == group["required"]


def test_prefect_shows_this_form() -> None:
    settings = extract_hidden_states.parameters.properties["settings"]
    assert settings["properties"] == form_schema()["properties"]
    assert settings["title"] == "Settings"


@pytest.mark.parametrize(
    "changes",
    [
        {"layers": "2,nonsense"},
        {"layers": "2,"},
        {"devices": "gpu"},
        {"devices": "0,cpu,"},
        {"dtype": "int8"},
        {"mantissa_bits": 0},
        {"max_length": 1.5},
        {"sample_fraction": 0},
        {"validate_fraction": 1.1},
        {"encode_threads": 2000},
        {"template_date": "yesterday"},
        {"template_kwargs": "enable_thinking"},
        {"role_weights": "assistant"},
        {"data": []},
        {"data": ["relative.jsonl"]},
        {"chat_template": "relative.jinja"},
        {"store": "relative"},
        {"store": "http://somewhere"},
        {"model": ""},
        {"compact": "yes"},
        {"secret_block": "Not A Name"},
    ],
    ids=str,
)
def test_a_bad_value_is_refused(changes: dict[str, Any]) -> None:
    assert errors(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        *({"layers": layers} for layers in ("2,L//2,L-3,final", "eagle3", " dflash:5 , final", "0", "L - 1,L")),
        *(
            {"devices": devices}
            for devices in ("auto", "all", "cpu", "cpu,cpu", "0,2", "0-3", "0-7:tp2", "0-7:tp8:ep8", "cpu:tp2")
        ),
        {"role_weights": "assistant=1,tool=0.1"},
        {"role_weights": {"assistant": 1.0, "tool": 0.1}},
        {"template_kwargs": {"enable_thinking": False}},
        {"template_date": "2026-11-30"},
        {"store": "s3://bucket/prefix"},
        {"max_batch_tokens": "auto", "max_length": None},
        {"max_batch_tokens": 4096},
    ],
    ids=str,
)
def test_a_good_one_is_taken_and_is_the_setting(changes: dict[str, Any]) -> None:
    assert errors(**changes) == []
    assert read_form(group_settings(GIVEN | changes)) == Settings(**(GIVEN | changes))


def test_what_is_left_out_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIE_MAX_LENGTH", "9")
    assert read_form(group_settings(GIVEN)).max_length == 9


def test_flat_settings_are_taken_too() -> None:
    assert read_form(GIVEN) == read_form(Settings(**GIVEN)) == Settings(**GIVEN)


@pytest.mark.parametrize(
    ("value", "words"),
    [({"model_and_layers": {"model": "m", "layer": "2"}}, "unknown setting layer"), ("text", "object")],
)
def test_what_the_schema_did_not_see_is_refused_in_one_line(value: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as refused:
        read_form(value)
    assert "\n" not in str(refused.value)
