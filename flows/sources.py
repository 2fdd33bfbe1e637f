"""Where settings come from: arguments, environment, `.env`, TOML; each refuses keys that it does not know."""

import difflib
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    TomlConfigSettingsSource,
)

from flows.errors import SettingsError

PREFIX = "AERIE_"
DEFAULT_CONFIG = "aerie.toml"
FLAG = "flag"
ENVIRONMENT = "environment"
DOTENV = ".env"

# Lower case, as pydantic-settings holds the keys of environment and .env.
_PREFIX = PREFIX.lower()
_CONFIG = f"{_PREFIX}config"


def sources(settings_cls: type[BaseSettings], given: Mapping[str, Any]) -> dict[str, PydanticBaseSettingsSource]:
    """Return the sources by name, the strongest first; `given` are arguments, `config` among them names the TOML file.

    Raises:
        SettingsError: `.env` or the TOML file cannot be read. Unknown keys are found when a source is called.
    """
    environment = _EnvironmentSource(settings_cls)
    with _readable(DOTENV):
        dotenv = _DotenvSource(settings_cls, env_file=DOTENV, env_file_encoding="utf-8")
    chosen = given.get("config") or environment.env_vars.get(_CONFIG) or dotenv.env_vars.get(_CONFIG)
    config = Path(chosen or DEFAULT_CONFIG).expanduser()
    if chosen and not config.is_file():
        raise SettingsError(f"settings file {config} is missing or not a file; correct --config or {_CONFIG.upper()}")
    with _readable(str(config)):
        toml = TomlConfigSettingsSource(settings_cls, config)
    arguments = {name: value for name, value in given.items() if name != "config"}
    return {
        FLAG: InitSettingsSource(settings_cls, arguments),
        ENVIRONMENT: environment,
        DOTENV: dotenv,
        str(config): toml,
    }


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is closest to an unknown one, if any is close."""
    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


def unknown_setting(key: str, source: str, meant: str | None) -> str:
    """Return the line that refuses an unknown key."""
    cure = f"did you mean {meant}?" if meant else "remove it; `aerie settings` lists all"
    return f"unknown setting {key} ({source}); {cure}"


class _EnvironmentSource(EnvSettingsSource):
    def __call__(self) -> dict[str, Any]:
        _refuse_unknown(self.env_vars, self.settings_cls, ENVIRONMENT)
        return super().__call__()


class _DotenvSource(DotEnvSettingsSource):
    def __call__(self) -> dict[str, Any]:
        _refuse_unknown(self.env_vars, self.settings_cls, DOTENV)
        # The other keys belong to other programs; pydantic-settings would take them for extra keys of ours.
        self.env_vars = {key: value for key, value in self.env_vars.items() if key in _field_keys(self.settings_cls)}
        return super().__call__()


def _field_keys(settings_cls: type[BaseSettings]) -> set[str]:
    return {f"{_PREFIX}{name}" for name in settings_cls.model_fields}


def _refuse_unknown(keys: Iterable[str], settings_cls: type[BaseSettings], source: str) -> None:
    known = _field_keys(settings_cls) | {_CONFIG}
    for key in keys:
        if key.startswith(_PREFIX) and key not in known:
            meant = did_you_mean(key.removeprefix(_PREFIX), [name.removeprefix(_PREFIX) for name in known])
            raise SettingsError(unknown_setting(key.upper(), source, meant and PREFIX + meant.upper()))


@contextmanager
def _readable(file: str) -> Iterator[None]:
    try:
        yield
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{file} is not TOML: {error}; correct it there") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} cannot be read: {error}; it must be a readable UTF-8 text file") from error
