"""States of a batch, split into the planes of bytes that the store compresses, on the device that computed them."""

from collections.abc import Sequence

import torch

from storage.codecs import TOKENS_PER_CHUNK, split_shape


def split_states(states: torch.Tensor, lengths: Sequence[int]) -> list[torch.Tensor]:
    """Split the states of packed samples as `ObjectWriter.write_split` takes them; the device is not waited for.

    Args:
        states: [sum(lengths), num_captured, hidden_size], contiguous.
        lengths: tokens of each sample.

    Returns:
        For each sample uint8 of the shape `codecs.split_shape`, contiguous.
    """
    _, num_captured, hidden_size = states.shape
    size = states.element_size()
    shapes = [split_shape(length, num_captured, hidden_size, size) for length in lengths]
    num_chunks = [shape[0] for shape in shapes]
    _, _, blocks, _, in_block, _ = shapes[0]
    padded = _pad(states.view(torch.uint8), lengths, num_chunks)
    parts = padded.view(sum(num_chunks), blocks, in_block, num_captured, hidden_size, size)
    return list(torch.split(parts.permute(0, 3, 1, 5, 2, 4).contiguous(), num_chunks))


def _pad(rows: torch.Tensor, lengths: Sequence[int], num_chunks: Sequence[int]) -> torch.Tensor:
    """Begin each sample on a token-chunk of its own, and fill up with zeros."""
    padded = rows.new_empty(sum(num_chunks) * TOKENS_PER_CHUNK, *rows.shape[1:])
    start = row = 0
    for length, chunks in zip(lengths, num_chunks, strict=True):
        end = start + chunks * TOKENS_PER_CHUNK
        padded[start : start + length] = rows[row : row + length]
        padded[start + length : end] = 0
        start, row = end, row + length
    return padded
