"""`aerie vocabulary`: the draft vocabulary of what a store has tokenized."""

import argparse

from flows.printing import print_document
from storage.draft_vocabularies import draft_vocabulary_folder
from storage.layout import check_version
from storage.paths import StorePath
from storage.tokens_listing import find_tokens
from tasks.draft_vocabularies import ensure_draft_vocabulary, make_spec
from tasks.engine.models import read_model
from tasks.hub import find_model
from tasks.tokens_specs import tokenizer_digest
from tasks.trainer_files.vocabulary_files import write_numpy_vocabulary


def vocabulary(arguments: argparse.Namespace) -> int:
    """Choose the tokens that a drafter can say, from those that are learnt; kept in the store."""
    store: StorePath = arguments.store
    check_version(store)
    model = read_model(find_model(arguments.model))
    tokens = find_tokens(store, arguments.tokens)
    spec = make_spec(tokens, tokenizer_digest(model.path), target_size=model.vocab_size, draft_size=arguments.size)
    made = ensure_draft_vocabulary(store, tokens, spec)
    files = write_numpy_vocabulary(arguments.out, made, is_only=True) if arguments.out else []
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
