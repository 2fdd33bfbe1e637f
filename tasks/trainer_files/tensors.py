"""What the file of a row holds, in each format: keys, shapes and dtypes, read from the trainers' own readers. Pure."""

import json
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tasks.trainer_files.base import Row, Tensors


def specforge_tensors(row: Row) -> Tensors:
    """Return what SpecForge 0.2.0 reads offline for EAGLE-3 (`specforge.algorithms.eagle3.data`)."""
    return {
        "input_ids": row.input_ids,
        "loss_mask": row.loss_mask,
        "hidden_state": _last(row)[None],
        "aux_hidden_state": _joined(row)[None],
    }


def speculators_tensors(row: Row) -> Tensors:
    """Return what speculators 0.9.0 reads (`speculators.train.data.ArrowDataset`)."""
    return {"hidden_states": np.ascontiguousarray(row.states), "token_ids": row.input_ids}


def speculators_float8_tensors(row: Row) -> Tensors:
    """Return the same in float8 (`hs_connectors.transfer.FP8Transfer`), which multiplies numbers by their scales.

    States that are stored in float8 keep their numbers, and a scale for each token and layer, float32[num_tokens,
    layers, 1]. Others are rounded as `hs_connectors.fp8_utils` does it, with one scale a token, [num_tokens, 1, 1].
    """
    states, scales = row.states, row.scales
    if scales is None:
        from tasks.trainer_files.torch_files import round_to_float8  # noqa: PLC0415 - torch takes a second

        states, scales = round_to_float8(states)
    else:
        scales = scales[..., None]
    numbers, scales = np.ascontiguousarray(states), np.ascontiguousarray(scales)
    return {"hidden_states": numbers, "hidden_states_scales": scales, "token_ids": row.input_ids}


def modelopt_tensors(row: Row) -> Tensors:
    """Return what ModelOpt reads offline (`modelopt.torch.speculative.eagle.utils.OfflineSupervisedDataset`)."""
    prenorm = {"hidden_states_prenorm": True} if row.choice.norm == "before" else {}
    return {
        "input_ids": row.input_ids,
        "loss_mask": row.loss_mask,
        "conversation_id": row.name,
        "hidden_states": _last(row),
        "aux_hidden_states": _joined(row),
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
        "hidden_states": np.ascontiguousarray(row.states),
        "layers": json.dumps(row.choice.layers),
    }


def as_bfloat16(states: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return states as bfloat16, rounded to nearest where they are of another dtype."""
    return states if states.dtype == ml_dtypes.bfloat16 else states.astype(ml_dtypes.bfloat16)


def _last(row: Row) -> npt.NDArray[Any]:
    return np.ascontiguousarray(row.states[:, -1])


def _joined(row: Row) -> npt.NDArray[Any]:
    """Return the layers that a drafter reads, side by side: [num_tokens, layers * hidden_size]."""
    return np.ascontiguousarray(row.states[:, :-1]).reshape(len(row.states), -1)
