"""Credentials of a bucket are in the environment, or in a block of Prefect, and nowhere else."""

import json
from collections.abc import Callable
from pathlib import Path

import psutil
from jobs import chat, refusal, run_aerie
from prefect_servers import PrefectServer
from s3_server import KEY_ID, SECRET
from stored_files import list_files, read_file

from storage.paths import ObjectPath

OTHERS = "of-the-environment-0123456789abcdef"
BLOCK = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET}


def test_they_appear_in_no_database_log_artifact_or_report(
    server: PrefectServer, s3_place: ObjectPath, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    make_block(server, "bucket", BLOCK)
    (tmp_path / "chats.jsonl").write_text(json.dumps(chat("Why?", "Because.")) + "\n")
    flags = ["--model", tiny_model("llama"), "--data", "chats.jsonl", "--store", s3_place, "--devices", "cpu"]
    # Those of the environment are wrong here, so that it must be the block's that were taken.
    environment = server.environment | {"AWS_SECRET_ACCESS_KEY": OTHERS}

    done = run_aerie("extract", *flags, "--secret-block", "bucket", cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    refused = run_aerie("extract", *flags, "--secret-block", "none", cwd=tmp_path, env=environment)
    assert refused.stderr.startswith("aerie: Prefect has no Secret block 'none'")
    failed = run_aerie("validate", s3_place, cwd=tmp_path, env=environment)
    assert failed.returncode == 1
    kept_out = run_aerie("gc", s3_place, cwd=tmp_path, env=environment)
    let_in = run_aerie("gc", s3_place, "--secret-block", "bucket", cwd=tmp_path, env=environment)
    assert (kept_out.returncode, let_in.returncode) == (1, 0), let_in.stderr

    [run] = server.ask("flow_runs", sort="START_TIME_DESC", limit=1)
    assert run["state_name"] == "Completed"
    said = [text.encode() for one in (done, refused, failed, kept_out, let_in) for text in (one.stdout, one.stderr)]
    kept = [path.read_bytes() for path in server.folder.rglob("*") if path.is_file()]
    stored = [read_file(s3_place / name) for name in list_files(s3_place) if name.startswith("runs/")]
    assert any(run["name"].encode() in text for text in kept), "the database is among them"
    assert len(stored) >= 2, "a report, and the log of an engine"
    for text in (*said, *kept, *stored):
        assert SECRET.encode() not in text
        assert OTHERS.encode() not in text


def test_the_server_listens_on_this_machine_alone(server: PrefectServer) -> None:
    process = psutil.Process(server.process.pid)
    listening = [one.laddr for one in process.net_connections("inet") if one.status == psutil.CONN_LISTEN]
    assert [(address.ip, address.port) for address in listening] == [("127.0.0.1", server.port)]
    second = run_aerie("server", "--port", server.port, cwd=server.folder)
    assert refusal(second).startswith(f"aerie: cannot listen at 127.0.0.1:{server.port}: Address already in use; give")


def make_block(server: PrefectServer, name: str, value: dict[str, str]) -> None:
    """Make a Secret block, as the pages do."""
    api = f"{server.url}/api"
    block_type = server.client.get(f"{api}/block_types/slug/secret").json()
    [schema] = server.client.post(
        f"{api}/block_schemas/filter", json={"block_schemas": {"block_type_id": {"any_": [block_type["id"]]}}}
    ).json()
    body = {
        "name": name,
        "data": {"value": value},
        "block_type_id": block_type["id"],
        "block_schema_id": schema["id"],
    }
    server.client.post(f"{api}/block_documents/", json=body).raise_for_status()
