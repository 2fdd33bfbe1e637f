import json
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from flows.errors import SettingsError
from flows.resource_settings import Checks, Resources
from flows.settings import Computation, Settings, explain_settings, load_settings

GIVEN = {"model": "m", "data": "chats.jsonl", "store": "s"}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_all_sources(folder, monkeypatch, *, upto):
    """Give every source up to `upto` its own `unit_tokens`, the strongest source the highest value."""
    writers = [
        lambda: (folder / "aerie.toml").write_text("unit_tokens = 1"),
        lambda: (folder / ".env").write_text("AERIE_UNIT_TOKENS=2"),
        lambda: monkeypatch.setenv("AERIE_UNIT_TOKENS", "3"),
    ]
    for write in writers[:upto]:
        write()


def refusal(**given):
    with pytest.raises(SettingsError) as error:
        load_settings(**given)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("upto", "source"), [(0, "default"), (1, "aerie.toml"), (2, ".env"), (3, "environment AERIE_UNIT_TOKENS")]
)
def test_the_stronger_source_wins_and_is_named(folder, monkeypatch, upto, source):
    write_all_sources(folder, monkeypatch, upto=upto)
    [explained] = [explained for explained in explain_settings(**GIVEN) if explained.name == "unit_tokens"]
    assert explained.value == (upto or 1_000_000)
    assert explained.source == source


def test_an_argument_wins_over_all_sources(folder, monkeypatch):
    write_all_sources(folder, monkeypatch, upto=3)
    [explained] = [e for e in explain_settings(**GIVEN, unit_tokens=4) if e.name == "unit_tokens"]
    assert (explained.value, explained.source) == (4, "flag")
    assert Settings(**GIVEN, unit_tokens=4).unit_tokens == 4


def test_a_none_that_was_given_wins_too(monkeypatch):
    monkeypatch.setenv("AERIE_MAX_LENGTH", "7")
    assert load_settings(**GIVEN).max_length == 7
    assert load_settings(**GIVEN, max_length=None).max_length is None


def test_every_setting_is_explained_once():
    assert [explained.name for explained in explain_settings(**GIVEN)] == list(Settings.model_fields)


def test_what_is_computed_and_resources_share_no_setting():
    of_resources = {*Resources.model_fields, *Checks.model_fields}
    assert set(Computation.model_fields) | of_resources == set(Settings.model_fields)
    assert not set(Computation.model_fields) & of_resources


@pytest.mark.parametrize("choose", ["argument", "environment", "dotenv"])
def test_another_toml_file_can_be_chosen(folder, monkeypatch, choose):
    (folder / "aerie.toml").write_text("unit_tokens = 1")
    (folder / "other.toml").write_text("unit_tokens = 5")
    given = dict(GIVEN)
    if choose == "argument":
        given["config"] = Path("other.toml")
    if choose == "environment":
        monkeypatch.setenv("AERIE_CONFIG", "other.toml")
    if choose == "dotenv":
        (folder / ".env").write_text("AERIE_CONFIG=other.toml")
    [explained] = [explained for explained in explain_settings(**given) if explained.name == "unit_tokens"]
    assert (explained.value, explained.source) == (5, "other.toml")


def test_a_chosen_toml_file_must_exist(monkeypatch):
    assert "nowhere.toml" in refusal(**GIVEN, config="nowhere.toml")
    monkeypatch.setenv("AERIE_CONFIG", "gone.toml")
    assert "gone.toml" in refusal(**GIVEN)


def test_an_unknown_key_is_refused_wherever_it_stands(folder, monkeypatch):
    assert refusal(**GIVEN, unit_token=1) == "unknown setting unit_token (flag); did you mean unit_tokens?"
    (folder / "aerie.toml").write_text("unit_token = 1")
    assert refusal(**GIVEN) == "unknown setting unit_token (aerie.toml); did you mean unit_tokens?"
    (folder / ".env").write_text("AERIE_UNIT_TOKEN=1")
    assert refusal(**GIVEN) == "unknown setting AERIE_UNIT_TOKEN (.env); did you mean AERIE_UNIT_TOKENS?"
    monkeypatch.setenv("AERIE_UNIT_TOKEN", "1")
    assert refusal(**GIVEN) == "unknown setting AERIE_UNIT_TOKEN (environment); did you mean AERIE_UNIT_TOKENS?"


def test_an_unknown_key_is_named_before_a_missing_one():
    assert "did you mean model?" in refusal(modell="m")


def test_a_key_like_no_other_is_refused_without_a_guess(monkeypatch):
    monkeypatch.setenv("AERIE_QQQ", "1")
    assert refusal(**GIVEN) == "unknown setting AERIE_QQQ (environment); remove it; `aerie settings` lists all"


def test_keys_of_other_programs_are_left_alone(folder, monkeypatch):
    (folder / ".env").write_text("MODEL=x\nUNIT_TOKENS=9\nOTHER=1\nAERIE_UNIT_TOKENS=2\n")
    monkeypatch.setenv("STORE", "elsewhere")
    settings = load_settings(**GIVEN)
    assert (settings.unit_tokens, settings.model, settings.store) == (2, Path("m"), Path("s"))


