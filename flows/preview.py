"""`aerie preview`: a few rows with what is learnt of them, in colour on a terminal, or as a page of HTML."""

import argparse
import html
import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path

from rich.text import Text

from flows.printing import print_line, stdout_console
from flows.settings import load_settings
from flows.settings_flags import given_settings
from flows.token_choices import make_options
from tasks.engine.models import read_model
from tasks.hub import find_model
from tasks.inputs.data_files import find_files
from tasks.previews import Piece, Preview, preview_rows

# Where there is no colour, what is learnt stands between these.
OPEN, CLOSE = "⟦", "⟧"
_STYLES = {
    (False, False): "dim",
    (False, True): "dim reverse",
    (True, False): "bold green",
    (True, True): "bold green reverse",
}
_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>aerie preview</title><style>
body {{ font-family: sans-serif; max-width: 60em; margin: 2em auto; background: #fff; color: #222 }}
pre {{ white-space: pre-wrap; background: #f6f6f6; padding: 1em; color: #777 }}
.l {{ background: #c8f0c8; color: #063 }} .s {{ border: 1px solid; border-radius: 3px; font-size: 85% }}
.r {{ color: #a00 }}
</style></head><body>
<h1>aerie preview</h1>
<p><span class="l">learnt</span>, not learnt, <span class="s">special token</span></p>
{samples}
</body></html>
"""


def preview(arguments: argparse.Namespace) -> int:
    """Show a few rows with what is learnt of them, and what is rejected; loads no weights and writes nothing."""
    # No store is looked at; one that is set elsewhere is none of a preview's business.
    settings = load_settings(**{"store": Path(), **given_settings(arguments)})
    model = read_model(find_model(settings.model))
    options = make_options(settings, model.context_length)
    rows = preview_rows(model.path, find_files(settings.data), options, skip=arguments.skip)
    shown = list(islice(rows, arguments.samples))
    if arguments.html:
        arguments.html.write_text(render_page(shown), "utf-8")
        print_line(f"written: {arguments.html}")
    elif arguments.json:
        print(json.dumps([asdict(sample) for sample in shown]))
    else:
        _print(shown)
    return 0


def render_page(samples: Sequence[Preview]) -> str:
    """Return the samples as a page of HTML that stands alone."""
    return _PAGE.format(samples="\n".join(map(_render_sample, samples)))


def render_text(sample: Preview, *, in_colour: bool) -> Text:
    """Return a sample as text: styled, or with brackets around what is learnt."""
    if sample.rejected:
        return Text(sample.rejected, "red")
    text = Text()
    for number, piece in enumerate(sample.pieces):
        opens = bool(piece.weight) and not (number and sample.pieces[number - 1].weight)
        closes = bool(piece.weight) and not (number + 1 < len(sample.pieces) and sample.pieces[number + 1].weight)
        shown = _visible(piece.text)
        if not in_colour:
            shown = f"{OPEN * opens}{shown}{CLOSE * closes}"
        text.append(shown, _STYLES[bool(piece.weight), piece.is_special])
    return text


def _print(samples: Sequence[Preview]) -> None:
    console = stdout_console()
    for sample in samples:
        console.print(Text(_title(sample), "bold"))
        console.print(render_text(sample, in_colour=console.color_system is not None), soft_wrap=True)
        console.print()


def _title(sample: Preview) -> str:
    part = f", sample {sample.part} of {sample.num_parts}" if sample.num_parts > 1 else ""
    counts = "rejected" if sample.rejected else f"{sample.num_supervised:,} of {sample.num_tokens:,} tokens learnt"
    return f"{sample.file}:{sample.line}{part}: {counts}"


def _render_sample(sample: Preview) -> str:
    title = f"<h3>{html.escape(_title(sample))}</h3>"
    if sample.rejected:
        return f'{title}\n<p class="r">{html.escape(sample.rejected)}</p>'
    return f"{title}\n<pre>{''.join(map(_render_piece, sample.pieces))}</pre>"


def _render_piece(piece: Piece) -> str:
    kinds = f"{'l' * bool(piece.weight)} {'s' * piece.is_special}".split()
    weight = f' title="weight {piece.weight:g}"' if piece.weight not in (0, 1) else ""
    text = html.escape(_visible(piece.text))
    return f'<span class="{" ".join(kinds)}"{weight}>{text}</span>' if kinds else text


def _visible(text: str) -> str:
    """Show control characters as pictures of them: they would have their way with a terminal."""
    return "".join(_picture(character) for character in text)


def _picture(character: str) -> str:
    code = ord(character)
    if character == "\n":
        return "↵\n"
    if code < ord(" "):
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else "\ufffd" if 0x80 <= code < 0xA0 else character  # noqa: PLR2004 - ASCII's and Latin-1's controls
