"""Which characters an assistant wrote, derived from what the chat template renders of a chat turn by turn."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol

from tasks.chats import Message
from tasks.inputs.openai_messages import WRITTEN
from tasks.rejections import RowRejectedError
from tasks.supervision import ASSISTANT, AddedTokens, Rendered, Span, Supervision

# Contents in place of a turn's own, to see where the template puts it; they begin and end differently.
_PROBES = ("alpha", "omega zero")


class Render(Protocol):
    """The chat template: messages to text."""

    def __call__(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """Render `messages`; with `add_generation_prompt`, up to where the assistant begins to write.

        Raises:
            RowRejectedError: the template refuses them.
        """
        ...


class RenderTracked(Protocol):
    """The chat template with {% generation %} tags: messages to text and the characters within the tags."""

    def __call__(self, messages: Sequence[Message]) -> tuple[str, list[tuple[int, int]]]:
        """Render `messages`."""
        ...


class Derivation:
    """The samples of one chat: texts in which each turn to be learnt stands as it did when it was written.

    Mostly that is one text, the whole chat. A template that rewrites earlier turns as later ones come (that drops their
    thinking, or ends only the last one with another token) needs more: each holds the chat up to some turn.

    Args:
        messages: the chat.
        render: the template.
        supervision: what is learnt.
        tokens: by which the end of a turn is known.
        render_tracked: the template, if it has {% generation %} tags.
    """

    def __init__(
        self,
        messages: Sequence[Message],
        render: Render,
        supervision: Supervision,
        tokens: AddedTokens,
        render_tracked: RenderTracked | None = None,
    ) -> None:
        self._messages = messages
        self._render = render
        self._supervision = supervision
        self._tokens = tokens
        self._render_tracked = render_tracked
        self._texts: dict[int, str] = {}

    def samples(self) -> Iterator[Rendered]:
        """Derive the samples, the longest first.

        Raises:
            RowRejectedError: `unstable_template`, there is a turn that no text shows as it was prompted for;
                `template_error` or `needs_date`.
        """
        length, rest, is_learnt = len(self._messages), self._turns(), False
        while rest:
            found = self._spans_within(length, rest)
            if not found and length == rest[-1] + 1:
                raise RowRejectedError("unstable_template", f"message {rest[-1]} is rendered in two ways")
            if spans := [span for turn in sorted(found) for span in found[turn]]:
                is_learnt = True
                yield Rendered(self._text(length), spans)
            rest = [turn for turn in rest if turn not in found]
            length = rest[-1] + 1 if rest else 0
        if not is_learnt:
            yield Rendered(self._text(len(self._messages)), ())

    def _turns(self) -> list[int]:
        """Return the messages that are learnt."""
        weights = self._supervision.role_weights
        found = [i for i, m in enumerate(self._messages) if weights.get(m["role"]) and not is_empty(m)]
        return found[-1:] if self._supervision.turns == "last" else found

    def _spans_within(self, length: int, turns: Sequence[int]) -> dict[int, list[Span]]:
        """Find those of the turns that the first `length` messages show as they were written."""
        text = self._text(length)
        stable = [i for i in turns if i < length and self._is_stable(i, text)]
        if self._render_tracked is not None:
            return self._tagged_spans(length, stable)
        starts = {i: self._start_of(i) for i in stable}
        return {
            i: self._spans(i, [(start, len(self._text(i + 1)))]) for i, start in starts.items() if start is not None
        }

    def _is_stable(self, i: int, text: str) -> bool:
        """Say whether a text shows turn `i`, and all before it, as when that turn was the last."""
        turn = self._text_or_none(i + 1)
        return turn is not None and text.startswith(turn)

    def _spans(self, i: int, parts: Sequence[tuple[int, int]]) -> list[Span]:
        """Return what is learnt of turn `i`, given where it was written; nothing of parts that are but their end."""
        turn, weight = self._text(i + 1), self._supervision.role_weights[self._messages[i]["role"]]
        ends = [(start, *self._ends_of(turn[:end], start)) for start, end in parts]
        return [
            Span(start, whole if self._supervision.end_of_turn else body, weight)
            for start, body, whole in ends
            if turn[start:body].strip()
        ]

    def _start_of(self, i: int) -> int | None:
        """Find where turn `i` begins: after the prompt for it, or as much of that as the turn has."""
        turn = self._text(i + 1)
        is_assistant = self._messages[i]["role"] == ASSISTANT
        prompt = self._prompt(i) if is_assistant else None
        if prompt is not None and turn.startswith(prompt):
            return len(prompt)
        header = self._header(i)
        if header is None or not turn.startswith(header):
            return None
        # A prompt may begin the thinking that the turn then has not; one without the messages before it lacks a default
        # system prompt. Any other difference is not understood.
        is_prompted = prompt is not None and prompt.startswith(header)
        ends_as_prompts_do = self._generation_prompt is not None and header.endswith(self._generation_prompt)
        return len(header) if not is_assistant or is_prompted or ends_as_prompts_do else None

    def _header(self, i: int) -> str | None:
        """Return what the template writes before the content of a message: what two contents have in common."""
        kept = {key: value for key, value in self._messages[i].items() if key not in WRITTEN}
        in_parts = isinstance(kept["content"], list)
        contents = [[{"type": "text", "text": probe}] if in_parts else probe for probe in _PROBES]
        try:
            first, second = (
                self._render([*self._messages[:i], {**kept, "content": content}], add_generation_prompt=False)
                for content in contents
            )
        except RowRejectedError:
            return None
        length = common_prefix(first, second)
        return first[:length] if first.startswith(_PROBES[0], length) else None

    def _ends_of(self, turn: str, start: int) -> tuple[int, int]:
        """Find where the body of a turn ends, and where the turn ends: with its end-of-turn token.

        White space that the template puts behind that token belongs to neither.
        """
        stripped = turn.rstrip()
        if len(stripped) <= start or not stripped.endswith(self._tokens.added):
            return len(turn), len(turn)
        ending = max((token for token in self._tokens.special if stripped.endswith(token)), key=len, default="")
        return max(start, len(stripped) - len(ending)), len(stripped)

    def _tagged_spans(self, length: int, stable: Sequence[int]) -> dict[int, list[Span]]:
        """Find what the template's own tags mark of the turns."""
        assert self._render_tracked is not None  # noqa: S101 - asked before
        _, tagged = self._render_tracked(self._messages[:length])
        found: dict[int, list[Span]] = {}
        for i in stable:
            turn = self._text(i + 1)
            before = self._text_or_none(i) or self._prompt(i)
            if before is None:
                continue
            begin = common_prefix(before, turn)
            found[i] = self._spans(i, [(a, b) for a, b in tagged if begin <= a and b <= len(turn)])
        return found

    def _text(self, length: int) -> str:
        """Render the first `length` messages."""
        if length not in self._texts:
            self._texts[length] = self._render(self._messages[:length], add_generation_prompt=False)
        return self._texts[length]

    def _text_or_none(self, length: int) -> str | None:
        """Render the first `length` messages; None where the template refuses them without those that follow."""
        try:
            return self._text(length)
        except RowRejectedError as error:
            if error.reason == "needs_date":
                raise
            return None

    def _prompt(self, i: int) -> str | None:
        """Render the prompt for message `i`; None where the template refuses."""
        try:
            return self._render(self._messages[:i], add_generation_prompt=True)
        except RowRejectedError as error:
            if error.reason == "needs_date":
                raise
            return None

    @cached_property
    def _generation_prompt(self) -> str | None:
        """What the template adds to prompt for a turn; None if that is not to be seen."""
        asked = [{"role": "user", "content": _PROBES[0]}]
        try:
            text, prompt = (self._render(asked, add_generation_prompt=prompts) for prompts in (False, True))
        except RowRejectedError:
            return None
        return prompt[len(text) :] if prompt.startswith(text) else None


def common_prefix(first: str, second: str) -> int:
    """Return how many characters two texts have in common at their beginning."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if second.startswith(first[:middle]) else (low, middle - 1)
    return low


def is_empty(message: Message) -> bool:
    """Say whether nothing was written in a turn: neither text nor thinking nor a tool call."""
    written: list[Any] = [message.get(name) for name in ("content", *WRITTEN)]
    return not any(_has_text(value) for value in written)


def _has_text(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value.strip())
    if isinstance(value, list):
        return any(_has_text(part.get("text")) if "text" in part else True for part in value)
    return bool(value)
