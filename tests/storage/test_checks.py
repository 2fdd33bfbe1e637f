"""Every kind of damage to every file is found and named, set aside, and made good by writing the sample again."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from storage import open_store
from storage.checks import check_store
from storage.codecs import add_checksum
from storage.findings import CheckReport, Finding
from storage.objects import ObjectWriter
from storage.packs import compact
from storage.repairs import repair


def check(filled) -> CheckReport:
    return check_store(filled.path, filled.digest, threads=2)


def found(filled) -> list[tuple[str | None, str]]:
    return [(finding.sample_hash, finding.reason) for finding in check(filled).findings]


def damages(data: bytes, dice: np.random.Generator) -> Iterator[bytes]:
    """Flip the first, the last and some random bits; cut one byte, half and all; put a byte behind and before."""
    for position in (0, 8 * len(data) - 1, *dice.integers(0, 8 * len(data), 8).tolist()):
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        yield bytes(flipped)
    yield from (data[:-1], data[: len(data) // 2], b"", b"\0" + data)


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_a_sound_store_has_no_findings(filled) -> None:
    report = check(filled)
    assert (report.checked, report.findings) == (len(filled.samples), [])
    loose_bytes = report.bytes
    compact(filled.path, filled.digest)
    report = check(filled)
    assert (report.checked, report.findings, report.bytes) == (len(filled.samples), [], loose_bytes)


def write_noise(filled, seed: int) -> Path:
    """Write a sample whose planes of bytes cannot be compressed or are constant: as long as those of any other."""
    bits = np.random.default_rng(seed).integers(0x3F00, 0x4000, (256, 3, 48), np.uint16)
    name = ObjectWriter(filled.path, filled.spec).write(np.array([seed], np.int32).repeat(256), bits).sample_hash
    return filled.path / "objects" / filled.digest / name[:2] / name


@pytest.mark.parametrize("write", [lambda filled, seed: filled.objects()[seed], write_noise])
def test_the_sound_states_of_another_sample_are_noticed(make_filled: Callable, write: Callable) -> None:
    """Its chunks and its index have checksums of their own, and travel with them."""
    filled = make_filled((60, 60))
    victim, other = (write(filled, seed) for seed in (0, 1))
    shard = "hidden_states/c/0/0/0"
    if write is write_noise:
        assert (victim / shard).stat().st_size == (other / shard).stat().st_size
    shutil.copyfile(other / shard, victim / shard)
    assert found(filled) == [(victim.name, "checksum")]
    packed = compact(filled.path, filled.digest)
    assert packed is not None
    assert packed.skipped == [victim.name]


def test_damage_to_any_file_of_a_loose_object_is_found(make_filled: Callable) -> None:
    filled = make_filled((300, 20))
    victim = filled.objects()[0]
    dice = np.random.default_rng(1)
    files = files_of(victim)
    assert len(files) == 5
    for file in files:
        data = file.read_bytes()
        for damaged in damages(data, dice):
            file.write_bytes(damaged)
            assert [name for name, _ in found(filled)] == [victim.name], f"{file.name}: {damaged[:99]!r}"
        file.unlink()
        assert found(filled) == [(victim.name, "torn")]
        file.write_bytes(data)
    assert not found(filled)


def test_damage_to_any_file_of_a_pack_is_found(make_filled: Callable) -> None:
    filled = make_filled((300, 20, 513))
    compact(filled.path, filled.digest, shard_bytes=512 * filled.spec.bytes_per_token)
    (pack,) = filled.packs()
    dice = np.random.default_rng(2)
    files = files_of(pack)
    assert len(files) == 17
    for file in files:
        data = file.read_bytes()
        is_payload = {"hidden_states", "input_ids"} & set(file.parts) and file.name != "zarr.json"
        for damaged in damages(data, dice):
            file.write_bytes(damaged)
            findings = check(filled).findings
            assert findings, f"{file}: {damaged[:99]!r}"
            assert all((finding.sample_hash is not None) == bool(is_payload) for finding in findings)
            assert {finding.pack_id for finding in findings} == {pack.name}
        file.unlink()
        assert {finding.reason for finding in check(filled).findings} == {"torn"}
        file.write_bytes(data)
    assert not found(filled)


def test_a_flipped_bit_in_a_pack_names_its_sample_alone(make_filled: Callable) -> None:
    filled = make_filled((300, 20, 513))
    compact(filled.path, filled.digest)
    shard = filled.packs()[0] / "hidden_states/c/0/0/0"
    data = bytearray(shard.read_bytes())
    data[3] ^= 1
    shard.write_bytes(data)
    assert found(filled) == [(min(filled.samples), "checksum")]


def test_an_object_under_the_wrong_name_is_found(filled) -> None:
    victim = filled.objects()[0]
    wrong = victim.parents[1] / "00" / ("00" + "1" * 62)
    wrong.parent.mkdir(exist_ok=True)
    shutil.copytree(victim, wrong)
    assert found(filled) == [(wrong.name, "metadata")]
    document = (wrong / "zarr.json").read_text().replace(victim.name, wrong.name)
    (wrong / "zarr.json").write_text(document)
    assert found(filled) == [(wrong.name, "hash_mismatch")]


def test_other_token_ids_with_a_good_checksum_are_found(filled) -> None:
    victim = filled.objects()[0]
    file = victim / "input_ids/c/0"
    ids = np.frombuffer(file.read_bytes()[:-4], "<i4").copy()
    ids[0] += 1
    file.write_bytes(add_checksum(ids.tobytes()))
    assert found(filled) == [(victim.name, "hash_mismatch")]


BAD_VALUES = {
    "nan": (np.nan, "non_finite"),
    "infinity": (np.inf, "non_finite"),
    "minus infinity": (-np.inf, "non_finite"),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", BAD_VALUES)
@pytest.mark.parametrize("packed", [False, True], ids=["loose", "packed"])
def test_one_value_that_is_not_finite_is_found(
    make_filled: Callable, sample_of: Callable, dtype: str, name: str, packed: bool
) -> None:
    filled = make_filled((20, 300), storage_dtype=dtype)
    value, reason = BAD_VALUES[name]
    input_ids, states = sample_of(400, 9, filled.spec)
    states[399, 1, 47] = value
    info = ObjectWriter(filled.path, filled.spec).write(input_ids, states)
    if packed:
        compact(filled.path, filled.digest)
    (finding,) = check(filled).findings
    assert (finding.sample_hash, finding.reason) == (info.sample_hash, reason)
    assert "layer 5" in finding.detail
    assert "the first is 399" in finding.detail


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_large_and_tiny_finite_values_are_sound(make_filled: Callable, sample_of: Callable, dtype: str) -> None:
    filled = make_filled((), storage_dtype=dtype)
    input_ids, states = sample_of(10, 9, filled.spec)
    bits = states.view(f"<u{states.itemsize}")
    largest = {"bfloat16": 0x7F7F, "float16": 0x7BFF, "float32": 0x7F7FFFFF}[dtype]
    bits[0], bits[1], bits[2] = largest, largest | 1 << 8 * states.itemsize - 1, 1
    ObjectWriter(filled.path, filled.spec).write(input_ids, states)
    assert not found(filled)


@pytest.mark.parametrize("zero", [0.0, -0.0], ids=str)
def test_a_token_whose_state_is_zero_is_found(make_filled: Callable, sample_of: Callable, zero: float) -> None:
    filled = make_filled(())
    input_ids, states = sample_of(300, 9)
    states[255, 2] = zero
    info = ObjectWriter(filled.path, filled.spec).write(input_ids, states)
    (finding,) = check(filled).findings
    assert (finding.sample_hash, finding.reason) == (info.sample_hash, "all_zero")
    assert "layer final" in finding.detail
    assert "the first is 255" in finding.detail


def test_the_embedding_of_a_padding_token_may_be_zero_but_not_all(make_filled: Callable, sample_of: Callable) -> None:
    filled = make_filled((), layers=(0, 3))
    input_ids, states = sample_of(300, 9, filled.spec)
    states[:299, 0] = 0
    ObjectWriter(filled.path, filled.spec).write(input_ids, states)
    assert not found(filled)
    input_ids, states = sample_of(299, 9, filled.spec)
    states[:, 0] = 0
    info = ObjectWriter(filled.path, filled.spec).write(input_ids, states)
    assert found(filled) == [(info.sample_hash, "all_zero")]


def test_states_after_the_last_token_are_found(make_filled: Callable, sample_of: Callable) -> None:
    """An object whose shard was made from more rows than it says."""
    filled = make_filled((200,))
    (victim,) = filled.objects()
    info = ObjectWriter(filled.path, filled.spec).write(*sample_of(256, 3))
    other = victim.parents[1] / info.sample_hash[:2] / info.sample_hash
    shutil.copyfile(other / "hidden_states/c/0/0/0", victim / "hidden_states/c/0/0/0")
    assert found(filled) == [(victim.name, "row_count")]


def test_only_the_samples_asked_for_are_checked(filled) -> None:
    names = sorted(filled.samples)
    compact(filled.path, filled.digest)
    filled.write(10, seed=70)
    loose = (set(filled.samples) - set(names)).pop()
    report = check_store(filled.path, filled.digest, hashes=[names[1], loose, "0" * 64])
    assert report.checked == 2


def test_a_fraction_is_always_the_samples_of_the_lowest_hashes(make_filled: Callable) -> None:
    filled = make_filled((20,) * 40)
    names = sorted(filled.samples)
    for fraction in (0.0001, 0.3, 0.5, 1.0):
        chosen = [name for name in names if int(name, 16) < fraction * 2**256]
        assert check_store(filled.path, filled.digest, fraction=fraction).checked == len(chosen)
    shutil.rmtree(filled.objects()[0])
    damaged = filled.objects()[0] / "hidden_states/c/0/0/0"
    damaged.write_bytes(b"")
    for fraction, bad in ((0.0001, 0), (0.5, 1)):
        assert len(check_store(filled.path, filled.digest, fraction=fraction).findings) == bad
    report = check_store(filled.path, filled.digest, fraction=0.5, hashes=names[20:])
    assert report.checked == len([name for name in names[20:] if int(name, 16) < 2**255])


def test_progress_reaches_all(filled) -> None:
    seen: list[tuple[int, int]] = []
    check_store(filled.path, filled.digest, threads=3, on_progress=lambda *counts: seen.append(counts))
    assert seen == [(i + 1, len(filled.samples)) for i in range(len(filled.samples))]


def test_a_loose_object_set_aside_is_missing_until_it_is_written_again(filled) -> None:
    victim = filled.objects()[0]
    for n in (1, 2):
        shard = victim / "hidden_states/c/0/0/0"
        shard.write_bytes(shard.read_bytes()[:-1])
        findings = check(filled).findings
        assert repair(filled.path, findings) == 1
        assert repair(filled.path, findings) == 0, "a repeat is harmless"
        assert open_store(filled.path).missing(filled.samples) == [victim.name]
        assert (filled.path / "quarantine" / filled.digest / f"{victim.name}-{n}").is_dir()
        ObjectWriter(filled.path, filled.spec).write(*filled.samples[victim.name])
        assert not found(filled)
    assert open_store(filled.path)[victim.name].hidden_states().tobytes() == filled.samples[victim.name][1].tobytes()


def test_a_packed_sample_set_aside_is_missing_until_it_is_written_and_packed_again(filled) -> None:
    compact(filled.path, filled.digest)
    victim = min(filled.samples)
    shard = filled.packs()[0] / "hidden_states/c/0/0/0"
    data = bytearray(shard.read_bytes())
    data[3] ^= 1
    shard.write_bytes(data)
    findings = check(filled).findings
    assert repair(filled.path, findings) == 1
    assert repair(filled.path, findings) == 0
    store = open_store(filled.path)
    assert store.missing(filled.samples) == [victim]
    assert len(store) == len(filled.samples) - 1
    assert not found(filled), "what is set aside is not found again"
    ObjectWriter(filled.path, filled.spec).write(*filled.samples[victim])
    for _ in range(2):
        store = open_store(filled.path)
        assert store[victim].hidden_states().tobytes() == filled.samples[victim][1].tobytes()
        assert not found(filled)
        compact(filled.path, filled.digest)


def test_a_pack_with_a_damaged_index_is_set_aside_whole(filled) -> None:
    compact(filled.path, filled.digest)
    (pack,) = filled.packs()
    file = pack / "row_start/c/0"
    file.write_bytes(file.read_bytes()[:-1])
    findings = check(filled).findings
    assert [(finding.sample_hash, finding.pack_id) for finding in findings] == [(None, pack.name)]
    assert repair(filled.path, findings) == 1
    assert (filled.path / "quarantine" / filled.digest / f"{pack.name}-1").is_dir()
    assert open_store(filled.path).missing(filled.samples) == list(filled.samples)
    for sample in filled.samples.values():
        ObjectWriter(filled.path, filled.spec).write(*sample)
    compact(filled.path, filled.digest)
    assert filled.packs() == [pack]
    assert not found(filled)
    assert not open_store(filled.path).missing(filled.samples)


def test_a_finding_of_what_has_gone_sets_nothing_aside(filled) -> None:
    assert repair(filled.path, [Finding("0" * 64, "loose", "torn", "", digest=filled.digest)]) == 0
    assert not open_store(filled.path).missing(filled.samples)
