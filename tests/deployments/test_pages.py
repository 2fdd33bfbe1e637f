"""What a person does in Prefect's pages, done by a browser against a real server and worker.

`SCREENSHOTS=docs/images` keeps what the browser saw there: `make screenshots`.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from jobs import chat, refusal, run_aerie
from prefect_servers import PrefectServer, browser_page, running_worker, until

from flows.deployments import list_deployments
from storage.store import open_store

MANY = [
    json.dumps(chat(f"Question {i}: why is the sky blue?", "Because it scatters light. " * 30)) for i in range(2000)
]
FEW = [*(json.dumps(chat(f"And {i}?", "No. " * 20)) for i in range(6)), MANY[0], "this is no JSON"]
PHASES = ("tokenize", "extract", "validate", "compact")
PLOTS = (
    "throughput",
    "where-the-time-went",
    "lengths",
    "learnt-share",
    "compression-by-layer",
    "norms-by-layer",
    "channels-that-stand-out",
)


@dataclass
class Pages:
    """The pages of a server, as one person sees them."""

    server: PrefectServer
    page: Any
    asked: list[str]

    def open(self, place: str) -> None:
        self.page.goto(f"{self.server.url}/v2/{place}")

    def open_run(self, run_id: str, tab: str = "Logs") -> None:
        self.open(f"runs/flow-run/{run_id}?tab={tab.replace(' ', '+')}")

    def fill_form(self, deployment_id: str, **values: str) -> None:
        self.open(f"deployments/deployment/{deployment_id}/run")
        until(lambda: self.field("Model").input_value() and self.field("Store").input_value())
        for label, value in values.items():
            self.fill(self.field(label), value)

    def fill(self, field: Any, value: str) -> None:
        """Fill a field, and again where the form was drawn anew meanwhile."""
        while field.input_value() != value:
            field.fill(value)
            self.page.wait_for_timeout(300)

    def field(self, label: str) -> Any:
        return self.page.get_by_label(re.compile(rf"^{label.replace('_', ' ')}( \(Optional\))?$")).first

    def submit(self) -> dict[str, Any]:
        """Submit the form; gives what the server answers."""
        while True:
            with self.page.expect_response(re.compile("/create_flow_run$")) as answer:
                self.page.get_by_role("button", name="Submit").click()
            if answer.value.status < 500:  # else SQLite was busy, as it is on a busy machine; a person tries again
                return answer.value.json()

    def choose(self, action: str, confirm: str) -> None:
        """Choose from the menu of the page's run."""
        self.page.locator("button[aria-haspopup=menu]").first.click()
        self.page.get_by_role("menuitem", name=action).click()
        self.page.get_by_role("alertdialog").get_by_role("button", name=confirm).click()

    def see(self, text: str | re.Pattern[str]) -> Any:
        found = self.page.get_by_text(text).first
        found.wait_for()
        return found

    def open_artifact(self, run_id: str, key: str) -> None:
        [artifact] = until(lambda: [one for one in self.artifacts(run_id) if one["key"] == key])
        self.open(f"artifacts/artifact/{artifact['id']}")

    def artifacts(self, run_id: str) -> list[dict[str, Any]]:
        return self.server.ask("artifacts", flow_runs={"id": {"any_": [run_id]}})

    def logs(self, run_id: str) -> list[str]:
        lines = self.server.ask("logs", logs={"flow_run_id": {"any_": [run_id]}}, sort="TIMESTAMP_ASC")
        return [line["message"] for line in lines]

    def keep(self, name: str) -> None:
        if folder := os.environ.get("SCREENSHOTS"):
            self.page.wait_for_timeout(5000)  # let it settle: the graph is drawn by and by
            self.page.screenshot(path=Path(folder) / f"{name}.png")


@pytest.fixture(scope="module")
def pages(server: PrefectServer) -> Iterator[Pages]:
    with browser_page() as page:
        asked: list[str] = []
        page.on("requestfinished", lambda request: asked.append(request.url))
        yield Pages(server, page, asked)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[[str], Path]) -> Path:
    folder = tmp_path_factory.mktemp("work") / "job"
    folder.mkdir()
    (folder / "many.jsonl").write_text("\n".join(MANY) + "\n")
    (folder / "tiny-llama").symlink_to(tiny_model("llama"))
    return folder


def test_a_person_deploys_starts_watches_cancels_and_retries(pages: Pages, work: Path) -> None:
    deploy_twice(pages.server, work)
    with running_worker(pages.server):
        extract = find_deployment(pages.server, "extract")
        refuse_bad_values(pages, extract)
        cancelled = start(pages, extract, work / "many.jsonl", work / "store")
        watch_progress(pages, cancelled)
        cancel(pages, cancelled)
        failed = start(pages, extract, work / "few.jsonl", work / "store")
        look_at_failure(pages, failed, work)
        retry(pages, failed, work)
        look_at_tables(pages, failed, work / "store")
    asked = {urlsplit(url).hostname for url in pages.asked if url.startswith(("http", "ws"))}
    assert asked == {"127.0.0.1"}, "the pages asked somebody else"
    undeploy(pages.server)


def deploy_twice(server: PrefectServer, work: Path) -> None:
    flags = ["--model", "tiny-llama", "--data", "many.jsonl", "--store", "store", "--devices", "cpu"]
    small = ["--unit-tokens", 8000, "--max-batch-tokens", 500]
    first, second = (
        json.loads(run_aerie("deploy", "--json", *flags, *small, cwd=work, env=server.environment).stdout)
        for _ in range(2)
    )
    assert [change["kind"] for change in first] == [
        *("work pool", "queue", "queue", "concurrency limit", *(["automation"] * 3)),
        *(["deployment"] * len(list_deployments({}))),
    ]
    assert {change["what"].split(",")[0] for change in first} == {"made", "1 slot"}
    assert {change["what"].split(",")[0] for change in second} == {"is there", "1 slot", "up to date"}
    nightly = server.ask("deployments", deployments={"name": {"any_": ["extract-nightly"]}})
    assert [schedule["active"] for one in nightly for schedule in one["schedules"]] == [False]


