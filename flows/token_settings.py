"""`TokenSettings`: the settings of what is read, rendered, learnt and left out."""

import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from tasks.inputs.shapes import NAMES

UserPath = Annotated[Path, AfterValidator(Path.expanduser)]


def split_paths(value: Any) -> Any:
    """Accept one path, a comma-separated string, or a JSON list (for names that have a comma)."""
    if isinstance(value, Path):
        return [value]
    if not isinstance(value, str):
        return value
    if not value.lstrip().startswith("["):
        return [part.strip() for part in value.split(",")]
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise ValueError(f"it should be a JSON list, or paths with commas between ({error})") from error


def _split_pairs(value: Any) -> Any:
    """Accept `name=value,name=value`, a JSON object, or a mapping."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("{"):
        return _parse_object(value)
    pairs = [part.partition("=") for part in value.split(",")]
    if not all(name.strip() and sign for name, sign, _ in pairs):
        raise ValueError("it should be pairs such as name=value, with commas between")
    return {name.strip(): text.strip() for name, _, text in pairs}


def _parse_object(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise ValueError(f"it should be a JSON object ({error})") from error


def _check_columns(value: Mapping[str, str] | None) -> Mapping[str, str] | None:
    unknown = sorted(set(value or {}) - set(NAMES))
    if unknown:
        raise ValueError(f"{unknown[0]} is nothing that a row has; use {', '.join(NAMES)}")
    return value


def _check_weights(value: Mapping[str, float] | None) -> Mapping[str, float] | None:
    if value is not None and not (value and all(0 <= weight < float("inf") for weight in value.values())):
        raise ValueError("weights should be numbers of at least 0")
    return value


def _check_date(value: str | None) -> str | None:
    try:
        return value if value is None else date.fromisoformat(value).isoformat()
    except ValueError as error:
        raise ValueError(f"it should be a date such as 2026-11-30 ({error})") from error


Pairs = Annotated[dict[str, str] | None, NoDecode, BeforeValidator(_split_pairs)]


class DataSettings(BaseSettings):
    """Which files are read, and what a row of them is."""

    model_config = SettingsConfigDict(title="Data files")

    data: Annotated[tuple[UserPath, ...], NoDecode, BeforeValidator(split_paths)] = Field(
        title="Data",
        description="files of JSON Lines, JSON, Parquet or Arrow (.gz, .zst too), globs, and folders of them",
        min_length=1,
    )
    data_format: Literal["auto", "jsonl", "json", "parquet", "arrow"] = Field(
        default="auto", title="Format", description="of all data files; auto looks at each"
    )
    shape: Literal["auto", "messages", "sharegpt", "prompt_response", "text", "input_ids"] = Field(
        default="auto", title="Shape", description="what a row has; auto looks at the first row of each file"
    )
    columns: Annotated[Pairs, AfterValidator(_check_columns)] = Field(
        default=None, title="Columns", description=f"names of columns, as messages=chat; of {', '.join(NAMES)}"
    )
    role_names: Pairs = Field(
        default=None,
        title="Role names",
        description="of ShareGPT beside the usual ones, as customer=user,agent=assistant",
    )


class ChatSettings(BaseSettings):
    """How a chat becomes text, and what of it is learnt."""

    model_config = SettingsConfigDict(title="Chats")

    chat_template: UserPath | None = Field(
        default=None, title="Chat template", description="file of a Jinja template in place of the model's own"
    )
    template_kwargs: Annotated[dict[str, Any] | None, NoDecode, BeforeValidator(_parse_object)] = Field(
        default=None, title="Template kwargs", description='JSON object for the template, as {"enable_thinking": false}'
    )
    template_date: Annotated[str | None, AfterValidator(_check_date)] = Field(
        default=None,
        title="Template date",
        description="what a template is told that asks for today, as 2026-11-30",
        json_schema_extra={"pattern": r"^\d{4}-\d{2}-\d{2}$"},
    )
    turns: Literal["all", "last"] = Field(default="all", title="Turns", description="which turns of a chat are learnt")
    role_weights: Annotated[
        dict[str, float] | None, NoDecode, BeforeValidator(_split_pairs), AfterValidator(_check_weights)
    ] = Field(
        default=None,
        title="Role weights",
        description="weights in the loss, as assistant=1,tool=0.1; unset is assistant=1",
    )
    end_of_turn: bool = Field(
        default=True, title="End of turn", description="whether the token that ends a turn is learnt with it"
    )


class SampleSettings(BaseSettings):
    """Which rows are taken, and what happens to those that are too long, too short or there twice."""

    model_config = SettingsConfigDict(title="Samples")

    max_length: int | None = Field(
        default=None, ge=1, title="Longest sample", description="in tokens; unset is the model's context length"
    )
    too_long: Literal["reject", "truncate", "truncate_turns"] = Field(
        default="reject",
        title="Too long",
        description="what happens to a longer sample; truncate_turns cuts behind the last turn that fits",
    )
    min_supervised_tokens: int = Field(
        default=1, ge=1, title="Least to learn", description="tokens; a sample with fewer is rejected"
    )
    duplicates: Literal["keep", "reject"] = Field(
        default="keep",
        title="Duplicates",
        description="rows with the token ids of an earlier row; their states are shared",
    )
    max_total_tokens: int | None = Field(
        default=None, ge=1, title="Most tokens", description="of all distinct samples; later rows are left out"
    )
    sample_fraction: float = Field(
        default=1.0,
        gt=0.0,
        le=1.0,
        allow_inf_nan=False,
        title="Sampled share",
        description="share of the rows to take, by their content, above 0 to 1",
    )
    sample_seed: int = Field(default=0, title="Seed", description="another one takes other rows")
    cut_off: Literal["refuse", "keep"] = Field(
        default="refuse",
        title="Cut off",
        description="a file that ends within a row: refuse it, or keep the rows before",
    )
    reject_content: bool = Field(
        default=False, title="Content of rejected rows", description="is written into rejects.jsonl too"
    )


class TokenSettings(SampleSettings, ChatSettings, DataSettings):
    """What becomes of the data: every one of these changes the token ids, the masks or which rows are taken."""
