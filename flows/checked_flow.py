"""Flows that refuse bad parameters in one line, where Prefect writes several."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from prefect.exceptions import ParameterTypeError
from prefect.flows import Flow
from pydantic import ValidationError

from flows.errors import SettingsError

P = ParamSpec("P")
R = TypeVar("R")


class CheckedFlow(Flow[P, R]):
    """A flow whose parameters are as Prefect checks them, and its errors as ours."""

    def validate_parameters(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters as the types of the function.

        Raises:
            SettingsError: with the parameter, the value, the limit and the cure.
        """
        try:
            return super().validate_parameters(parameters)
        except ParameterTypeError as error:
            raise SettingsError(_one_line(error, parameters)) from error


def checked_flow(**options: Any) -> Callable[[Callable[P, R]], CheckedFlow[P, R]]:
    """Make a flow of a function, as Prefect's decorator does, with its options."""
    return lambda function: CheckedFlow(function, **options)


def _one_line(error: ParameterTypeError, parameters: dict[str, Any]) -> str:
    if not isinstance(error.__context__, ValidationError):
        return " ".join(str(error).split())
    first = error.__context__.errors()[0]
    name = str(first["loc"][0])
    return f"{name} is {parameters.get(name)!r}: {first['msg']}; correct it"
