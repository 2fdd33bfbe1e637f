"""What errors of object storage mean, in one line with the cure."""

import errno
import os
import re
from urllib.parse import urlsplit

from storage.errors import StoreFullError, StoreNotFoundError, StoreReadOnlyError, StoreUnreachableError
from storage.paths import ObjectPath

ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
# Codes of servers that have no more room, or no more for this account.
FULL = {"QuotaExceeded", "InsufficientStorage", "XMinioStorageFull"}
FORBIDDEN = {"401", "403"}
# Where a virtual machine is asked for credentials, once there are none in the environment.
METADATA = ("/latest/api/token", "/latest/meta-data")


class OutOfRangeError(Exception):
    """An object ends before the range that was asked for."""


def explain(text: str, path: ObjectPath, *, is_write: bool) -> Exception:
    """Return the error to raise for what the client says.

    Of what the server said, no more than its code is told: the rest has key ids in it.

    Args:
        text: the client's message.
        path: what was asked for.
        is_write: whether it was to be changed.
    """
    code, status = _find(r"<Code>(\w+)</Code>", text), _find(r"status code: (\d{3})", text)
    where, bucket = _host(), ObjectPath(path.bucket)
    error: Exception = StoreUnreachableError(f"{where} does not answer; check AWS_ENDPOINT_URL and the network")
    if code == "NoSuchBucket":
        error = StoreNotFoundError(f"there is no bucket {path.bucket} at {where}; make it, or correct the address")
    elif any(part in text for part in METADATA):
        error = StoreUnreachableError(
            f"there are no credentials for {bucket}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    elif status == "416":
        error = OutOfRangeError()
    elif status == "404":
        error = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    elif code in FULL or status == "507":
        error = StoreFullError(f"no space left at {path} ({code or status}); free some and run again")
    elif code == "AccessDenied" and is_write:
        error = StoreReadOnlyError(f"cannot write at {path}: {where} denies it to this key; choose a writable store")
    elif status in FORBIDDEN:
        error = StoreUnreachableError(
            f"{where} refuses {bucket} ({code or status}); check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, "
            "and what the key is allowed to do"
        )
    elif status:
        error = StoreUnreachableError(
            f"{where} answers {status} {code or ''} for {path}; check AWS_ENDPOINT_URL and AWS_REGION, or try later"
        )
    return error


def endpoint_url() -> str:
    """Return the endpoint that the environment names; nothing if it is Amazon's own."""
    return next((os.environ[name] for name in ENDPOINTS if os.environ.get(name)), "")


def _host() -> str:
    """Return host and port of the endpoint, and nothing else of its address."""
    return urlsplit(endpoint_url()).netloc.rpartition("@")[2] or "Amazon S3"


def _find(pattern: str, text: str) -> str | None:
    found = re.search(pattern, text)
    return found[1] if found else None
