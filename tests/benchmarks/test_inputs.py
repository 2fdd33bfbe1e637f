"""The token ids that models are measured on: random ones, and the chats that Aerie ships."""

import numpy as np
from inputs import STRIDE, cut, find_first, make_inputs, read_chats

CHATS = [np.arange(100, dtype=np.int32), np.arange(1000, 1200, dtype=np.int32)]


def test_a_sequence_begins_where_a_chat_does_and_runs_on_into_the_next():
    first, second, third, fourth = cut(CHATS, [10, 250, 5, 5])

    assert first.tolist() == list(range(10))
    assert second.tolist() == [*range(1000, 1200), *range(50)]
    assert third.tolist() == list(range(STRIDE, STRIDE + 5))
    assert fourth.tolist() == list(range(1000 + STRIDE, 1000 + STRIDE + 5))


def test_the_real_model_reads_real_chats(smollm2):
    chats = read_chats(smollm2)
    lengths = (1, 17, 2048, 32)

    sequences = make_inputs("smollm2", smollm2, 49152, lengths, seed=0)

    assert [len(ids) for ids in sequences] == list(lengths)
    assert all(ids.dtype == np.int32 and 0 <= ids.min() <= ids.max() < 49152 for ids in sequences)
    assert {int(ids[0]) for ids in sequences} == {1}, "each begins as a chat does, with <|im_start|>"
    assert sequences[2].tolist() == np.concatenate(chats[2:])[:2048].tolist()


def test_a_random_model_is_given_random_ids_the_same_every_time(tmp_path):
    drawn, again, other = (make_inputs("llama", tmp_path, 300, (3, 70), seed) for seed in (0, 0, 1))

    assert [ids.tolist() for ids in drawn] == [ids.tolist() for ids in again]
    assert [ids.tolist() for ids in drawn] != [ids.tolist() for ids in other]
    assert max(int(ids.max()) for ids in drawn) < 300


def test_a_token_counts_where_what_comes_before_it_is_new():
    chat = np.array([7, 8, 9], np.int32)

    firsts = find_first([chat, np.array([7, 8, 5, 9], np.int32), chat[1:]])

    assert [first.tolist() for first in firsts] == [[True] * 3, [False, False, True, True], [True, True]]
