"""`Settings`: all settings of a run, their bounds, and where each value came from."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from flows.errors import SettingsError
from flows.resource_settings import Checks, Resources
from flows.sources import DEFAULT_CONFIG, ENVIRONMENT, PREFIX, did_you_mean, sources, unknown_setting
from flows.token_settings import TokenSettings, UserPath
from tasks.engine.layers import DEFAULT_LAYERS, LAYERS_PATTERN


def _join_layers(value: Any) -> Any:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else value


class ModelSettings(BaseSettings):
    """What a state depends on beside its tokens."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix=PREFIX,
        env_ignore_empty=True,
        title="Model and layers",
    )

    model: UserPath = Field(
        title="Model",
        description="folder of a Hugging Face model with its tokenizer, or its Hub id if it is in the local cache",
        json_schema_extra={"minLength": 1, "format": "model"},
    )
    layers: Annotated[str, BeforeValidator(_join_layers)] = Field(
        default=DEFAULT_LAYERS,
        title="Layers",
        description="comma-separated: k (the stream after k blocks), L, L-<n>, L//<n>, final (after the last norm), or "
        "the sets of trainers: eagle3, dflash, dflash:<n> (for a drafter of n layers)",
        json_schema_extra={"pattern": LAYERS_PATTERN},
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto",
        title="Compute dtype",
        description="dtype of the forward; auto: float32 on a CPU, on a GPU the checkpoint's, bfloat16 for float32",
    )
    quantization: Literal["auto", "fp8"] = Field(
        default="auto",
        title="Quantization",
        description="auto is the checkpoint's own; fp8 quantizes the weights as they are loaded, on a GPU",
    )
    deterministic: bool = Field(
        default=False,
        title="Deterministic",
        description="a sample has the same bits whatever it is batched with; slower",
    )
    storage_dtype: Literal["bfloat16", "float32", "float16", "float8_e4m3fn"] = Field(
        default="bfloat16",
        title="Storage dtype",
        description="dtype that hidden states are rounded to when stored; float8_e4m3fn, with a scale for each token "
        "and layer, is lossy and read as bfloat16",
    )
    mantissa_bits: int | None = Field(
        default=None,
        ge=1,
        title="Mantissa bits",
        description="of each value that are stored, to save room: fewer than the storage dtype has; unset is all; not "
        "with float8_e4m3fn",
    )


class Computation(TokenSettings, ModelSettings):
    """What is computed: every one of these changes what is stored."""


class Settings(Checks, Resources, Computation):
    """All settings of a run; flags and arguments > environment `AERIE_*` > `.env` > TOML > defaults.

    The TOML file is `config` (an argument), else what AERIE_CONFIG names, else `aerie.toml` if there is one.

    Raises:
        ValidationError: a value is missing, unknown or out of bounds; `load_settings` says it in one line.
        SettingsError: the environment or `.env` has an unknown `AERIE_*` key, or a settings file cannot be read.
    """

    model_config = SettingsConfigDict(title="Settings")

    if TYPE_CHECKING:

        def __init__(self, **settings: Any) -> None:
            """Take what pydantic converts, such as text for paths: a checker would ask for what it becomes."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - ours stand in for pydantic-settings' own
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Put our sources, which refuse unknown keys, in their order of precedence."""
        given = init_settings.init_kwargs if isinstance(init_settings, InitSettingsSource) else {}
        return tuple(sources(settings_cls, given).values())


@dataclass(frozen=True)
class Explained:
    """One setting, its value, and where the value came from."""

    name: str
    value: Any
    source: str


def load_settings(**given: Any) -> Settings:
    """Make `Settings` of what is given and what the environment, `.env` and TOML add.

    Raises:
        SettingsError: one line with the key, the value, the limit, where the value came from, and the cure.
    """
    try:
        return Settings(**given)
    except ValidationError as error:
        raise SettingsError(_one_line(error.errors(), _values_by_source(given))) from error


def explain_settings(**given: Any) -> list[Explained]:
    """Return every setting with its value and its source: flag, environment AERIE_X, .env, a TOML file, or default.

    A setting that has no default and was not given has the value None and the source `not set`.

    Raises:
        SettingsError: as `load_settings`, but for what is not set.
    """
    values = _values_by_source(given)
    required = [name for name, field in Settings.model_fields.items() if field.is_required()]
    unset = [name for name in required if not any(name in known for known in values.values())]
    settings = load_settings(**given, **dict.fromkeys(unset, Path()))
    return [
        Explained(name, None, "not set")
        if name in unset
        else Explained(name, getattr(settings, name), _source_of(name, values))
        for name in Settings.model_fields
    ]


def _values_by_source(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: source() for name, source in sources(Settings, given).items()}


def _source_of(name: str, values: Mapping[str, Mapping[str, Any]]) -> str:
    source = next((source for source, known in values.items() if name in known), "default")
    return f"{ENVIRONMENT} {PREFIX}{name.upper()}" if source == ENVIRONMENT else source


def _one_line(errors: list[ErrorDetails], values: Mapping[str, Mapping[str, Any]]) -> str:
    unknown = [error for error in errors if error["type"] == "extra_forbidden"]
    missing = [str(error["loc"][0]) for error in errors if error["type"] == "missing"]
    if missing and not unknown:
        name = missing[0]
        cure = f"--{name.replace('_', '-')}, {PREFIX}{name.upper()}, or {name} in {DEFAULT_CONFIG}"
        return f"settings without a value: {', '.join(missing)}; give {cure}"
    return "; ".join(_describe(error, values) for error in unknown or errors)


def _describe(error: ErrorDetails, values: Mapping[str, Mapping[str, Any]]) -> str:
    name = str(error["loc"][0])
    source = _source_of(name, values)
    if error["type"] == "extra_forbidden":
        return unknown_setting(name, source, did_you_mean(name, Settings.model_fields))
    problem = " ".join(error["msg"].split())
    return f"{name} = {error['input']!r} ({source}): {problem}"
