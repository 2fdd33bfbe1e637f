"""Chat templates, rendered as transformers does (utils/chat_template_utils.py of 5.12.1), without importing it.

It takes seconds to import, with torch, in each of the processes that tokenize.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tasks.chats import Message
from tasks.rejections import RowRejectedError

Span = tuple[int, int]

# Characters that no text has (Unicode: noncharacters, for internal use), in pairs, in case that one has some of them.
_MARKS = [(chr(code), chr(code + 1)) for code in range(0xFDD0, 0xFDF0, 2)]
# As SGLang 0.5.17 finds out whether a template takes contents as lists of parts (srt/parser/jinja_template_utils.py).
_MEDIA = ("image", "audio", "video", "vision")
_MESSAGE_NAMES = ("message", "msg", "m")


class Template:
    """One chat template with all that it is given beside the messages.

    Args:
        text: of the template.
        variables: special tokens and template kwargs, by name.
        date: what `strftime_now` shows; None to reject the chat when the template asks for it.

    Attributes:
        tracks: the template says by {% generation %} tags what the assistant wrote.
        takes_parts: the template takes contents as lists of parts.

    Raises:
        jinja2.TemplateSyntaxError: it is not a template.
    """

    def __init__(self, text: str, variables: Mapping[str, Any], date: str | None = None) -> None:
        environment = _make_environment()
        environment.globals["strftime_now"] = _clock(date)
        self._marks: list[str] = ["", ""]
        environment.globals["_mark"] = self._marks.__getitem__
        tree = environment.parse(text)
        self._template = environment.from_string(text)
        self._variables = dict(variables)
        self.tracks = re.search(r"\{\%-?\s*generation\s*-?\%\}", text) is not None
        self.takes_parts = any(word in text for word in _MEDIA) or any(
            map(_loops_over_content, tree.find_all(nodes.For))
        )

    def render(
        self, messages: Sequence[Message], tools: Sequence[Any] | None = None, *, add_generation_prompt: bool = False
    ) -> str:
        """Render messages to text.

        Raises:
            RowRejectedError: `template_error` or `needs_date`.
        """
        given: dict[str, Any] = {"documents": None, "messages": messages, "tools": tools}
        given |= {"add_generation_prompt": add_generation_prompt, **self._variables}
        try:
            return self._template.render(given)
        except RowRejectedError:
            raise
        # A template is a program of the model's: on odd messages it may raise anything.
        except Exception as error:
            raise RowRejectedError(
                "template_error", f"{type(error).__name__}: {' '.join(str(error).split())}"
            ) from error

    def render_tracked(self, messages: Sequence[Message], tools: Sequence[Any] | None = None) -> tuple[str, list[Span]]:
        """Render messages to text, with the characters within {% generation %} tags.

        Raises:
            RowRejectedError: as `render`.
        """
        plain = self.render(messages, tools)
        begin, end = next((marks for marks in _MARKS if not any(mark in plain for mark in marks)), _MARKS[0])
        self._marks[:] = begin, end
        try:
            marked = self.render(messages, tools)
        finally:
            self._marks[:] = "", ""
        text, spans = _join(re.split(f"({begin}[^{begin}{end}]*{end})", marked))
        if text != plain:
            raise RowRejectedError("unstable_template", "its {% generation %} tags change what it renders")
        return text, spans


def _join(pieces: Sequence[str]) -> tuple[str, list[Span]]:
    """Put together what was split at the marks: every second piece is between two of them."""
    text, spans = "", []
    for index, piece in enumerate(pieces):
        bare = piece[1:-1] if index % 2 else piece
        if index % 2 and bare:
            spans.append((len(text), len(text) + len(bare)))
        text += bare
    return text, spans


class _Generation(Extension):
    """The tag {% generation %}: what is within stays as it is, between two marks."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        begin, end = (
            nodes.Output([nodes.Call(nodes.Name("_mark", "load"), [nodes.Const(which)], [], None, None)], lineno=line)
            for which in (0, 1)
        )
        return [begin, nodes.Scope(body), end]  # what is set within stays within, as in a block of transformers'


def _make_environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes characters for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _clock(date: str | None) -> Callable[[str], str]:
    def show(form: str) -> str:
        if date is None:
            raise RowRejectedError("needs_date")
        return datetime.fromisoformat(date).replace(tzinfo=UTC).strftime(form)

    return show


def _loops_over_content(loop: nodes.For) -> bool:
    node: nodes.Node | None = loop.iter
    while isinstance(node, nodes.Filter | nodes.Test) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    key = node.attr if isinstance(node, nodes.Getattr) else None
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        key = node.arg.value
    owner = getattr(node, "node", None)
    return key == "content" and isinstance(owner, nodes.Name) and owner.name in _MESSAGE_NAMES
