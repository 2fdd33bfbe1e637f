"""`aerie vocabulary`: the draft vocabulary of what a store has tokenized."""

import argparse
from pathlib import Path

import numpy as np

from flows.errors import SettingsError
from flows.printing import print_document
from storage.draft_vocabularies import DraftVocabulary, draft_vocabulary_folder
from storage.file_checks import tokens_digests
from storage.layout import check_version
from storage.paths import StorePath
from storage.tokens import Tokens, open_tokens
from tasks.draft_vocabularies import ensure_draft_vocabulary, make_spec
from tasks.engine.models import read_model
from tasks.hub import find_model
from tasks.tokens_specs import tokenizer_spec


def vocabulary(arguments: argparse.Namespace) -> int:
    """Choose the tokens that a drafter can say, from those that are learnt; kept in the store."""
    store: StorePath = arguments.store
    check_version(store)
    model = read_model(find_model(arguments.model))
    tokens = _open(store, arguments.tokens)
    tokenizer, _ = tokenizer_spec(model.path)
    spec = make_spec(tokens, tokenizer, target_size=model.vocab_size, draft_size=arguments.size)
    made = ensure_draft_vocabulary(store, tokens, spec)
    files = _export(made, arguments.out) if arguments.out else []
    document = {
        "draft_size": spec.draft_size,
        "target_size": spec.target_size,
        "coverage": made.coverage,
        "tokens_digest": spec.tokens_digest,
        "folder": str(draft_vocabulary_folder(store, spec.digest())),
        "files": [str(file) for file in files],
    }
    print_document("Draft vocabulary", document, as_json=arguments.json)
    return 0


def _open(store: StorePath, prefix: str | None) -> Tokens:
    found = [digest for digest in tokens_digests(store) if digest.startswith(prefix or "")]
    if len(found) != 1:
        names = ", ".join(digest[:12] for digest in found) or "none"
        raise SettingsError(f"--tokens {prefix or ''} names {names} of the store; give the tokens_digest of a report")
    tokens = open_tokens(store, found[0])
    assert tokens is not None  # noqa: S101 - it has just been listed
    return tokens


def _export(made: DraftVocabulary, folder: Path) -> list[Path]:
    """Write the two files that speculators reads."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{name}-{len(made.d2t)}.npy" for name in ("d2t", "t2d")]
    for file, values in zip(files, (made.d2t, made.t2d), strict=True):
        np.save(file, values)
    return files
