"""Hostile bytes and documents, made of valid ones: what a fuzzer gives to a reader.

All choices are a `random.Random`'s, so that an input is made again from its seed, and so that hypothesis can make them.
"""

import copy
import json
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

_WIDTHS = (1, 2, 4, 8)
# Where sizes and offsets wrap, are signed or are not, or ask for more memory than there is.
NUMBERS = (
    *(0, 1, -1, 2, 7, 255, 256, 257, 65_535, 1 << 20, 1 << 24, (1 << 24) + 1, (1 << 31) - 1, 1 << 31, 1 << 32),
    *(1 << 40, 1 << 48, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, -(1 << 31), -(1 << 63)),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0.0, -0.5, 1.0, 3.0, 1e300, float("nan"), float("inf"), "", "x", "final", "../../x", "0" * 64),
    *("\ud800", "\x00", [], {}, [[]], [None], [{}], [1], {"a": {}}, {"name": "x"}, 10**400),
    *(
        "[" * 100_000,
        '{"a":' * 100_000 + "1",
        "x" * 5000,
        "messages",
        "bfloat16",
        "float8_e4m3fn",
        [2, 5, "final"],
        [0],
        ["final"],
        [1 << 70],
    ),
)
# What the text of a document becomes, whatever it was.
TEXTS = (
    b"",
    b"{}",
    b"[]",
    b"null",
    b"{",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b"9" * 5000,
    b"NaN",
    b'"\\ud800"',
)


def mutate_bytes(data: bytes, dice: Random) -> bytes:
    """Return bytes that differ in one to eight ways."""
    for _ in range(1 << dice.randrange(4)):
        data = dice.choice(_WAYS)(data, dice)
    return data


def mutate_document(document: Any, dice: Random) -> bytes:
    """Return the text of a JSON document of which some values are others, lack or are new; or a damaged text."""
    if dice.randrange(16) == 0:
        return dice.choice(TEXTS)
    document = copy.deepcopy(document)
    for _ in range(1 << dice.randrange(3)):
        document = change_value(document, dice)
    text = json.dumps(document, indent=dice.choice((None, 2))).encode()
    return mutate_bytes(text, dice) if dice.randrange(6) == 0 else text


def change_value(document: Any, dice: Random) -> Any:
    """Change one value of a document, at any depth, in place; return the document."""
    if not (isinstance(document, dict | list) and document) or dice.randrange(12) == 0:
        return make_value(dice)
    key = dice.choice(list(document)) if isinstance(document, dict) else dice.randrange(len(document))
    way = dice.randrange(10)
    if way < 6:
        document[key] = change_value(document[key], dice)
    elif way == 6:
        del document[key]
    elif way == 7 and isinstance(document, dict):
        document[dice.choice(("x", "columns", "split", "__class__", key + "s"))] = make_value(dice)
    elif way == 8 and isinstance(document, list):
        document.insert(key, dice.choice(document))
    else:
        document[key] = make_value(dice)
    return document


def make_value(dice: Random) -> Any:
    """Return a JSON value: a number at which something wraps, or an odd value."""
    return copy.deepcopy(dice.choice(NUMBERS if dice.randrange(2) else VALUES))


def mutate_array(values: npt.NDArray[Any], dice: Random) -> npt.NDArray[Any]:
    """Return integers or floats of which some are others, or lack, or come twice."""
    values = values.copy()
    for _ in range(1 << dice.randrange(3)):
        if not values.size:
            break
        way = dice.randrange(8)
        if way == 0:
            values = values[: dice.randrange(len(values) + 1)]
        elif way == 1:
            values = np.concatenate([values, values[: dice.randrange(len(values) + 1)]])
        else:
            _change_element(values, dice)
    return values


def _change_element(values: npt.NDArray[Any], dice: Random) -> None:
    flat = values.reshape(-1)
    at = dice.randrange(flat.size)
    words = flat.view(f"<u{values.itemsize}")
    mask = (1 << 8 * values.itemsize) - 1
    if dice.randrange(2):
        words[at] = dice.choice(NUMBERS) & mask
    else:
        words[at] = int(words[at]) + dice.choice((-1, 1, 255, -256, 256)) & mask


def _flip(data: bytes, dice: Random) -> bytes:
    if not data:
        return data
    changed = bytearray(data)
    changed[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def _set(data: bytes, dice: Random) -> bytes:
    if not data:
        return data
    changed = bytearray(data)
    changed[dice.randrange(len(data))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
    return bytes(changed)


def _set_number(data: bytes, dice: Random) -> bytes:
    width = dice.choice(_WIDTHS)
    if len(data) < width:
        return data
    at = dice.randrange(len(data) - width + 1)
    number = dice.choice(NUMBERS) & ((1 << 8 * width) - 1)
    return data[:at] + number.to_bytes(width, dice.choice(("little", "big"))) + data[at + width :]


def _cut(data: bytes, dice: Random) -> bytes:
    return data[: dice.randrange(len(data) + 1)]


def _drop(data: bytes, dice: Random) -> bytes:
    start, length = _range_of(data, dice)
    return data[:start] + data[start + length :]


def _repeat(data: bytes, dice: Random) -> bytes:
    start, length = _range_of(data, dice)
    return data[:start] + data[start : start + length] * dice.choice((2, 3, 16)) + data[start + length :]


def _splice(data: bytes, dice: Random) -> bytes:
    start, length = _range_of(data, dice)
    at = dice.randrange(len(data) + 1)
    return data[:at] + data[start : start + length] + data[at + dice.choice((0, length)) :]


def _insert(data: bytes, dice: Random) -> bytes:
    at = dice.randrange(len(data) + 1)
    return data[:at] + bytes(dice.randrange(256) for _ in range(dice.randrange(1, 9))) + data[at:]


def _range_of(data: bytes, dice: Random) -> tuple[int, int]:
    start = dice.randrange(len(data) + 1)
    return start, min(dice.choice((1, 4, 16, 64, 1024)), len(data) - start)


_WAYS: tuple[Callable[[bytes, Random], bytes], ...] = (
    *(_flip, _flip, _set, _set_number, _set_number),
    *(_cut, _drop, _repeat, _splice, _insert),
)
