"""Bytes and arrays: the store of hidden states (docs/format.md)."""

from storage.errors import StorageError
from storage.samples import Sample
from storage.specs import StateSpec, TokensSpec
from storage.store import Store, init_store, open_store
from storage.tokens import Tokens, open_tokens

__all__ = [
    "Sample",
    "StateSpec",
    "StorageError",
    "Store",
    "Tokens",
    "TokensSpec",
    "init_store",
    "open_store",
    "open_tokens",
]
