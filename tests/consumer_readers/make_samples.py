"""What trainers make of samples, by their own code; run by the Python of an environment that has them.

    python make_samples.py TRAINER IN OUT

IN is a `torch.save` of jobs: {"rows": [{"input_ids", "loss_mask": int64[n], "aux": bfloat16[n, k, h], "last":
bfloat16[n, h]}], "length": of samples or of a batch, "options": more}. OUT gets for each {"samples": [...], "batch":
{...}}. It imports nothing of Aerie, and rows go to trainers as the files that they read.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch


def run_specforge(rows, length, _options, folder):
    from specforge.algorithms.eagle3.data import build_offline_collator, normalize_offline_sample
    from specforge.runtime.data_plane.feature_store import load_feature_file

    samples = []
    for i, row in enumerate(rows):
        file = folder / f"{i}.ckpt"
        stored = {"aux_hidden_state": row["aux"].flatten(1)[None], "hidden_state": row["last"][None]}
        torch.save({"input_ids": row["input_ids"], "loss_mask": row["loss_mask"], **stored}, file)
        samples.append(normalize_offline_sample(load_feature_file(str(file)), length))
    return samples, build_offline_collator()(samples)


def run_speculators(rows, length, options, folder):
    from datasets import Dataset
    from safetensors.torch import save_file
    from speculators.models.eagle3.data import shift_batch
    from speculators.train.data import ArrowDataset, CollateFn

    columns = {name: [row[name].tolist() for row in rows] for name in ("input_ids", "loss_mask")}
    data = Dataset.from_dict({**columns, "seq_len": [len(row["input_ids"]) for row in rows]}).with_format("torch")
    data.save_to_disk(folder)
    (folder / "hidden_states").mkdir()
    for i, row in enumerate(rows):
        states = torch.cat([row["aux"], row["last"][:, None]], dim=1).contiguous()
        file = folder / "hidden_states" / f"hs_{i}.safetensors"
        save_file({"hidden_states": states, "token_ids": row["input_ids"]}, file)
    dataset = ArrowDataset(length, folder, on_missing="raise")
    samples = [dataset[i] for i in range(len(rows))]
    _, num_aux, width = rows[0]["aux"].shape
    preprocess = shift_batch if options["shift"] else None
    return samples, CollateFn(length, width, num_aux, options["dtype"], preprocess)(samples)


def run_modelopt(rows, length, options, folder):
    from modelopt.torch.speculative.eagle.utils import EagleOfflineDataCollator, OfflineSupervisedDataset

    files = []
    for i, row in enumerate(rows):
        files.append(folder / f"{i}.pt")
        states = {"hidden_states": row["last"], "aux_hidden_states": row["aux"].flatten(1)}
        prenorm = {"hidden_states_prenorm": True} if options["prenorm"] else {}
        tokens = {"input_ids": row["input_ids"], "loss_mask": row["loss_mask"], "conversation_id": str(i)}
        torch.save({**tokens, **states, **prenorm}, files[-1])
    dataset = OfflineSupervisedDataset(files, answer_only_loss=options["answer_only_loss"])
    samples = [dataset[i] for i in range(len(rows))]
    return samples, EagleOfflineDataCollator(length)(samples)


def main():
    trainer, given, out = sys.argv[1:]
    run = {"specforge": run_specforge, "speculators": run_speculators, "modelopt": run_modelopt}[trainer]
    made = []
    for job in torch.load(given, weights_only=True):
        with TemporaryDirectory() as folder:
            samples, batch = run(job["rows"], job["length"], job["options"], Path(folder))
        made.append({"samples": samples, "batch": batch})
    torch.save(made, out)


if __name__ == "__main__":
    main()
