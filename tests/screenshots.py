"""Pictures for docs/images: what a real run prints on a terminal, and its report.html in a browser.

python tests/screenshots.py FOLDER: two runs of SmolLM2 on the CPU, some minutes; needs Debian's chromium, as
`make screenshots` does.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

from jobs import AERIE
from prefect_servers import browser_page
from rich.console import Console
from rich.text import Text
from terminals import Terminal

from flows.commands import DEMO_DATA
from tasks.smollm2 import ensure_smollm2, user_cache

COLUMNS = 116
MODEL, DATA, STORE = "models/SmolLM2-135M-Instruct", "chats.jsonl", "states"
EXTRACT = ("extract", "--model", MODEL, "--data", DATA, "--store", STORE, "--devices", "cpu")
# Of each picture the commands, of which the last is shown.
PICTURES: dict[str, list[tuple[str, ...]]] = {
    "cli-doctor": [("doctor", STORE)],
    "cli-preview": [("preview", "--model", MODEL, "--data", DATA, "--samples", "1")],
    "cli-extract": [EXTRACT],
    "cli-compare": [(*EXTRACT, "--mantissa-bits", "4", "--max-length", "512"), ("compare", STORE)],
}
# What rich writes beside colours: to the line above, and away with the line; the cursor hidden and shown.
_MOVES = re.compile(r"(\x1b\[\d*A|\x1b\[2K|\x1b\[\?25[lh]|\r|\n)")
_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def main() -> None:
    images = Path(sys.argv[1]).absolute()
    with tempfile.TemporaryDirectory(prefix="aerie-") as scratch:
        folder = make_folder(Path(scratch))
        for name, commands in PICTURES.items():
            for command in commands:
                print(f"aerie {' '.join(command)}", flush=True)
                raw = run_on_terminal(command, folder)
            (images / f"{name}.svg").write_text(draw(commands[-1], rename(raw, folder)))
        [page, _] = sorted(folder.glob(f"{STORE}/runs/*/report.html"))
        photograph(page, folder, images / "report-page.png")


def make_folder(scratch: Path) -> Path:
    """Return a folder with the model and the chats, and no names of this machine."""
    (scratch / "models").mkdir()
    (scratch / MODEL).symlink_to(ensure_smollm2())
    shutil.copy(DEMO_DATA, scratch / DATA)
    return scratch


def run_on_terminal(command: tuple[str, ...], folder: Path) -> str:
    """Return all that a command has written to a terminal, escapes included."""
    ours = {
        name: value for name, value in os.environ.items() if not name.startswith(("AERIE_", "PREFECT_", "NO_COLOR"))
    }
    env = ours | {"TERM": "xterm-256color", "HOME": str(folder), "XDG_CACHE_HOME": str(user_cache().parent)}
    with Terminal(COLUMNS) as terminal:
        subprocess.run([AERIE, *command], cwd=folder, env=env, stdout=terminal.fd, stderr=terminal.fd, check=True)
    return terminal.raw


def rename(raw: str, folder: Path) -> str:
    """Call the folder /data, which says nothing of this machine, and leave what follows in its column."""
    lost = " " * (len(str(folder)) - len("/data"))
    return re.sub(rf"{re.escape(str(folder))}(\S*)", rf"/data\1{lost}", raw)


def draw(command: tuple[str, ...], raw: str) -> str:
    """Return a picture of a terminal in which a command has ended, as SVG that loads no fonts."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text(f"$ aerie {' '.join(command)}", "bold"))
    for line in lines_of(raw):
        console.print(Text.from_ansi(line), no_wrap=True, overflow="crop")
    name = command[0]
    return _FONT.sub("", console.export_svg(title=f"aerie {name}", unique_id=f"aerie-{name}"))


def lines_of(raw: str) -> list[str]:
    """Return the lines that stand on the terminal in the end, with their colours."""
    lines, row = [""], 0
    for part in _MOVES.split(raw):
        if part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part.endswith("A") and part.startswith("\x1b["):
            row = max(0, row - int(part[2:-1] or 1))
        elif part == "\x1b[2K":
            lines[row] = ""
        elif not _MOVES.fullmatch(part):
            lines[row] += part
    return [line.rstrip() for line in lines][: len(lines) - (not lines[-1])]


def photograph(page: Path, folder: Path, image: Path) -> None:
    """Take a picture of a page, from its beginning to its end."""
    text = page.read_text("utf-8").replace(str(folder), "/data")
    with browser_page() as browser:
        browser.set_content(text)
        browser.wait_for_timeout(1000)  # until its images are decoded
        browser.screenshot(path=image, full_page=True)


if __name__ == "__main__":
    main()
