"""`aerie completion`: scripts by which shells complete commands, flags, choices and paths."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from flows.argument_types import place
from flows.printing import print_json
from flows.settings import Settings

SHELLS = ("bash", "zsh", "fish")
# Flags whose values are files; of all other paths folders are meant.
_FILES = {"config", "data", "chat_template", "trace", "html"}


def completion(arguments: argparse.Namespace) -> int:
    """Print the script by which a shell completes what is typed after `aerie`."""
    import shtab  # noqa: PLC0415 - only this command needs it

    parser = arguments.make_parser()
    for command in _commands(parser):
        for action in command._actions:  # noqa: SLF001 - argparse has no public list of them
            _describe(action, arguments.shell, shtab)
    script = shtab.complete(parser, arguments.shell)
    if arguments.shell == "bash":  # of values of which shtab knows nothing, files are offered
        script = script.replace("complete -o bashdefault -F", "complete -o bashdefault -o default -F")
    if arguments.json:
        print_json({"shell": arguments.shell, "script": script})
    else:
        print(script)
    return 0


def add_completion(parser: argparse.ArgumentParser, make_parser: Callable[[], argparse.ArgumentParser]) -> None:
    """Add the arguments of `aerie completion`; `make_parser` makes that of which they are completed."""
    parser.add_argument(
        "shell", choices=SHELLS, help="which shell is to read it; put it where the shell looks (see below)"
    )
    parser.set_defaults(make_parser=make_parser)


def _commands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    tables = (action.choices for action in parser._actions if isinstance(action.choices, dict))  # noqa: SLF001 - as above
    return [command for table in tables for command in table.values()]


def _describe(action: Any, shell: str, kinds: Any) -> None:
    """Say what the values of a flag are: choices, files or folders."""
    if shell == "bash" and action.nargs == "+":  # shtab would offer files alone from there on; bash does so by itself
        return
    field = Settings.model_fields.get(action.dest)
    if action.dest in _FILES:
        action.complete = kinds.FILE
    elif action.type in (place, Path) or action.dest in {"model", "store"}:
        action.complete = kinds.DIRECTORY
    elif field is not None and action.choices is None and get_origin(field.annotation) is Literal:
        action.choices = get_args(field.annotation)
    elif field is not None and field.annotation is bool:
        action.choices = ("true", "false")
