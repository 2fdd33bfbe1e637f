"""A part of a job: rows of a tokens artifact that one node is given, and the settings that go with them."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema

from flows.deployments import absolute
from flows.errors import SettingsError
from flows.form import group_settings
from flows.settings import Computation, Settings

# They concern the machine that makes the tokens, or one alone.
_NOT_OF_NODES = ("tokenize_workers", "trace")


class Part(BaseModel):
    """What a node is to do; small, since Prefect keeps it with the run.

    Attributes:
        run_id: names the report of the part, within that of the whole run.
        tokens_digest, spec_digest: which samples, and which states of them.
        first, stop: the rows of the tokens artifact, without the last.
        is_again: an earlier try may have stored samples of these rows that nobody has checked.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", title="Part")

    # They become parts of paths, and come from the server.
    run_id: str = Field(title="Run", pattern=r"^[0-9A-Za-z-]+/parts/[0-9]+(-[0-9]+)?$")
    tokens_digest: str = Field(title="Tokens digest", pattern=r"^[0-9a-z]{1,64}$")
    spec_digest: str = Field(title="Spec digest", pattern=r"^[0-9a-z]{1,64}$")
    first: int = Field(ge=0, title="First row")
    stop: int = Field(ge=1, title="Row after the last")
    is_again: bool = Field(default=False, title="Tried before")

    @property
    def rows(self) -> range:
        """The rows of the tokens artifact."""
        return range(self.first, self.stop)


PartForm = Annotated[Part, WithJsonSchema(Part.model_json_schema()), Field(json_schema_extra={"title": "Part"})]


def read_part(value: Any) -> Part:
    """Return the part that a run was given.

    Raises:
        SettingsError: it is none.
    """
    try:
        return value if isinstance(value, Part) else Part.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise SettingsError(f"part {place}: {first['msg']}; parts are made by extract-on-nodes") from error


def settings_of_nodes(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return the settings that nodes are given, as their form takes them.

    That is all of what is computed and where to, so that no node can differ in it; and of the machine and of checks
    what is not as by default: the rest each node may have of its own, in its environment.
    """
    values: Mapping[str, Any] = dict(settings)
    sent = {
        name: absolute(name, value)
        for name, value in values.items()
        if name not in _NOT_OF_NODES and (_is_for_all(name) or value != Settings.model_fields[name].default)
    }
    return group_settings(sent)


def _is_for_all(name: str) -> bool:
    return name == "store" or name in Computation.model_fields
