"""The tables of docs/fidelity.md, made of the figures of all machines; the text around them is written by hand."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from models import NAMES
from record import RESULTS, ROOT, read_results
from variants import VARIANTS
from verdicts import judge

PAGE = ROOT / "docs" / "fidelity.md"
_BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
_REPEATS = {
    "again": "again",
    "process": "in another process",
    "alone": "alone",
    "reordered": "in another order",
    "like": "as in the variant it is compared with",
}

Row = dict[str, Any]


def write_page(page: Path = PAGE, results: Path = RESULTS) -> None:
    """Write the tables of the page anew."""
    page.write_text(render(page.read_text(), results))


def check_page(page: Path = PAGE, results: Path = RESULTS) -> bool:
    """Say whether the tables of the page are those of the figures."""
    text = page.read_text()
    return text == render(text, results)


def render(text: str, results: Path) -> str:
    """Return a page with its tables made anew.

    Raises:
        KeyError: the page asks for a table that there is not.
    """
    rows = _read_rows(results)
    return _BLOCK.sub(lambda block: f"{block[1]}\n{_TABLES[block[2]](rows)}\n{block[3]}", text)


def _read_rows(results: Path) -> list[Row]:
    """Return the rows of all machines in the order of the page; of two machines' rows for one figure, the newer one."""
    rows = [
        row | {"machine": document["machine"], "of": document["versions"]}
        for document in read_results("fidelity", results)
        for row in document["figures"]["rows"]
    ]
    newest = {(row["model"], row["variant"]): row for row in sorted(rows, key=lambda row: str(row["date"]))}
    return [newest[model, variant] for model in NAMES for variant in VARIANTS if (model, variant) in newest]


def _overview(rows: Sequence[Row]) -> str:
    cells = {(row["model"], row["variant"]): _verdict(row) for row in rows}
    variants = [name for name in VARIANTS if any(variant == name for _, variant in cells)]
    models = [name for name in NAMES if any(model == name for model, _ in cells)]
    lacking = [f"`{name}`" for name in VARIANTS if name not in variants]
    table = _table(
        ["model", *variants],
        ([f"`{model}`", *(cells.get((model, name), "") for name in variants)] for model in models),
    )
    return table + (f"\n**Not measured yet**: {', '.join(lacking)}.\n" if lacking else "")


def _verdict(row: Row) -> str:
    if "failure" in row:
        return "failed"
    verdict = judge(row)
    if VARIANTS[row["variant"]].is_exact and all(row["equal"]):
        return "identical"
    worst, median = (f"{verdict[key]:{'.2f' if verdict['rule'] == 'ratio' else '.1e'}}" for key in ("worst", "median"))
    if verdict["holds"]:
        return worst
    return f"{worst} (median {median})" if verdict["by_median"] else f"**{worst}**"


def _variants(rows: Sequence[Row]) -> str:
    return "\n".join(_variant(name, mine) for name in VARIANTS if (mine := _of(rows, name)))


def _variant(name: str, rows: Sequence[Row]) -> str:
    measured = [row for row in rows if "failure" not in row]
    failed = [f"- `{row['model']}` failed: {row['failure']}" for row in rows if "failure" in row]
    sources = sorted({f"{row['date']}, commit {str(row['commit'])[:10]}, {_machine(row)}" for row in rows})
    head, figures = (_EXACT, _exact_figures) if VARIANTS[name].is_exact else (_ROUNDED, _rounded_figures)
    table = _table(head, map(figures, measured))
    return "\n".join([f"#### {name}", "", *(f"Measured {source}." for source in sources), "", table, *failed, ""])


_EXACT = ("model", "tokens", "same bits", "relative error", "median token", "1 - cosine", "transformers in bf16")
_ROUNDED = (
    "model", "tokens", "ours", "transformers", "ratio", "of 100 draws 90", "median token", "apart", "1 - cosine",
)  # fmt: skip


