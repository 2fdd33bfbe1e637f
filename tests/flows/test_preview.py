"""`aerie preview` shows what is learnt, in colour, between brackets, or as a page."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from chat_fixtures import FIXTURES
from jobs import chat, run_aerie, write_lines

from flows.preview import render_page, render_text
from tasks.previews import Piece, Preview

PIECES = (
    Piece("<|im_start|>", 0.0, is_special=True),
    Piece("user\nHi \x1b[31m<b>", 0.0, is_special=False),
    Piece("Hello", 1.0, is_special=False),
    Piece("<|im_end|>", 1.0, is_special=True),
    Piece("\n", 0.0, is_special=False),
)
SHOWN = Preview("a.jsonl", 3, 1, 2, 9, 2, PIECES)
REJECTED = Preview("a.jsonl", 4, 1, 1, 0, 0, (), rejected="no_messages: <nothing>")


def test_without_colour_what_is_learnt_stands_between_brackets() -> None:
    text = render_text(SHOWN, in_colour=False).plain
    assert text == "<|im_start|>user↵\nHi ␛[31m<b>⟦Hello<|im_end|>⟧↵\n"


def test_in_colour_learnt_and_special_tokens_have_styles_of_their_own() -> None:
    text = render_text(SHOWN, in_colour=True)
    assert len({span.style for span in text.spans}) == 4
    assert "⟦" not in text.plain


def test_a_page_stands_alone_and_shows_texts_as_they_are() -> None:
    page = render_page([SHOWN, REJECTED])
    assert "a.jsonl:3, sample 1 of 2: 2 of 9 tokens learnt" in page
    assert '<span class="l">Hello</span><span class="l s">&lt;|im_end|&gt;</span>' in page
    assert "&lt;b&gt;" in page
    assert "no_messages: &lt;nothing&gt;" in page
    assert "http" not in page
    assert "\x1b" not in page


@pytest.fixture
def flags(tmp_path: Path, tiny_model: Callable[[str], Path]) -> list[object]:
    rows = [json.dumps(chat("Hi", "Hello, you.")), "{oops", json.dumps(FIXTURES["multi turn"])]
    data = write_lines(tmp_path / "chats.jsonl", rows)
    return ["preview", "--model", tiny_model("llama"), "--data", data]


def test_a_few_rows_are_shown_without_a_store(flags: list[object], tmp_path: Path) -> None:
    done = run_aerie(*flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "⟦Hello, you.<|im_end|>⟧" in done.stdout
    assert "chats.jsonl:2: rejected\ninvalid_json" in done.stdout
    assert done.stdout.count("⟦") == 4
    [file] = tmp_path.iterdir()
    assert file.name == "chats.jsonl", "nothing is written"


def test_rows_may_be_skipped_and_counted(flags: list[object], tmp_path: Path) -> None:
    [shown] = json.loads(run_aerie(*flags, "--skip", 2, "--samples", 1, "--json", cwd=tmp_path).stdout)
    assert (shown["line"], shown["num_supervised"]) == (3, 6)
    assert [piece["text"] for piece in shown["pieces"] if piece["weight"] and not piece["is_special"]] == [
        "1",
        "2",
        "3",
    ]


def test_a_page_is_written_where_it_is_asked_for(flags: list[object], tmp_path: Path) -> None:
    done = run_aerie(*flags, "--html", "page.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert '<span class="l">Hello, you.</span>' in (tmp_path / "page.html").read_text("utf-8")
