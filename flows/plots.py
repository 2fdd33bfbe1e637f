"""The plots of a run, drawn from its report alone, and those of a store."""

import base64
import io
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

from flows.report import ENGINE_PHASES, RunReport
from tasks.state_summaries import StatesSummary
from tasks.token_summaries import Histogram, TokensSummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tasks.readouts import Agreement

# Draws something of a run, of its data, or of its states.
Draw = Callable[["Axes", Any], None]
Form = Literal["svg", "png"]

_SIZE = (7.0, 2.8)
_DPI = 150  # of PNG
_BLUE, _RED = "#3b6ea5", "#c0504d"
_LABELLED_SHARE = 0.05  # a smaller bar has no room for its number
# Text stays text, which is smaller and can be searched; ids do not change from drawing to drawing.
_STYLE = {"svg.fonttype": "none", "svg.hashsalt": "aerie", "font.size": 9.0, "axes.spines.top": False}


def draw_plots(report: RunReport) -> dict[str, str]:
    """Return the plots that the report has data for, by title, each an SVG image as a `data:` URL."""
    of_run = {title: draw for title, (has_data, draw) in _OF_RUN.items() if has_data(report)}
    images = _render([(report, of_run), *_of_store(report.data, report.states)], "svg")
    return {title: f"data:image/svg+xml;base64,{base64.b64encode(image).decode()}" for title, image in images.items()}


def draw_store_plots(
    data: TokensSummary | None, states: StatesSummary | None, agreement: "Agreement | None", form: Form
) -> dict[str, bytes]:
    """Return the plots of what a store holds, by title, each an image; of what is None there is none."""
    of_agreement: dict[str, Draw] = {} if agreement is None else {"Next token by position": _draw_agreement}
    return _render([*_of_store(data, states), (agreement, of_agreement)], form)


def _of_store(data: TokensSummary | None, states: StatesSummary | None) -> list[tuple[Any, dict[str, Draw]]]:
    has_data = data is not None and data.samples > 0
    return [(data, _OF_DATA if has_data else {}), (states, _OF_STATES if states is not None else {})]


def _render(plots: Iterable[tuple[Any, dict[str, Draw]]], form: Form) -> dict[str, bytes]:
    from matplotlib import rc_context  # noqa: PLC0415 - a second that only the end of a run needs

    with rc_context(_STYLE | {"axes.spines.right": False}):  # type: ignore[arg-type] # its keys are literals there
        return {title: _draw(draw, what, form) for what, draws in plots for title, draw in draws.items()}


def _draw(draw: Draw, what: Any, form: Form) -> bytes:
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=_SIZE, layout="constrained")
    draw(figure.subplots(), what)
    image = io.BytesIO()
    figure.savefig(image, format=form, dpi=_DPI, metadata={"Date": None} if form == "svg" else {"Software": None})
    return image.getvalue()


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


def _draw_lengths(axes: "Axes", data: TokensSummary) -> None:
    _draw_histogram(axes, data.length, _BLUE, "all")
    _draw_histogram(axes, data.supervised, _RED, "learnt")
    axes.set(xlabel="tokens of a sample", ylabel="samples")
    axes.set_xscale("symlog", base=2)
    axes.legend(fontsize=8)


def _draw_shares(axes: "Axes", data: TokensSummary) -> None:
    _draw_histogram(axes, data.supervised_share, _BLUE)
    axes.set(xlabel="share of a sample's tokens that is learnt", ylabel="samples", xlim=(0, 1))


def _draw_histogram(axes: "Axes", histogram: Histogram, color: str, label: str | None = None) -> None:
    axes.stairs(histogram.counts, histogram.edges, fill=label is None, label=label, color=color)


def _draw_ratios(axes: "Axes", states: StatesSummary) -> None:
    layers = states.layers
    bars = axes.bar([str(one.layer) for one in layers], [one.ratio for one in layers], color=_BLUE)
    axes.bar_label(bars, fmt="%.2f", padding=2)
    axes.set(xlabel="layer", ylabel="raw by stored bytes")


def _draw_norms(axes: "Axes", states: StatesSummary) -> None:
    layers = states.layers
    names = [str(one.layer) for one in layers]
    axes.vlines(names, [one.norm[0] for one in layers], [one.norm[3] for one in layers], color=_BLUE)
    axes.plot(names, [one.norm[1] for one in layers], "o", color=_BLUE, label="median, and least to largest")
    axes.plot(names, [one.norm[2] for one in layers], "_", color=_RED, markersize=12, label="99th percentile")
    axes.set(xlabel="layer", ylabel="norm of a state", yscale="log")
    axes.legend(fontsize=8)


def _draw_outliers(axes: "Axes", states: StatesSummary) -> None:
    layers = states.layers
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


def _draw_agreement(axes: "Axes", agreement: "Agreement") -> None:
    pairs = zip(agreement.agreed, agreement.counts, strict=True)
    shares = [agreed / count if count else float("nan") for agreed, count in pairs]
    axes.stairs(shares, agreement.edges, fill=True, color=_BLUE)
    axes.set(xlabel="position in a sample", ylabel="next token ranked first", ylim=(0, 1))
    axes.set_xscale("symlog", base=2)
    axes.set_xlim(0, agreement.edges[-1])


_OF_RUN: dict[str, tuple[Callable[[RunReport], bool], Draw]] = {
    "Throughput": (lambda report: any(engine.timeline.tokens for engine in report.engines), _draw_rates),
    "Where the time went": (lambda report: bool(report.seconds), _draw_times),
}
_OF_DATA: dict[str, Draw] = {"Lengths": _draw_lengths, "Learnt share": _draw_shares}
_OF_STATES: dict[str, Draw] = {
    "Compression by layer": _draw_ratios,
    "Norms by layer": _draw_norms,
    "Channels that stand out": _draw_outliers,
}
