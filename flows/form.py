"""Settings as the form of a deployment: in groups, with titles, descriptions, choices and bounds.

All of it is derived from `Settings`. Prefect's server checks what the form sends against this schema, so that a bad
value is refused at its field. What the form leaves empty comes from the worker's environment, `.env` and TOML.
"""

import json
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema
from pydantic_settings import BaseSettings

from flows.errors import SettingsError
from flows.resource_settings import Checks, Resources
from flows.settings import ModelSettings, Settings, load_settings
from flows.token_settings import ChatSettings, DataSettings, SampleSettings

_JSON = r"^\s*\{[\s\S]*\}\s*$"
_PAIRS = rf"{_JSON}|^[^=,]+=[^=,]+(?:,[^=,]+=[^=,]+)*$"

# A worker runs in a folder of its own and removes it: what a form names must not lie there.
STORE_PATTERN = "^(/|~|s3://)"
_ABSOLUTE = {"path": "^[/~]", "store": STORE_PATTERN}

# No name of a group is that of a setting: flat settings, as a call from Python has them, are taken too.
GROUPS: dict[str, type[BaseSettings]] = {
    "model_and_layers": ModelSettings,
    "data_files": DataSettings,
    "store_and_machine": Resources,
    "chats": ChatSettings,
    "samples": SampleSettings,
    "checks": Checks,
}


def group_settings(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Put settings into the groups of the form, as JSON has them; those that are an empty field there are left out."""
    empty = {name: field.default for name, field in Settings.model_fields.items() if not _is_shown(name)}
    known = {name: _plain(value) for name, value in values.items() if name not in empty or value != empty[name]}
    groups = {group: {name: known[name] for name in known if name in cls.model_fields} for group, cls in GROUPS.items()}
    return {group: inside for group, inside in groups.items() if inside}


def ungroup_settings(value: Mapping[str, Any]) -> dict[str, Any]:
    """Take settings out of the groups of the form; those that are in none stay."""
    inside = [value[group] for group in GROUPS if isinstance(value.get(group), Mapping)]
    flat = {name: setting for name, setting in value.items() if not (name in GROUPS and isinstance(setting, Mapping))}
    for group in inside:
        flat |= group
    return flat


def read_form(value: Any) -> Settings:
    """Return the settings that a form sent, or that a call from Python gave, flat or as `Settings`.

    Raises:
        SettingsError: one line with the key, the value, the limit and the cure.
    """
    if isinstance(value, Settings):
        return value
    if not isinstance(value, Mapping):
        raise SettingsError(f"settings should be an object, not {type(value).__name__}; see aerie settings")
    return load_settings(**ungroup_settings(value))


@cache
def form_schema() -> dict[str, Any]:
    """Return the JSON schema of the form."""
    groups = {name: _group_schema(cls) for name, cls in GROUPS.items()}
    required = [name for name, group in groups.items() if group.get("required")]
    return _object("Settings", _in_order(groups), required)


def titled(title: str, **schema: Any) -> Any:
    """Return the field of a flow's parameter with a title of its own, where Prefect would show the parameter's name."""
    return Field(json_schema_extra={"title": title, **schema})


def _is_shown(name: str) -> bool:
    """Say whether the form shows the default of a setting, or is empty there."""
    fields = (group["properties"].get(name) for group in form_schema()["properties"].values())
    return any("default" in field for field in fields if field is not None)


def _group_schema(cls: type[BaseSettings]) -> dict[str, Any]:
    schema = cls.model_json_schema()
    fields = {name: _field_schema(field) for name, field in schema["properties"].items()}
    required = [name for name in schema.get("required", ()) if name in fields]
    ordered = sorted(fields, key=lambda name: name not in required)
    group = _object(schema["title"], _in_order({name: fields[name] for name in ordered}), required)
    return {**group, "description": schema["description"].split(";")[0].rstrip(".") + "."}


def _field_schema(field: dict[str, Any]) -> dict[str, Any]:
    """Return a field as a form has it: what may be unset, or `auto`, is an empty field and no choice of two types."""
    choices = [choice for choice in field.get("anyOf", ()) if choice.get("type") != "null"]
    if choices:
        field = choices[0] | {name: value for name, value in field.items() if name not in ("anyOf", "default")}
    field = _absolute(field)
    if field.get("type") == "object":  # as everywhere else: name=value,name=value, or JSON
        is_json = field.pop("additionalProperties") is True
        field |= {"type": "string", "pattern": _JSON if is_json else _PAIRS}
    return field


def _absolute(field: dict[str, Any]) -> dict[str, Any]:
    """Ask for absolute paths, in lists too."""
    if "items" in field:
        return field | {"items": _absolute(field["items"])}
    kept = {name: value for name, value in field.items() if name != "format"}
    pattern = _ABSOLUTE.get(field.get("format", ""))
    return kept | ({"pattern": pattern} if pattern else {})


def _in_order(properties: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Number the fields, since databases may keep objects in another order."""
    return {name: field | {"position": place} for place, (name, field) in enumerate(properties.items())}


def _object(title: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "title": title,
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return json.dumps(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


SettingsForm = Annotated[
    Settings,
    WithJsonSchema(form_schema()),
    Field(json_schema_extra={"title": "Settings"}),
]