def find_deployment(server: PrefectServer, name: str) -> str:
    [deployment] = server.ask("deployments", deployments={"name": {"any_": [name]}})
    return str(deployment["id"])


def refuse_bad_values(pages: Pages, extract: str) -> None:
    pages.fill_form(extract, Mantissa_bits="0")
    assert pages.field("Mantissa bits").evaluate("field => field.validationMessage")
    pages.fill_form(extract, Layers="2,nonsense")
    assert "'2,nonsense' does not match" in pages.submit()["detail"]
    pages.see(re.compile("^'2,nonsense' does not match"))
    pages.field("Layers").scroll_into_view_if_needed()
    pages.keep("form-refused")
    assert pages.server.ask("flow_runs", deployments={"id": {"any_": [extract]}}) == []


def start(pages: Pages, extract: str, data: Path, store: Path) -> str:
    pages.fill_form(extract, Layers="2,final", Store=str(store))
    data_files = pages.page.locator("[data-slot=card]", has=pages.page.get_by_role("button", name="Drag to reorder"))
    pages.fill(data_files.last.locator("textarea"), str(data))
    answer = pages.submit()
    assert "id" in answer, answer
    return str(answer["id"])


def watch_progress(pages: Pages, run_id: str) -> None:
    pages.open_artifact(run_id, "progress-extract")
    seen = set()
    while len(seen) < 3:
        seen.add(pages.see(re.compile(r"^Progress: \d")).inner_text())
        pages.page.wait_for_timeout(500)
        pages.page.reload()
    pages.keep("progress")
    limits = pages.server.client.post(f"{pages.server.url}/api/v2/concurrency_limits/filter", json={}).json()
    [slots] = [(limit["limit"], limit["active_slots"]) for limit in limits if limit["name"].startswith("aerie:")]
    assert slots == (1, 1)


def cancel(pages: Pages, run_id: str) -> None:
    pages.open_run(run_id, "Task Runs")
    pages.see("Running")
    pages.keep("running")
    pages.choose("Cancel", "Cancel Flow Run")
    pages.see("Cancelled")
    assert until(lambda: pages.server.run(run_id)["state_type"] == "CANCELLED")
    until(lambda: not engines_of(pages.server))
    assert re.search(r"cpu: forward, batch 1 of \d+ tokens", "\n".join(pages.logs(run_id)))


def engines_of(server: PrefectServer) -> list[int]:
    """Return the engine processes of this server's runs."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline", "environ"])
        if "tasks.worker" in (process.info["cmdline"] or ())
        and (process.info["environ"] or {}).get("PREFECT_API_URL") == server.environment["PREFECT_API_URL"]
    ]


def look_at_failure(pages: Pages, run_id: str, work: Path) -> None:
    state = until(lambda: (run := pages.server.run(run_id))["state_type"] == "FAILED" and run["state"])
    assert state["message"].startswith(
        f"Flow run encountered an exception: DataNotFoundError: {work}/few.jsonl cannot be read: "
    )
    assert "\n" not in state["message"]
    pages.open_run(run_id, "Details")
    pages.see("Failed")
    pages.keep("failed")


def retry(pages: Pages, run_id: str, work: Path) -> None:
    (work / "few.jsonl").write_text("\n".join(FEW) + "\n")
    pages.choose("Retry", "Retry")
    run = until(lambda: (run := pages.server.run(run_id))["state_type"] == "COMPLETED" and run)
    assert (run["name"], run["state_name"], run["run_count"]) == ("extract tiny-llama into store", "Completed", 2)


def look_at_tables(pages: Pages, run_id: str, store: Path) -> None:
    pages.open_run(run_id)
    pages.see("Completed")
    pages.page.get_by_role("tab", name="Artifacts").click()
    pages.see("accounting")
    pages.keep("completed")
    keys = {artifact["key"] for artifact in pages.artifacts(run_id)} - {None}  # Prefect's own: the error of before
    assert keys == {"accounting", "engines", "report", *PLOTS, *(f"progress-{phase}" for phase in PHASES)}
    assert len(open_store(store)) >= 6
    pages.open_artifact(run_id, "accounting")
    pages.see("rejected: invalid_json")
    pages.keep("accounting")
    pages.open_artifact(run_id, "engines")
    pages.see("tokens/s")
    pages.see("restarts")
    pages.keep("engines")
    pages.open_artifact(run_id, "report")
    pages.see("report.json")
    pages.keep("report")
    pages.open_artifact(run_id, "norms-by-layer")
    image = pages.page.locator("img[src^='data:image/svg']")
    image.wait_for()
    assert image.evaluate("one => one.naturalWidth") > 0
    pages.keep("plot")


def undeploy(server: PrefectServer) -> None:
    found = json.loads(run_aerie("undeploy", "--json", cwd=server.folder, env=server.environment).stdout)
    assert {change["what"] for change in found} == {"is there"}
    assert "nothing was changed" in run_aerie("undeploy", cwd=server.folder, env=server.environment).stdout
    changes = json.loads(run_aerie("undeploy", "--yes", "--json", cwd=server.folder, env=server.environment).stdout)
    assert {change["what"] for change in changes} == {"removed", "removed, with its queues"}
    assert [change["name"] for change in changes] == [change["name"] for change in found]
    assert server.ask("deployments") == []
    assert server.ask("work_pools") == []
    assert "no Prefect server is known" in refusal(run_aerie("deploy", cwd=server.folder))
