"""Memory of batches: taken again once nobody has it, and never before."""

import gc
import threading

import numpy as np
import torch

from storage.batch_memory import LEAST_BYTES, Blocks, fill_rows, make_values


def address(block: np.ndarray) -> int:
    return int(block.ctypes.data)


def test_what_was_let_go_is_taken_again_by_what_fits_into_it() -> None:
    blocks = Blocks()
    large, small = blocks.take(1000), blocks.take(100)
    places = address(large), address(small)
    del large, small
    assert address(first := blocks.take(80)) == places[1]
    assert address(second := blocks.take(900)) == places[0]
    assert (len(first), len(second)) == (80, 900)


def test_what_somebody_has_is_not_given_to_another() -> None:
    blocks = Blocks()
    tensor = torch.from_numpy(blocks.take(64))[8:].view(torch.int16).view(4, 7)
    array = tensor.numpy()
    del tensor
    gc.collect()
    array[:] = 7
    others = [blocks.take(64) for _ in range(3)]
    for other in others:
        other[:] = 0
    assert (array == 7).all()
    place = address(array) - 8
    del array
    assert address(blocks.take(64)) == place


def test_a_block_that_is_too_small_is_not_kept_beside_its_successor() -> None:
    blocks = Blocks()
    for num_bytes in range(100, 200):
        blocks.take(num_bytes)
    assert len(blocks._free) + len(blocks._returned) == 1
    blocks.clear()
    assert (blocks._free, list(blocks._returned)) == ([], [])


def test_threads_have_each_their_own() -> None:
    blocks, wrong = Blocks(), []

    def work(number: int) -> None:
        for _ in range(300):
            mine = blocks.take(1000 + number)
            mine[:] = number
            if (mine != number).any():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_what_is_not_filled_is_zero_whatever_was_there_before() -> None:
    rows = LEAST_BYTES // 8
    for _ in range(3):  # the second and third have the memory of the one before
        out = make_values((rows, 4), torch.bfloat16)
        fill_rows(torch.ones(rows - 2, 4, dtype=torch.bfloat16), out)
        assert (out[:-2] == 1).all()
        assert (out[-2:] == 0).all()
        out[:] = 9
        del out
