"""What the values of flags and arguments are: places of stores, counts, shares."""

import argparse

from storage.errors import StorageError
from storage.paths import StorePath, store_path


def place(text: str) -> StorePath:
    """Return the place of a store: a path, or s3://bucket/prefix."""
    try:
        return store_path(text)
    except StorageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def count(text: str) -> int:
    """Return a whole number above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


def age(text: str) -> float:
    """Return a number above 0."""
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def fraction(text: str) -> float:
    """Return a share of something that is not nothing."""
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 1")
    return value
