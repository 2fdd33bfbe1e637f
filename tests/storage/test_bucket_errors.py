"""What servers and clients say, and what it means to a person."""

import pytest

from storage.bucket_errors import OutOfRangeError, explain
from storage.errors import StorageError, StoreFullError, StoreNotFoundError, StoreReadOnlyError, StoreUnreachableError
from storage.paths import ObjectPath


def answer(status: str, code: str = "") -> str:
    details = f"<Code>{code}</Code><AWSAccessKeyId>AKIAEXAMPLE</AWSAccessKeyId>" if code else ""
    return f"Error performing PUT https://s3/b/k in 1ms - Server returned non-2xx status code: {status}: {details}"


MISSING = answer("404 Not Found", "NoSuchKey")
NO_BUCKET = answer("404 Not Found", "NoSuchBucket")
DENIED = answer("403 Forbidden", "AccessDenied")
UNKNOWN_KEY = answer("403 Forbidden", "InvalidAccessKeyId")
QUOTA = answer("403 Forbidden", "QuotaExceeded")
FULL = answer("507 Insufficient Storage", "XMinioStorageFull")
BUSY = answer("503 Service Unavailable", "SlowDown")
MOVED = answer("301 Moved Permanently", "PermanentRedirect")


@pytest.mark.parametrize(
    ("text", "is_write", "error", "part"),
    [
        (NO_BUCKET, False, StoreNotFoundError, "there is no bucket b at store.example:9000; make it"),
        (MISSING, False, FileNotFoundError, "s3://b/k"),
        (answer("404 Not Found"), False, FileNotFoundError, "s3://b/k"),
        (answer("416 Range Not Satisfiable", "InvalidRange"), False, OutOfRangeError, ""),
        (DENIED, False, StoreUnreachableError, "refuses s3://b (AccessDenied); check AWS_ACCESS_KEY_ID"),
        (DENIED, True, StoreReadOnlyError, "denies it to this key; choose a writable store"),
        (UNKNOWN_KEY, True, StoreUnreachableError, "refuses s3://b (InvalidAccessKeyId)"),
        (answer("401 Unauthorized"), True, StoreUnreachableError, "refuses s3://b (401)"),
        (QUOTA, True, StoreFullError, "no space left at s3://b/k (QuotaExceeded); free some and run again"),
        (FULL, True, StoreFullError, "no space left at s3://b/k"),
        (BUSY, True, StoreUnreachableError, "answers 503 SlowDown for s3://b/k"),
        (MOVED, False, StoreUnreachableError, "AWS_REGION"),
        ("error sending request", False, StoreUnreachableError, "store.example:9000 does not answer; check AWS_"),
        ("PUT http://169.254.169.254/latest/api/token in 1ms", False, StoreUnreachableError, "set AWS_ACCESS_KEY_ID"),
    ],
)
def test_each_answer_has_its_error(
    monkeypatch: pytest.MonkeyPatch, text: str, is_write: bool, error: type[Exception], part: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://user:secret@store.example:9000/path")
    found = explain(text, ObjectPath("b", "k"), is_write=is_write)
    assert type(found) is error
    assert part in str(found)
    assert isinstance(found, StorageError | FileNotFoundError | OutOfRangeError)
    for secret in ("AKIAEXAMPLE", "user", "secret@", "\n"):
        assert secret not in str(found)


def test_amazon_is_named_where_no_endpoint_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    assert str(explain("", ObjectPath("b"), is_write=False)).startswith("Amazon S3 does not answer")
