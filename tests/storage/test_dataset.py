"""A store as a torch dataset: what items hold, how batches are padded, and loaders with real worker processes."""

import json
import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from storage import TokensSpec
from storage.dataset import HiddenStateDataset, HiddenStateLoader, pad_batch, to_tensor
from storage.epochs import BatchRules
from storage.errors import ChecksumError, ResumeError, RowCountError, SampleNotFoundError, SpecError
from storage.hashes import names_of
from storage.packs import compact
from storage.samplers import TokenBatchSampler
from storage.tokens import TokensWriter

# Row i of the data is sample ORDER[i]: not in the order of hashes, and two rows are duplicates.
ORDER = (3, 0, 4, 1, 3, 2, 0, 5)
LENGTHS = (40, 300, 7, 256, 90, 513)


@dataclass
class World:
    """A store and a tokens artifact over it; `rows` has what each row must be."""

    path: Path
    tokens_digest: str
    rows: list[tuple[np.ndarray, np.ndarray, np.ndarray]]
    filled: Any

    def open(self, **options: Any) -> HiddenStateDataset:
        return HiddenStateDataset(self.path, self.tokens_digest, **options)


@pytest.fixture
def make_world(make_filled) -> Callable[..., World]:
    def make(**changes: Any) -> World:
        filled = make_filled(LENGTHS[:3], **changes)
        compact(filled.path, filled.digest)
        for seed, num_tokens in enumerate(LENGTHS[3:], start=3):
            filled.write(num_tokens, seed)
        samples = list(filled.samples.values())
        rows = []
        spec = TokensSpec(("data",), "tokenizer", "template")
        with TokensWriter(filled.path, spec) as writer:
            for number, which in enumerate(ORDER):
                input_ids, states = samples[which]
                loss_mask = (np.arange(len(input_ids)) % (number + 2) > 0).astype(np.uint8)
                writer.append(input_ids, loss_mask, 10 * number)
                rows.append((input_ids, loss_mask, states))
            writer.commit()
        return World(filled.path, spec.digest(), rows, filled)

    return make


@pytest.fixture
def world(make_world) -> World:
    return make_world()


def assert_is_row(item: dict[str, torch.Tensor], row: tuple[np.ndarray, np.ndarray, np.ndarray], number: int) -> None:
    input_ids, loss_mask, states = row
    assert {name: value.dtype for name, value in item.items()} == {
        "input_ids": torch.int64,
        "loss_mask": torch.int64,
        "hidden_states": torch.bfloat16,
        "row": torch.int64,
    }
    assert item["input_ids"].tolist() == input_ids.tolist()
    assert item["loss_mask"].tolist() == loss_mask.tolist()
    assert item["row"] == 10 * number
    assert item["hidden_states"].shape == states.shape
    assert np.array_equal(item["hidden_states"].float().numpy(), states.astype(np.float32))


def test_rows_come_in_the_order_of_the_data_with_their_duplicates_and_masks(world: World) -> None:
    dataset = world.open()
    assert len(dataset) == len(ORDER)
    assert dataset.lengths.tolist() == [LENGTHS[which] for which in ORDER]
    for number in (5, 0, 7, 4, 1, 2, 3, 6):
        assert_is_row(dataset[number], world.rows[number], number)
    assert_is_row(dataset[-1], world.rows[-1], len(ORDER) - 1)
    with pytest.raises(IndexError):
        dataset[len(ORDER)]


def test_layers_are_those_asked_for_in_that_order(world: World) -> None:
    dataset = world.open(layers=["final", 2])
    assert dataset.layers == ("final", 2)
    expected = world.rows[3][2][:, [2, 0]]
    assert np.array_equal(dataset[3]["hidden_states"].float().numpy(), expected.astype(np.float32))
    with pytest.raises(SpecError, match="layer 3 was not captured"):
        world.open(layers=[3])


@pytest.mark.parametrize(("dtype", "expected"), [("float16", torch.float16), ("float32", torch.float32)])
def test_other_dtypes_are_kept(make_world, dtype: str, expected: torch.dtype) -> None:
    world = make_world(storage_dtype=dtype)
    found = world.open()[1]["hidden_states"]
    assert found.dtype == expected
    assert np.array_equal(found.numpy(), world.rows[1][2])


