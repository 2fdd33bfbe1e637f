from pathlib import Path

import pytest

from flows.deployments import NIGHTLY, known_settings, list_deployments
from flows.errors import SettingsError
from flows.settings import explain_settings

KNOWN = {"model": "org/name", "data": ["/data/a.jsonl"], "store": "/data/store"}


def test_forms_start_with_the_settings_that_are_known() -> None:
    parameters = {one.name: one.parameters for one in list_deployments(KNOWN)}
    settings = parameters["extract"]["settings"]
    assert settings["model_and_layers"] == {"model": "org/name"}
    assert parameters[NIGHTLY] == parameters["extract"]
    assert parameters["extract-on-nodes"] == parameters["extract"]
    assert parameters["extract-part"] == {}
    assert parameters["validate"] == parameters["compact"] == parameters["export"] == {"store": "/data/store"}
    assert {one.name: one.parameters for one in list_deployments({})} == {name: {} for name in parameters}


def test_the_schedule_is_paused_until_it_is_asked_for() -> None:
    [paused] = [one for one in list_deployments(KNOWN) if one.cron]
    [active] = [one for one in list_deployments(KNOWN, "0 22 * * *") if one.cron]
    assert (paused.name, paused.cron, paused.is_active) == (NIGHTLY, "0 1 * * *", False)
    assert (active.cron, active.is_active) == ("0 22 * * *", True)


def test_a_night_of_nothing_is_refused() -> None:
    with pytest.raises(SettingsError, match="needs data, store"):
        list_deployments({"model": "m"}, "0 1 * * *")


def test_paths_become_absolute_and_a_hub_id_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    given = {"data": "a.jsonl,b/*.jsonl", "store": "s3://bucket/prefix", "layers": "final"}
    known = known_settings(explain_settings(model="org/name", **given))
    assert known["model"] == Path("org/name")
    assert known["data"] == [str(tmp_path / "a.jsonl"), str(tmp_path / "b/*.jsonl")]
    assert str(known["store"]) == "s3://bucket/prefix"
    assert known["layers"] == "final"
    assert "devices" not in known
    assert known_settings(explain_settings(model="folder", **given))["model"] == str(tmp_path / "folder")
