"""The figures of `extract.py` as a table."""

from collections.abc import Mapping
from typing import Any


def format_table(name: str, found: Mapping[str, Any]) -> str:
    """Return the figures of one model as a table."""
    lines = [
        f"### {name}: {found['samples']} samples, {found['tokens']:,} tokens of {found['bytes_per_token']:,} bytes",
        "| way | tokens/s | of the forward | GB/s raw | GB/s stored | ratio | idle | cores | peak memory |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for way, row in found["ways"].items():
        if way == "disk":
            lines.append(f"| disk, synced | | | | {_median(row, 'stored_gb_per_second'):.2f} | | | | |")
            continue
        stored = _median(row, "stored_gb_per_second")
        lines.append(
            f"| {way} | {_median(row, 'tokens_per_second'):,.0f} | {found['ratios'][way]:.3f} "
            f"| {_median(row, 'raw_gb_per_second'):.3f} | {f'{stored:.3f}' if stored else ''} "
            f"| {_median(row, 'ratio'):.2f} | {_median(row, 'idle_share'):.1%} | {_median(row, 'cores'):.1f} "
            f"| {_median(row, 'peak_memory_bytes') / 1e9:.1f} GB |"
        )
    ours, checked = found["ways"]["ours"], found["checked"]
    lines.append(
        f"\nours: {found['cpu_ratios']['ours']:.3f} of the forward by seconds of the CPU; "
        f"{_median(ours, 'encode_cores'):.2f} cores encode; waited for the writing "
        f"{_median(ours, 'waited_seconds'):.2f} s of {_median(ours, 'seconds'):.2f} s; first sample committed after "
        f"{_median(ours, 'first_commit_seconds'):.2f} s; at most {_median(ours, 'in_flight_bytes') / 1e6:,.0f} MB in "
        f"flight, {found['pinned_bytes'] / 1e6:,.0f} MB pinned; {checked['samples']} samples checked, "
        f"{checked['missing']} missing, {checked['findings']} findings; {found['padding_share']:.0%} of the padded "
        f"rows is padding; the disk takes {found['commits_per_second']:,.0f} commits a second\n"
    )
    return "\n".join(lines)


def _median(row: Mapping[str, Mapping[str, float]], key: str) -> float:
    return row[key]["median"]
