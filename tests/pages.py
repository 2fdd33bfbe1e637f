"""Pages of Markdown as tests see them: blocks, commands, tables, links; and what commands print, compared with them."""

import os
import re
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Blocks of these languages become files of the folder where the others run.
FILES = {"json": "chats.jsonl", "toml": "aerie.toml"}


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        language: what stands behind the fence.
        text: its lines.
        why_not: why it is not run, in a comment that the reader does not see; None where it is run.
        line: of the page, counted from 0, where the text begins.
    """

    language: str
    text: str
    why_not: str | None
    line: int


@dataclass(frozen=True)
class Command:
    """A line after `$ ` in a console block, and the output that the page shows."""

    line: str
    expected: str

    @property
    def returncode(self) -> int:
        """What it ends with: 1 where the page shows a refusal."""
        return 1 if self.expected.startswith("aerie: ") else 0


class Page:
    """One page.

    Args:
        path: where it lies, from the root of the repository.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.text = (ROOT / path).read_text("utf-8")
        self.blocks = self._find_blocks()
        self.run = [block for block in self.blocks if block.why_not is None]
        self.commands = find_commands(self.run)

    def _find_blocks(self) -> list[Block]:
        pattern = re.compile(r"^(?:<!-- not run: ([^\n]+) -->\n)?```([\w-]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
        return [
            Block(match[2], match[3], match[1], self.text.count("\n", 0, match.start(3)))
            for match in pattern.finditer(self.text)
        ]

    @property
    def num_fences(self) -> int:
        """Lines that open or close a block, whatever `blocks` has found."""
        return len(re.findall(r"^ *```", self.text, re.MULTILINE))

    def python_program(self) -> str:
        """Join the Python blocks, each at its line of the page, so that a traceback names that."""
        program = ""
        for block in self.run:
            if block.language == "python":
                program += "\n" * (block.line - program.count("\n")) + block.text
        return program

    def write_files(self, folder: Path) -> None:
        """Write the blocks that are files."""
        for block in self.run:
            if block.language in FILES:
                (folder / FILES[block.language]).write_text(block.text)

    def table(self, first_column: str) -> list[list[str]]:
        """Return the cells of the table whose first column has this head."""
        [rows] = re.findall(rf"^\| {first_column} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", self.text, re.MULTILINE)
        return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows.splitlines()]

    def links(self) -> list[str]:
        """Return where its links and pictures lead, those to other sites left out."""
        return [link for link in re.findall(r"\]\(([^)\s]+)\)", self.text) if "://" not in link]

    def dead_links(self) -> list[str]:
        """Return those that lead to no file, or to no heading of it."""
        return [link for link in self.links() if not self._leads_somewhere(link)]

    def _leads_somewhere(self, link: str) -> bool:
        name, _, heading = link.partition("#")
        target = (ROOT / self.path).parent / name if name else ROOT / self.path
        return target.exists() and (not heading or heading in headings_of(target))


def find_commands(blocks: list[Block]) -> list[Command]:
    """Return the commands of console blocks, each with its output."""
    pattern = re.compile(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
    consoles = (block.text for block in blocks if block.language == "console")
    return [Command(match[1], match[2]) for text in consoles for match in pattern.finditer(text)]


def headings_of(path: Path) -> set[str]:
    """Return the headings of a page as GitHub names them in links."""
    headings = re.findall(r"^#+ (.+)$", path.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def bare(cell: str) -> str:
    """Return the cell of a table without its backticks."""
    return cell.replace("`", "")


def run(command: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a line of a page as a shell does, with our commands on its path; both outputs come as one."""
    path = f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=os.environ | {"PATH": path} | more,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def run_python(page: Page, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the Python blocks of a page as one program."""
    (folder / "page.py").write_text(page.python_program())
    return run(f"{sys.executable} page.py", folder, **more)


def assert_prints(printed: str, expected: str) -> None:
    """Compare but for numbers, units, digests and paths; `...` stands for anything, alone on a line for any lines."""
    lines = ["(?:.*\n)*" if line == "..." else _pattern_of(line) for line in _shape(expected).splitlines()]
    assert re.fullmatch("".join(lines), _shape(printed)), printed


def _pattern_of(line: str) -> str:
    return ".*".join(map(re.escape, line.split("..."))) + "\n"


def _shape(text: str) -> str:
    text = re.sub(r"\b\d{8}T\d{6}Z-[0-9a-f]{6}\b", "RUN", text)
    text = re.sub(r"\b[0-9a-f]{64}\b", "DIGEST", text)
    text = re.sub(r"(?<!\S)/\S+", "PATH", text)
    text = re.sub(r"\b(kB|MB|GB)\b", "B", text)
    text = re.sub(r"\d[\d,.]*", "0", text)
    return "".join(" ".join(line.split()) + "\n" for line in text.splitlines())
