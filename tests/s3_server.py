"""A real object store that speaks S3, on loopback: OpenStack Swift with its s3api, one replica, its own four services.

Swift is what several clouds run; it comes from PyPI, and starts in two seconds.
"""

import ctypes
import json
import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import obstore
from obstore.store import S3Store

BUCKET = "tests"
KEY_ID, GUEST_ID, SECRET = "test:tester", "test:guest", "secret-of-the-tests"
SERVICES = ("account", "container", "object")
START_SECONDS = 120
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)  # loaded here, since a child that has just been forked should do little

COMMON = """[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
user = {user}
swift_dir = {folder}
devices = {folder}/devices
workers = 0
mount_check = false
disable_fallocate = true
log_level = WARNING
log_address = /nonexistent
"""
# Waits for a busy machine instead of putting off what listings are made of.
PATIENCE = "conn_timeout = 60\nnode_timeout = 60\n"
SERVICE = "[pipeline:main]\npipeline = {name}-server\n[app:{name}-server]\nuse = egg:swift#{name}\n"
PROXY = f"""[pipeline:main]
pipeline = catch_errors cache listing_formats bulk s3api tempauth slo dlo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
recoverable_node_timeout = 60
{PATIENCE}
[filter:cache]
paste.filter_factory = swift_cache:filter_factory
[filter:tempauth]
use = egg:swift#tempauth
user_{KEY_ID.replace(":", "_")} = {SECRET} .admin
user_{GUEST_ID.replace(":", "_")} = {SECRET}
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
"""
RINGS = """
import json, sys
from swift.common.ring.builder import RingBuilder
for name, port in json.loads(sys.argv[2]).items():
    ring = RingBuilder(part_power=4, replicas=1, min_part_hours=0)
    place = {"ip": "127.0.0.1", "port": port, "replication_ip": "127.0.0.1", "replication_port": port}
    ring.add_dev({"id": 0, "region": 1, "zone": 1, "device": "d1", "weight": 1, **place})
    ring.rebalance()
    ring.get_ring().save(f"{sys.argv[1]}/{name}.ring.gz")
"""
FILTERS = ("catch_errors", "listing_formats", "bulk", "slo", "dlo")


@contextmanager
def run_server(folder: Path) -> Iterator[dict[str, str]]:
    """Run the services with their files below a folder; gives the environment variables of a client."""
    ports = {name: _free_port() for name in (*SERVICES, "proxy")}
    _configure(folder, ports)
    with ExitStack() as stack:
        for name, port in ports.items():
            process = stack.enter_context(_run(name, folder))
            _wait_for(process, port, folder / f"{name}.log")
        environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{ports['proxy']}",
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }
        _make_bucket(environment)
        yield environment


def _configure(folder: Path, ports: Mapping[str, int]) -> None:
    (folder / "devices" / "d1").mkdir(parents=True)
    os.setxattr(folder / "devices", "user.aerie", b"1")  # Swift needs them; this says so if there are none
    (folder / "swift.conf").write_text(
        "[swift-hash]\nswift_hash_path_suffix = tests\n[storage-policy:0]\nname = one\ndefault = yes\n"
    )
    for name, port in ports.items():
        text = COMMON.format(port=port, user=pwd.getpwuid(os.getuid()).pw_name, folder=folder)
        if name == "proxy":
            text += PROXY + "".join(f"[filter:{one}]\nuse = egg:swift#{one}\n" for one in FILTERS)
        else:
            text += PATIENCE + SERVICE.format(name=name)
        (folder / f"{name}.conf").write_text(text)
    # In a process of its own, since Swift changes what it is imported into.
    subprocess.run([sys.executable, "-c", RINGS, str(folder), json.dumps(ports)], check=True, capture_output=True)


@contextmanager
def _run(name: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    # Run by this Python, not as the script: its first line may be too long for the kernel.
    script = Path(sys.executable).with_name(f"swift-{name}-server")
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(script), str(folder / f"{name}.conf")],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - one system call
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def die_with_parent() -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"{process.args!r} does not serve: {log.read_text()[-2000:]}")


def _make_bucket(environment: Mapping[str, str]) -> None:
    store = S3Store(
        BUCKET,
        endpoint=environment["AWS_ENDPOINT_URL"],
        access_key_id=KEY_ID,
        secret_access_key=SECRET,
        region=environment["AWS_REGION"],
        client_options={"allow_http": True},
    )
    address = obstore.sign(store, "PUT", "", timedelta(minutes=10))
    connection = HTTPConnection(urlsplit(address).netloc, timeout=60)
    connection.request("PUT", address)
    assert connection.getresponse().status == HTTPStatus.OK
    connection.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