def test_missing_settings_are_named_with_where_to_give_them():
    assert refusal(store="s") == (
        "settings without a value: model, data; give --model, AERIE_MODEL, or model in aerie.toml"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("validate_fraction", "1.5"),
        ("validate_fraction", "nan"),
        ("validate_fraction", "-0.1"),
        ("unit_tokens", "0"),
        ("max_length", "0"),
        ("max_length", "x"),
        ("max_batch_tokens", "-1"),
        ("encode_threads", "0"),
        ("dtype", "fp8"),
        ("storage_dtype", "auto"),
        ("too_long", "drop"),
        ("compact", "maybe"),
        ("max_in_flight_bytes", "12"),
        ("data", "[1"),
        ("data", "[]"),
    ],
)
def test_a_value_out_of_bounds_is_named_with_its_source_and_limit(monkeypatch, name, value):
    monkeypatch.setenv(f"AERIE_{name.upper()}", value)
    given = {key: GIVEN[key] for key in GIVEN if key != name}
    line = refusal(**given)
    assert line.startswith(f"{name} = ")
    assert f"(environment AERIE_{name.upper()})" in line
    assert "should" in line


def test_all_bad_values_are_named_at_once():
    line = refusal(**GIVEN, unit_tokens=0, dtype="x")
    assert "unit_tokens = 0 (flag)" in line
    assert "dtype = 'x' (flag)" in line


@pytest.mark.parametrize("content", [b"unit_tokens = ", b"unit_tokens = 1\nunit_tokens = 2", b"model = '\xff'"])
def test_a_broken_toml_file_is_one_line(folder, content):
    (folder / "aerie.toml").write_bytes(content)
    assert refusal(**GIVEN).startswith("aerie.toml ")


def test_a_dotenv_that_is_not_text_is_one_line(folder):
    (folder / ".env").write_bytes(b"AERIE_MODEL=\xff\xfe")
    assert refusal(**GIVEN).startswith(".env cannot be read")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a.jsonl", ["a.jsonl"]),
        ("a.jsonl, b.jsonl", ["a.jsonl", "b.jsonl"]),
        ('["a,b.jsonl", "c.jsonl"]', ["a,b.jsonl", "c.jsonl"]),
    ],
)
def test_data_is_one_file_or_many_from_every_source(folder, monkeypatch, value, expected):
    given = {"model": "m", "store": "s"}
    paths = tuple(map(Path, expected))
    assert load_settings(**given, data=value).data == paths
    assert load_settings(**given, data=expected).data == paths
    (folder / "aerie.toml").write_text(f"data = {json.dumps(expected)}")
    assert load_settings(**given).data == paths
    (folder / ".env").write_text(f"AERIE_DATA='{value}'")
    assert load_settings(**given).data == paths
    monkeypatch.setenv("AERIE_DATA", value)
    assert load_settings(**given).data == paths


def test_a_path_alone_is_data():
    assert Settings(model=Path("m"), data=Path("a,b.jsonl"), store=Path("s")).data == (Path("a,b.jsonl"),)


def test_layers_may_be_a_list(folder):
    assert load_settings(**GIVEN, layers=[2, "L//2", "final"]).layers == "2,L//2,final"
    (folder / "aerie.toml").write_text('layers = [0, "final"]')
    assert load_settings(**GIVEN).layers == "0,final"


def test_a_tilde_is_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    assert load_settings(model="~/m", data="~/d.jsonl", store="s").model == Path("/home/someone/m")


def test_an_empty_variable_counts_as_unset(monkeypatch):
    monkeypatch.setenv("AERIE_MAX_LENGTH", "")
    assert load_settings(**GIVEN).max_length is None


def test_settings_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        load_settings(**GIVEN).unit_tokens = 2


def test_settings_survive_json_whatever_the_environment_says(monkeypatch):
    settings = load_settings(**GIVEN, layers="0,final", max_length=None, validate_fraction=0.25)
    as_json = settings.model_dump_json()
    monkeypatch.setenv("AERIE_MAX_LENGTH", "9")
    monkeypatch.setenv("AERIE_UNIT_TOKENS", "9")
    assert Settings.model_validate_json(as_json) == settings
    assert TypeAdapter(Settings).validate_python(json.loads(as_json)) == settings


def test_prefect_makes_settings_of_the_parameters_of_a_deployment(monkeypatch):
    from prefect import flow

    @flow
    def run(settings: Settings) -> None: ...

    monkeypatch.setenv("AERIE_STORE", "from-environment")
    given = run.validate_parameters({"settings": {"model": "m", "data": "a,b"}})["settings"]
    assert given == Settings(model="m", data=("a", "b"), store="from-environment")
    assert run.validate_parameters({"settings": given})["settings"] is given
    assert run.parameters.definitions["Settings"]["properties"]["validate_fraction"]["maximum"] == 1.0


def test_every_setting_has_a_title_and_a_description():
    for name, schema in Settings.model_json_schema()["properties"].items():
        assert schema["title"], name
        assert schema["description"], name