def test_float8_states_are_items_in_bfloat16(make_world) -> None:
    dataset = make_world(storage_dtype="float8_e4m3fn").open()
    found = dataset[1]["hidden_states"]
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, to_tensor(dataset.store[names_of(dataset.hashes)[1]].hidden_states()))


def test_a_tensor_is_over_the_memory_of_the_array(world: World) -> None:
    states = world.open().store[next(iter(world.filled.samples))].hidden_states()
    tensor = to_tensor(states)
    assert tensor.data_ptr() == states.__array_interface__["data"][0]
    tensor[0, 0, 0] = 7
    assert states[0, 0, 0] == 7


def test_missing_samples_are_counted_or_left_out(world: World) -> None:
    extra = TokensSpec(("more",), "tokenizer", "template")
    with TokensWriter(world.path, extra) as writer:
        for number, (input_ids, loss_mask, _) in enumerate(world.rows[:3]):
            writer.append(input_ids, loss_mask, 10 * number)
            writer.append(input_ids[:-1], loss_mask[:-1], 10 * number + 5)
        writer.commit()
    with pytest.raises(
        SampleNotFoundError, match=r"3 of 6 rows have no states in .* \(the first is sample [0-9a-f]{64}"
    ):
        HiddenStateDataset(world.path, extra.digest())
    dataset = HiddenStateDataset(world.path, extra.digest(), missing="skip")
    assert len(dataset) == 3
    for number in range(3):
        assert_is_row(dataset[number], world.rows[number], number)


def test_tokens_that_are_not_there_and_states_that_do_not_fit_them_are_refused(world: World) -> None:
    with pytest.raises(SpecError, match="has no tokens artifact 0000"):
        HiddenStateDataset(world.path, "0" * 64)
    document = next(path for path in world.filled.objects() if len(world.filled.samples[path.name][0]) == LENGTHS[3])
    attributes = json.loads((document / "zarr.json").read_text())
    attributes["attributes"]["num_tokens"] -= 1
    (document / "zarr.json").write_text(json.dumps(attributes))
    with pytest.raises(RowCountError, match="row 0 of the tokens artifact has 256 tokens and 255 rows of states"):
        world.open()[0]


def test_padding_is_at_the_end_and_marked(world: World) -> None:
    dataset = world.open()
    batch = pad_batch([dataset[i] for i in (1, 2, 5)], pad_token_id=9)
    assert batch["row"].tolist() == [10, 20, 50]
    assert batch["hidden_states"].shape == (3, 90, 3, 48)
    assert batch["hidden_states"].dtype == torch.bfloat16
    for i, number in enumerate((1, 2, 5)):
        input_ids, loss_mask, states = world.rows[number]
        length = len(input_ids)
        assert batch["input_ids"][i].tolist() == input_ids.tolist() + [9] * (90 - length)
        assert batch["loss_mask"][i].tolist() == loss_mask.tolist() + [0] * (90 - length)
        assert batch["attention_mask"][i].tolist() == [1] * length + [0] * (90 - length)
        assert np.array_equal(batch["hidden_states"][i, :length].float().numpy(), states.astype(np.float32))
        assert not batch["hidden_states"][i, length:].any()


def make_loader(
    world: World, rank: int = 0, world_size: int = 1, dataset: HiddenStateDataset | None = None, **options: Any
) -> HiddenStateLoader:
    dataset = world.open() if dataset is None else dataset
    rules = BatchRules(max_tokens=600, max_padding=0.4, seed=1)
    sampler = TokenBatchSampler(dataset.hashes, dataset.lengths, rules, rank=rank, world_size=world_size)
    return HiddenStateLoader(dataset, sampler, **options)


WORKERS = [{"num_workers": 0}, {"num_threads": 2}] + [
    {"num_workers": 2, "multiprocessing_context": start} for start in ("fork", "spawn")
]


