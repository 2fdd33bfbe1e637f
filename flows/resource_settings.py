"""`Resources` and `Checks`: the settings of where, with what and how carefully a run is made."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from flows.store_field import StoreField
from flows.token_settings import UserPath
from tasks.engine.devices import DEVICES_PATTERN


class Resources(BaseSettings):
    """Where and with what; none of these enters a digest."""

    model_config = SettingsConfigDict(title="Store and machine")

    store: StoreField = Field(
        title="Store",
        description="folder of the store, or s3://BUCKET/PREFIX; made when missing",
        json_schema_extra={"format": "store"},
    )
    secret_block: str | None = Field(
        default=None,
        title="Secret block",
        description="of Prefect, with the AWS_* variables of a store in a bucket; unset: they are in the environment",
        json_schema_extra={"pattern": "^[a-z0-9-]+$"},
    )
    devices: str = Field(
        default="auto",
        title="Devices",
        description="auto, all, cpu, or GPU numbers such as 0,1 or 0-3; 0-7:tp2 makes groups of two",
        json_schema_extra={"pattern": DEVICES_PATTERN},
    )
    device_wait_seconds: float = Field(
        default=86_400.0,
        ge=0.0,
        allow_inf_nan=False,
        title="Wait for devices",
        description="seconds to wait for GPUs that other runs on this host have; 0 refuses at once",
    )
    tokenize_workers: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        title="Tokenizer processes",
        description="unset is one a core, at most 16; for a few megabytes none beside the run itself",
    )
    max_batch_tokens: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        default="auto",
        title="Batch",
        description="tokens in one forward; auto: on a GPU the first run of a model tries sizes, on a CPU 2,048",
    )
    unit_tokens: int = Field(
        default=1_000_000, ge=1, title="Unit of work", description="tokens an engine is given at a time, about"
    )
    encode_threads: int | None = Field(
        default=None, ge=1, le=1024, title="Encoder threads", description="of each engine; unset is chosen by its CPUs"
    )
    max_in_flight_bytes: int = Field(
        default=2 << 30,
        ge=1 << 20,
        title="Bytes in flight",
        description="of hidden states that wait to be written, in each engine, at most; on a GPU pinned memory",
    )
    max_growth_bytes: int | None = Field(
        default=None,
        ge=1 << 20,
        title="Memory growth",
        description="of an engine, in bytes, at which a fresh one takes its place; unset is 1/16 of all there is",
    )
    trace: UserPath | None = Field(
        default=None, title="Trace", description="file for a timeline of the engines, to be opened in Perfetto"
    )


class Checks(BaseSettings):
    """How carefully, and what happens at the end; none of these enters a digest."""

    model_config = SettingsConfigDict(title="Checks")

    validate_fraction: float = Field(
        default=1.0,
        ge=0.0,
        le=1.0,
        allow_inf_nan=False,
        title="Validated share",
        description="share of this run's samples that are read back and checked, 0 to 1",
    )
    recheck_fraction: float = Field(
        default=0.01,
        ge=0.0,
        le=1.0,
        allow_inf_nan=False,
        title="Rechecked share",
        description="share of samples that are computed again alone and compared, 0 to 1",
    )
    max_quarantined: float = Field(
        default=0.05,
        ge=0.0,
        allow_inf_nan=False,
        title="Most set aside",
        description="samples set aside before the run stops: a share below 1, else a count",
    )
    compact: bool = Field(default=True, title="Compact", description="copy loose objects into packs at the end")
