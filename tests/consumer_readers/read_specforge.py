"""Read a folder as SpecForge does, in its environment: OUT MODEL FOLDER..."""

import sys

import torch
from specforge.algorithms.eagle3.data import build_offline_collator, build_offline_normalizer, build_offline_reader
from specforge.data.preprocessing import build_offline_eagle3_dataset
from specforge.modeling.target.target_head import TargetHead
from specforge.runtime.data_plane.feature_store import LocalFeatureStore
from specforge.training.vocab_mapping import count_effective_feature_tokens

MAX_LEN = 4096


def main(out: str, model: str, *folders: str) -> None:
    # In float32, since logits of bfloat16 have ties.
    head = TargetHead.from_pretrained(model, lm_head_key="model.embed_tokens.weight").float()
    torch.save([read(folder, head) for folder in folders], out)


def read(folder: str, head: TargetHead) -> dict:
    reader = build_offline_reader(folder, run_id="test", ttt_length=7, max_len=MAX_LEN)
    reader.validate_files = True
    store, normalize, collate = LocalFeatureStore(), build_offline_normalizer(MAX_LEN), build_offline_collator()
    rows = []
    for ref in reader.read():
        raw, handle = store.get(ref)
        batch = collate([normalize(raw)])
        argmax = head(batch["target"].float()).argmax(-1)[0]
        row = {"file": ref.feature_store_uri, "num_tokens": ref.num_tokens, "raw": dict(raw)}
        rows.append(row | {"batch": batch, "argmax": argmax})
        store.release(handle)
    dataset = build_offline_eagle3_dataset(folder, max_len=MAX_LEN)
    counts = count_effective_feature_tokens(folder)
    return {"rows": rows, "dataset": [dataset[i] for i in range(len(dataset))], "counts": dict(counts)}


if __name__ == "__main__":
    main(*sys.argv[1:])