@pytest.mark.parametrize("options", WORKERS, ids=["none", "threads", "fork", "spawn"])
def test_a_loader_gives_each_row_once_an_epoch(world: World, options: dict) -> None:
    loader = make_loader(world, **options)
    expected = [len(batch) for batch in loader.sampler]
    batches = list(loader)
    assert [len(batch["row"]) for batch in batches] == expected
    assert loader.sampler.epoch == 1
    found = [
        ({"loss_mask": mask[:n], "input_ids": ids[:n], "hidden_states": states[:n], "row": row}, int(row) // 10)
        for batch in batches
        for ids, mask, states, row, n in zip(
            *(batch[name] for name in ("input_ids", "loss_mask", "hidden_states", "row")),
            batch["attention_mask"].sum(1).tolist(),
            strict=True,
        )
    ]
    assert sorted(number for _, number in found) == list(range(len(ORDER)))
    for item, number in found:
        assert_is_row(item, world.rows[number], number)


def test_training_is_taken_up_exactly_whatever_workers_have_fetched_ahead(world: World) -> None:
    options = {"num_workers": 2, "multiprocessing_context": "fork", "prefetch_factor": 4}
    whole = [batch["row"].tolist() for batch in make_loader(world)]
    assert len(whole) >= 4
    loader = make_loader(world, **options)
    taken = []
    for batch in loader:
        taken.append(batch["row"].tolist())
        if len(taken) == 2:
            break
    state = json.loads(json.dumps(loader.state_dict()))
    compact(world.path, world.filled.digest)  # moves samples meanwhile
    resumed = make_loader(world, **options)
    resumed.load_state_dict(state)
    assert len(resumed) == len(whole) - 2
    assert taken + [batch["row"].tolist() for batch in resumed] == whole
    assert [batch["row"].tolist() for batch in loader] == whole[2:], "the same loader goes on where its loop stopped"


def test_epochs_follow_each_other_and_differ(world: World) -> None:
    loader = make_loader(world)
    epochs = [[batch["row"].tolist() for batch in loader] for _ in range(3)]
    assert loader.sampler.epoch == 3
    assert all(sorted(row for batch in epoch for row in batch) == list(range(0, 80, 10)) for epoch in epochs)
    assert epochs[0] != epochs[1] or epochs[1] != epochs[2]


def test_two_ranks_with_workers_share_an_epoch(world: World) -> None:
    loaders = [make_loader(world, rank, 2, num_workers=1, multiprocessing_context="fork") for rank in range(2)]
    batches = [[batch["row"].tolist() for batch in loader] for loader in loaders]
    assert len(batches[0]) == len(batches[1])
    seen = Counter(row for rank in batches for batch in rank for row in batch)
    assert seen == {10 * number: 1 for number in range(len(ORDER))}


def test_a_state_of_another_dataset_is_refused(world: World) -> None:
    state = make_loader(world).state_dict()
    with pytest.raises(ResumeError):
        make_loader(world).load_state_dict({**state, "data": "0" * 64})


def test_torchs_own_sampler_and_loader_serve_too(world: World) -> None:
    loader = torch.utils.data.DataLoader(
        world.open(), batch_size=3, shuffle=True, collate_fn=pad_batch, num_workers=1, multiprocessing_context="fork"
    )
    assert sorted(row for batch in loader for row in batch["row"].tolist()) == [10 * i for i in range(len(ORDER))]


def test_a_dataset_survives_pickling_with_the_rows_that_it_had(world: World) -> None:
    dataset = world.open()
    copy = pickle.loads(pickle.dumps(dataset))  # noqa: S301 made in this line
    assert np.array_equal(copy.hashes, dataset.hashes)
    assert_is_row(copy[2], world.rows[2], 2)
    assert len(pickle.dumps(dataset)) < 2000 + 8 * len(dataset)


@pytest.mark.parametrize("ahead", [{}, {"num_workers": 2}, {"num_threads": 2}], ids=str)
def test_batches_are_the_same_where_memory_is_used_again(world: World, ahead: dict[str, int]) -> None:
    reusing = world.open(reuse_memory=True)
    batches = [
        list(make_loader(world, dataset=world.open())),
        list(make_loader(world, dataset=reusing, **ahead)),
    ]
    assert len(batches[0]) == len(batches[1]) > 1
    for fresh, reused in zip(*batches, strict=True):
        assert fresh.keys() == reused.keys()
        assert all(torch.equal(fresh[name], reused[name]) for name in fresh)
    assert len({reusing[i]["hidden_states"].data_ptr() for i in (7, 1, 2)}) == 1


def test_damage_reaches_the_training_loop_from_a_worker(world: World) -> None:
    shard = world.filled.objects()[0] / "hidden_states/c/0/0/0"
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.write_bytes(data)
    with pytest.raises(ChecksumError, match="use aerie validate --repair"):
        list(make_loader(world, num_workers=1, multiprocessing_context="fork"))
