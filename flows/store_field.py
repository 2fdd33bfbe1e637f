"""The place of a store as a field of settings and reports: a path, or s3://bucket/prefix; text in JSON."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from storage.errors import StorageError
from storage.paths import ObjectPath, StorePath, store_path


def parse_store(value: Any) -> StorePath:
    """Return the place that a value means.

    Raises:
        ValueError: it is neither a path nor the address of a place for a store.
    """
    if not isinstance(value, str | Path | ObjectPath):
        raise ValueError("Input is not a valid path")  # noqa: TRY004 - what pydantic asks for
    try:
        place = store_path(value)
    except StorageError as error:
        raise ValueError(str(error)) from error
    return place.expanduser() if isinstance(place, Path) else place


StoreField = Annotated[StorePath, PlainValidator(parse_store), PlainSerializer(str), WithJsonSchema({"type": "string"})]
