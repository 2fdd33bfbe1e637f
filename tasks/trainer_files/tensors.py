"""What the file of a row holds, in each format: keys, shapes and dtypes, read from the trainers' own readers. Pure."""

import json
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from storage.float8 import quantize, split
from tasks.trainer_files.base import Row, Tensors

Array = npt.NDArray[Any]


def specforge_tensors(row: Row) -> Tensors:
    """Return what SpecForge 0.2.0 reads offline for EAGLE-3 (`specforge.algorithms.eagle3.data`)."""
    last, joined = _last_and_joined(row)
    return {
        "input_ids": row.input_ids,
        "loss_mask": row.loss_mask,
        "hidden_state": last[None],
        "aux_hidden_state": joined[None],
    }


def speculators_tensors(row: Row) -> Tensors:
    """Return what speculators 0.9.0 reads (`speculators.train.data.ArrowDataset`)."""
    return {"hidden_states": row.read(row.choice.layers), "token_ids": row.input_ids}


def speculators_float8_tensors(row: Row) -> Tensors:
    """Return the same in float8 (`hs_connectors.transfer.FP8Transfer`), which multiplies numbers by their scales.

    States that are stored in float8 keep their numbers, and a scale for each token and layer, float32[num_tokens,
    layers, 1]. Others are rounded as `hs_connectors.fp8_utils` does it, with one scale a token, [num_tokens, 1, 1].
    """
    layers = row.choice.layers
    if row.read_float8 is not None:
        numbers, scales = row.read_float8(layers)
    else:
        states = row.read(layers).astype(ml_dtypes.bfloat16, copy=False)
        rows = quantize(states.view("<u2").reshape(len(states), 1, -1))  # all layers of a token as one row
        numbers, scales = split(rows)
        numbers = numbers.reshape(states.shape)
    return {
        "hidden_states": np.ascontiguousarray(numbers),
        "hidden_states_scales": scales[..., None],
        "token_ids": row.input_ids,
    }


def modelopt_tensors(row: Row) -> Tensors:
    """Return what ModelOpt reads offline (`modelopt.torch.speculative.eagle.utils.OfflineSupervisedDataset`)."""
    last, joined = _last_and_joined(row)
    prenorm = {"hidden_states_prenorm": True} if row.choice.norm == "before" else {}
    return {
        "input_ids": row.input_ids,
        "loss_mask": row.loss_mask,
        "conversation_id": row.name,
        "hidden_states": last,
        "aux_hidden_states": joined,
        **prenorm,
    }


def plain_tensors(row: Row) -> Tensors:
    """Return all that is known of a row: `hidden_states` [num_tokens, layers, hidden_size] in the store's dtype.

    The header's metadata names their layers, in our ids as JSON.
    """
    weight = {} if row.loss_weight is None else {"loss_weight": row.loss_weight}
    return {
        "input_ids": row.input_ids,
        "loss_mask": row.loss_mask,
        **weight,
        "hidden_states": row.read(row.choice.layers),
        "layers": json.dumps(row.choice.layers),
    }


def _last_and_joined(row: Row) -> tuple[Array, Array]:
    """Return the layer that the LM head reads, and those of the drafter side by side: [num_tokens, n * hidden_size]."""
    aux, last = row.choice.aux, row.choice.layers[-1:]
    return row.read(last)[:, 0], row.read(aux).reshape(len(row.input_ids), -1)
