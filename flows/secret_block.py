"""Credentials from a Prefect Secret block, for the time of a run and its engine processes."""

import argparse
import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

from flows.errors import SettingsError

_PREFIX = "AWS_"

C = TypeVar("C", bound=Callable[[argparse.Namespace], int])


@contextlib.contextmanager
def secret_environment(block: str | None) -> Iterator[None]:
    """Have the variables of a block in the environment within, before those that are there; None is no block.

    Raises:
        SettingsError: there is no such block, or its value is no JSON object of AWS_* variables.
    """
    if block is None:
        yield
        return
    variables = _load(block)
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def with_secrets(command: C) -> C:
    """Have the credentials of the block that a command was given in its environment."""

    @functools.wraps(command)
    def with_secrets(arguments: argparse.Namespace) -> int:
        with secret_environment(arguments.secret_block):
            return command(arguments)

    return cast("C", with_secrets)


def _load(block: str) -> dict[str, str]:
    from prefect.blocks.system import Secret  # noqa: PLC0415 - imports prefect, which takes a second

    try:
        loaded: Any = Secret.load(block)
    except ValueError as error:
        raise SettingsError(f"Prefect has no Secret block {block!r}; make it under Blocks, or correct it") from error
    value = loaded.get()
    is_sound = isinstance(value, Mapping) and all(
        name.startswith(_PREFIX) and isinstance(text, str) for name, text in value.items()
    )
    if not is_sound:  # what it is instead must not be said
        raise SettingsError(
            f'Secret block {block!r} is not a JSON object of AWS_* variables, as {{"AWS_SECRET_ACCESS_KEY": "..."}}'
        )
    return dict(value)
