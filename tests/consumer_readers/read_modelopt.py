"""Read a folder as ModelOpt does, in its environment: OUT MODEL FOLDER..."""

import sys
from pathlib import Path

import torch
from modelopt.torch.speculative.eagle.utils import EagleOfflineDataCollator, OfflineSupervisedDataset
from modelopt.torch.speculative.plugins.modeling_fakebase import FakeBaseModel
from modelopt.torch.speculative.plugins.modeling_final_norm import _maybe_apply_base_final_norm

MAX_LEN = 512


def main(out: str, model: str, *folders: str) -> None:
    base = FakeBaseModel.from_source(model)
    base.lm_head.float()  # logits of bfloat16 have ties
    torch.save([read(folder, base) for folder in folders], out)


def read(folder: str, base: FakeBaseModel) -> dict:
    files = sorted(str(path) for path in Path(folder).rglob("*.pt"))
    dataset = OfflineSupervisedDataset(files, answer_only_loss=True)
    items = [dataset[i] for i in range(len(dataset))]
    with torch.no_grad():
        argmax = [_read_out(base, item) for item in items]
    return {
        "files": files,
        "items": items,
        "batch": EagleOfflineDataCollator(MAX_LEN)(items),
        "argmax": argmax,
        "vocabularies": [torch.load(path, weights_only=True) for path in sorted(Path(folder).glob("d2t-*"))],
    }


def _read_out(base: FakeBaseModel, item: dict) -> torch.Tensor:
    outputs = {"base_hidden_prenorm": item["base_hidden_prenorm"]}
    normed = _maybe_apply_base_final_norm(item["base_model_hidden_states"], outputs, getattr(base, "norm", None))
    return base.lm_head(normed.float()).argmax(-1)


if __name__ == "__main__":
    main(*sys.argv[1:])
