"""The plots of a run, drawn from its report alone."""

import base64
import io
from collections.abc import Callable
from typing import TYPE_CHECKING

from flows.report import ENGINE_PHASES, RunReport
from tasks.token_summaries import Histogram

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Draw = Callable[["Axes", RunReport], None]

_SIZE = (7.0, 2.8)
_BLUE, _RED = "#3b6ea5", "#c0504d"
_LABELLED_SHARE = 0.05  # a smaller bar has no room for its number
# Text stays text, which is smaller and can be searched; ids do not change from drawing to drawing.
_STYLE = {"svg.fonttype": "none", "svg.hashsalt": "aerie", "font.size": 9.0, "axes.spines.top": False}


def draw_plots(report: RunReport) -> dict[str, str]:
    """Return the plots that the report has data for, by title, each an SVG image as a `data:` URL."""
    from matplotlib import rc_context  # noqa: PLC0415 - a second that only the end of a run needs

    with rc_context(_STYLE | {"axes.spines.right": False}):  # type: ignore[arg-type] # its keys are literals there
        return {title: _draw(draw, report) for title, (has_data, draw) in _PLOTS.items() if has_data(report)}


def _draw(draw: Draw, report: RunReport) -> str:
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=_SIZE, layout="constrained")
    draw(figure.subplots(), report)
    image = io.BytesIO()
    figure.savefig(image, format="svg", metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(image.getvalue()).decode()}"


def _draw_rates(axes: "Axes", report: RunReport) -> None:
    started = report.started.timestamp()
    for engine in report.engines:
        rates = engine.timeline.rates()
        if not rates:  # it has not come so far
            continue
        moments = [moment - started for moment, _ in rates]
        edges = [*moments, moments[-1] + engine.timeline.bin_seconds]
        axes.stairs([rate for _, rate in rates], edges, label=engine.device)
    axes.set(xlabel="seconds since the start", ylabel="tokens/s, committed", xlim=(0, None), ylim=(0, None))
    axes.legend(loc="best", fontsize=8)


def _draw_times(axes: "Axes", report: RunReport) -> None:
    phases = list(report.seconds)[::-1]
    seconds = [report.seconds[phase] for phase in phases]
    labels = [f"engines: {ENGINE_PHASES[phase]}" if phase in ENGINE_PHASES else phase for phase in phases]
    bars = axes.barh(labels, seconds, color=[_RED if phase in ENGINE_PHASES else _BLUE for phase in phases])
    axes.bar_label(bars, fmt="%.1f", padding=3)
    axes.set(xlabel="seconds (of engines: all together)")


def _draw_lengths(axes: "Axes", report: RunReport) -> None:
    assert report.data is not None  # noqa: S101 - it is drawn where there is some
    _draw_histogram(axes, report.data.length, _BLUE, "all")
    _draw_histogram(axes, report.data.supervised, _RED, "learnt")
    axes.set(xlabel="tokens of a sample", ylabel="samples")
    axes.set_xscale("symlog", base=2)
    axes.legend(fontsize=8)


def _draw_shares(axes: "Axes", report: RunReport) -> None:
    assert report.data is not None  # noqa: S101 - as above
    _draw_histogram(axes, report.data.supervised_share, _BLUE)
    axes.set(xlabel="share of a sample's tokens that is learnt", ylabel="samples", xlim=(0, 1))


def _draw_histogram(axes: "Axes", histogram: Histogram, color: str, label: str | None = None) -> None:
    axes.stairs(histogram.counts, histogram.edges, fill=label is None, label=label, color=color)


def _draw_ratios(axes: "Axes", report: RunReport) -> None:
    assert report.states is not None  # noqa: S101 - as above
    layers = report.states.layers
    bars = axes.bar([str(one.layer) for one in layers], [one.ratio for one in layers], color=_BLUE)
    axes.bar_label(bars, fmt="%.2f", padding=2)
    axes.set(xlabel="layer", ylabel="raw by stored bytes")


def _draw_norms(axes: "Axes", report: RunReport) -> None:
    assert report.states is not None  # noqa: S101 - as above
    layers = report.states.layers
    names = [str(one.layer) for one in layers]
    axes.vlines(names, [one.norm[0] for one in layers], [one.norm[3] for one in layers], color=_BLUE)
    axes.plot(names, [one.norm[1] for one in layers], "o", color=_BLUE, label="median, and least to largest")
    axes.plot(names, [one.norm[2] for one in layers], "_", color=_RED, markersize=12, label="99th percentile")
    axes.set(xlabel="layer", ylabel="norm of a state", yscale="log")
    axes.legend(fontsize=8)


def _draw_outliers(axes: "Axes", report: RunReport) -> None:
    assert report.states is not None  # noqa: S101 - as above
    layers = report.states.layers
    for place, one in enumerate(layers):
        base = 0.0
        for outlier in one.outliers:
            middle = base + outlier.share / 2
            axes.bar(place, outlier.share, bottom=base, color=_BLUE, edgecolor="white")
            if outlier.share > _LABELLED_SHARE:
                axes.text(place, middle, str(outlier.channel), ha="center", va="center", fontsize=7)
            base += outlier.share
    axes.set_xticks(range(len(layers)), [str(one.layer) for one in layers])
    axes.set(xlabel="layer", ylabel="share of all squares")


def _has_data(report: RunReport) -> bool:
    return report.data is not None and report.data.samples > 0


def _has_states(report: RunReport) -> bool:
    return report.states is not None


_PLOTS: dict[str, tuple[Callable[[RunReport], bool], Draw]] = {
    "Throughput": (lambda report: any(engine.timeline.tokens for engine in report.engines), _draw_rates),
    "Where the time went": (lambda report: bool(report.seconds), _draw_times),
    "Lengths": (_has_data, _draw_lengths),
    "Learnt share": (_has_data, _draw_shares),
    "Compression by layer": (_has_states, _draw_ratios),
    "Norms by layer": (_has_states, _draw_norms),
    "Channels that stand out": (_has_states, _draw_outliers),
}