def _exact_figures(row: Row) -> list[str]:
    ours = row["ours"]
    return [
        *_head(row),
        "all layers" if all(row["equal"]) else f"{sum(row['equal'])} of {len(row['equal'])} layers",
        *(_short(max(ours[key])) for key in ("relative_error", "median_token_error", "cosine_distance")),
        f"{max(row['theirs']['relative_error']):.1e}",
    ]


def _rounded_figures(row: Row) -> list[str]:
    ours, theirs = row["ours"], row["theirs"]
    slot = max(range(len(row["ratio"])), key=row["ratio"].__getitem__)
    return [
        *_head(row),
        f"{max(ours['relative_error']):.1e}",
        f"{max(theirs['relative_error']):.1e}",
        _short(row["ratio"][slot]),
        f"{_short(row['ratio_low'][slot])} to {_short(row['ratio_high'][slot])}",
        _short(max(row["median_ratio"])),
        f"{max(ours['apart']):.2%} / {max(theirs['apart']):.2%}",
        f"{max(ours['cosine_distance']):.1e}",
    ]


def _head(row: Row) -> list[str]:
    return [f"`{row['model']}`", f"{row['num_tokens']:,}"]


def _layers(rows: Sequence[Row]) -> str:
    by_model = {name: [row for row in rows if row["model"] == name and "failure" not in row] for name in NAMES}
    return "\n".join(_model_layers(name, mine) for name, mine in by_model.items() if mine)


def _model_layers(name: str, rows: Sequence[Row]) -> str:
    table = _table(
        ["layer", *(row["variant"] for row in rows)],
        ([str(layer), *(_layer(row, slot) for row in rows)] for slot, layer in enumerate(rows[0]["layers"])),
    )
    return f"<details><summary>{name}</summary>\n\n{table}\n</details>\n"


def _layer(row: Row, slot: int) -> str:
    ours, theirs = ([row[side][key][slot] for key in ("relative_error", "cosine_distance")] for side in _SIDES)
    return f"{_error(*ours)} : {_error(*theirs)}"


def _error(relative: float, cosine: float) -> str:
    return f"{relative:.1e} ({cosine:.0e})" if relative else "0"


_SIDES = ("ours", "theirs")


def _bits(rows: Sequence[Row]) -> str:
    measured = [row for row in rows if "failure" not in row]
    return _table(
        ["variant", *_REPEATS.values()],
        ([name, *(_same(mine, key) for key in _REPEATS)] for name in VARIANTS if (mine := _of(measured, name))),
    )


def _same(rows: Sequence[Row], key: str) -> str:
    """Say how many models have the same bits, and which other differs most."""
    repeats = {row["model"]: row["repeats"][key] for row in rows if key in row["repeats"]}
    differ = {model: repeat["relative_error"] for model, repeat in repeats.items() if not repeat.get("equal", True)}
    failed = [model for model, repeat in repeats.items() if "failure" in repeat]
    if not repeats:
        return ""
    told = f"{len(repeats) - len(differ) - len(failed)} of {len(repeats)}"
    if differ:
        worst = max(differ, key=differ.__getitem__)
        told += f"; up to {differ[worst]:.0e} (`{worst}`)"
    return told + (f"; failed: {', '.join(failed)}" if failed else "")


def _of(rows: Iterable[Row], variant: str) -> list[Row]:
    return [row for row in rows if row["variant"] == variant]


def _machine(row: Row) -> str:
    machine = row["machine"]
    gpus = f"{len(machine['gpus'])} x {machine['gpus'][0]}" if machine["gpus"] else "no GPU"
    return f"{gpus}, {machine['cpu']}, torch {row['of']['torch']}"


def _short(figure: float) -> str:
    if figure == 0:
        return "0"
    return f"{figure:.2f}" if figure >= 0.01 else f"{figure:.1e}"  # noqa: PLR2004 - digits


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


_TABLES = {"overview": _overview, "variants": _variants, "layers": _layers, "bits": _bits}
