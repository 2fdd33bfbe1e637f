"""report.html: one file that says what report.json says, loads nothing, and lets nothing from the data act."""

import base64
import itertools
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from jobs import REJECTED, Finished

from flows.advice import advise
from flows.plots import draw_plots
from flows.report import RunReport
from flows.report_page import MOST_QUARANTINED, make_page
from tasks import state_summaries
from tasks.engine_counts import EngineCounts


class Page(HTMLParser):
    """What a browser would make of a page: its texts, what it would load, its elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.sources: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.sources += [value or "" for name, value in attrs if name in {"src", "href"}]

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())


@pytest.fixture(scope="module")
def page(finished: Finished) -> Page:
    path = finished.report.folder / "report.html"
    assert isinstance(path, Path)
    return Page(path.read_text())


def test_it_has_the_accounting_with_reasons(page: Page, finished: Finished) -> None:
    cells = [text for text in page.texts if text]
    following = dict(itertools.pairwise(cells))
    for reason, count in REJECTED.items():
        assert following[f"rejected: {reason}"] == str(count)
    assert following["done"] == str(finished.report.rows["done"])
    assert f"Completed: {finished.settings.model}" in "".join(page.texts)


def test_it_loads_nothing(page: Page) -> None:
    assert "script" not in page.tags
    assert len(page.sources) == 7
    assert all(source.startswith("data:image/svg+xml;base64,") for source in page.sources)


def test_every_plot_is_an_image_of_what_the_report_says(finished: Finished) -> None:
    plots = draw_plots(finished.report)
    texts = {title: text_of(url) for title, url in plots.items()}
    assert list(plots) == [
        "Throughput",
        "Where the time went",
        "Lengths",
        "Learnt share",
        "Compression by layer",
        "Norms by layer",
        "Channels that stand out",
    ]
    assert set(finished.report.seconds) - {"forward", "wait"} <= texts["Where the time went"]
    assert {"cpu"} <= texts["Throughput"]
    layers = {str(layer) for layer in finished.report.spec["layers"]}
    for title in ("Compression by layer", "Norms by layer", "Channels that stand out"):
        assert layers <= texts[title]


def text_of(url: str) -> set[str]:
    image = ET.fromstring(base64.b64decode(url.partition(",")[2]))  # noqa: S314 - our own drawing
    return {(node.text or "").strip() for node in image.iter("{http://www.w3.org/2000/svg}text")}


def test_the_summary_of_states_is_what_the_store_has(finished: Finished) -> None:
    store, summary = finished.result.store, finished.report.states
    assert summary is not None
    assert summary.samples == len(store)
    states = [store[name].hidden_states() for name in store]  # none is longer than what is looked at
    assert summary.tokens == sum(map(len, states))
    for slot, layer in enumerate(summary.layers):
        rows = np.concatenate([found[:, slot] for found in states]).astype(np.float64)
        norms = np.linalg.norm(rows, axis=1)
        assert layer.layer == store.spec.layers[slot]
        assert layer.norm == pytest.approx([norms.min(), np.median(norms), np.percentile(norms, 99), norms.max()], 1e-5)
        energy = (rows**2).sum(0)
        assert layer.outliers[0].channel == energy.argmax()
        assert layer.outliers[0].share == pytest.approx(energy.max() / energy.sum(), 1e-5)
        assert layer.raw_bytes == rows.size * 2
        assert 0 < layer.stored_bytes < layer.raw_bytes * 1.1


def test_the_timelines_have_every_token(finished: Finished) -> None:
    assert sum(sum(engine.timeline.tokens) for engine in finished.report.engines) == finished.report.tokens_computed


def test_what_comes_from_data_cannot_act(finished: Finished) -> None:
    evil = '<script>alert("x")</script>'
    report = finished.report.model_copy(
        update={"model": evil, "error": evil, "quarantined": [{"sample_hash": evil, "reason": evil, "detail": evil}]}
    )
    page = Page(make_page(report, {}))
    assert "script" not in page.tags
    assert page.texts.count(evil) == 3


def test_a_long_list_is_cut_and_says_so(finished: Finished) -> None:
    entry = {"sample_hash": "ab" * 32, "reason": "nan", "detail": "at layer 3"}
    report = finished.report.model_copy(update={"quarantined": [entry] * (MOST_QUARANTINED + 7)})
    page = Page(make_page(report, {}))
    assert page.texts.count("nan") == MOST_QUARANTINED
    assert "7 more are in report.json." in page.texts


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"error": "no space left", "status": "failed"}, r"The run failed: no space left\."),
        ({"quarantined": [{"reason": "nan"}] * 2}, "2 samples set aside"),
        ({"truncated": 5}, "5 rows cut"),
        ({"seconds": {"forward": 9.0, "wait": 1.0}}, "waited 1 s for the writing"),
        ({"rows": {"in": 10, "rejected": {"x": 2}}}, "2 of 10 rows were rejected"),
    ],
)
def test_advice_is_given_where_it_is_due(finished: Finished, change: dict[str, object], said: str) -> None:
    sound = {"rows": {"in": 1, "done": 1, "rejected": {}}, "seconds": {"forward": 9.0, "wait": 0.1}}
    quiet = finished.report.model_copy(update=sound)
    assert list(advise(quiet)) == []
    (advice,) = advise(quiet.model_copy(update=change))
    assert re.search(said, advice)


def test_a_report_from_before_is_read(finished: Finished) -> None:
    document = finished.report.model_dump(mode="json")
    del document["states"]
    for engine in document["engines"]:
        del engine["timeline"]
    report = RunReport.model_validate(document)
    assert report.states is None
    assert "Throughput" not in draw_plots(report)


def test_engines_that_have_not_come_so_far_are_no_obstacle(finished: Finished) -> None:
    idle = [EngineCounts("cpu-0"), *finished.report.engines]
    plots = draw_plots(finished.report.model_copy(update={"engines": idle}))
    assert "cpu-0" not in text_of(plots["Throughput"])


def test_only_so_many_bytes_are_looked_at(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    store = finished.result.store
    names = list(store)
    monkeypatch.setattr(state_summaries, "MOST_BYTES", 1)
    summary = state_summaries.summarize_states(store, names)
    assert summary is not None
    assert (summary.samples, summary.tokens) == (1, store[names[0]].num_tokens)
