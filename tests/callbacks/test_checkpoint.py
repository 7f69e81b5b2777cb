"""Checkpoints: whole or not at all, and refused in one sentence when they are damaged."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedtail import FedtailError
from fedtail.callbacks import Best, Checkpoint, Snapshot
from fedtail.tensors import unpack_tensors


@dataclass(frozen=True)
class State:
    model: dict[str, Tensor]
    rate: float = 0.1 + 0.2
    momentum: Tensor | None = None


def snapshot(round: int, clients: dict[int, dict[str, Tensor]] | None = None) -> Snapshot:
    return Snapshot(round, State({"w": torch.tensor([float(round)])}), clients or {})


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    # Prepare
    clients = {3: {"c": torch.tensor([1, 2])}, 11: {}}

    # Execute
    Checkpoint(tmp_path).save(snapshot(5, clients))
    loaded = Checkpoint(tmp_path).load(State)

    # Assert
    assert loaded is not None
    assert loaded.round == 5
    assert loaded.state.rate == 0.1 + 0.2
    assert loaded.state.momentum is None
    assert loaded.state.model["w"].tolist() == [5.0]
    assert loaded.client_states[3]["c"].tolist() == [1, 2]
    assert loaded.client_states[11] == {}


def test_nothing_saved_is_nothing_loaded(tmp_path: Path) -> None:
    assert Checkpoint(tmp_path / "none").load(State) is None


def test_the_files_of_the_last_two_stay(tmp_path: Path) -> None:
    saving = Checkpoint(tmp_path)
    for number in (1, 2, 3):
        saving.save(snapshot(number, {0: {"c": torch.ones(1)}}))
    assert files(tmp_path) == [
        "clients-000002.safetensors",
        "clients-000003.safetensors",
        "clients.jsonl",
        "manifest-000002.json",
        "manifest-000003.json",
        "server-000002.safetensors",
        "server-000003.safetensors",
    ]


def test_the_two_are_kept_after_loading_too(tmp_path: Path) -> None:
    saving = Checkpoint(tmp_path)
    for number in (1, 2):
        saving.save(snapshot(number))
    going_on = Checkpoint(tmp_path)
    assert going_on.load(State) is not None
    assert len(files(tmp_path)) == 4
    going_on.save(snapshot(3))
    assert files(tmp_path) == [
        "manifest-000002.json",
        "manifest-000003.json",
        "server-000002.safetensors",
        "server-000003.safetensors",
    ]


@pytest.mark.parametrize(
    "name",
    ["manifest-000002.json", "server-000002.safetensors", "clients-000002.safetensors"],
)
@pytest.mark.parametrize("change", ["truncated", "one bit", "removed"])
def test_a_damaged_newer_one_is_said_and_the_older_one_used(
    tmp_path: Path, name: str, change: str
) -> None:
    # Prepare
    saving, path = Checkpoint(tmp_path), tmp_path / name
    for number in (1, 2):
        saving.save(snapshot(number, {0: {"c": torch.full((1,), float(number))}}))
    data = path.read_bytes()
    if change == "removed" and name != "manifest-000002.json":
        path.unlink()
    elif change == "one bit":
        path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    else:
        path.write_bytes(data[: len(data) // 2])

    # Execute
    going_on = Checkpoint(tmp_path)
    loaded = going_on.load(State)

    # Assert
    assert loaded is not None
    assert (loaded.round, loaded.client_states[0]["c"].tolist()) == (1, [1.0])
    (said,) = going_on.damage
    assert f"'{path}'" in said
    going_on.save(snapshot(2, {0: {"c": torch.full((1,), 2.0)}}))
    again = Checkpoint(tmp_path).load(State)
    assert again is not None and again.round == 2
    assert len(files(tmp_path)) == 7


def test_one_of_many_files_that_cannot_be_written_leaves_the_checkpoint_before(
    tmp_path: Path,
) -> None:
    saving = Checkpoint(tmp_path)
    saving.save(snapshot(1, {client: {"c": torch.ones(1)} for client in range(40)}))
    (tmp_path / "clients-000002.safetensors").mkdir()  # nothing can be renamed there
    with pytest.raises(FedtailError, match=r"^cannot write '.*clients-000002\.safetensors'"):
        saving.save(snapshot(2, {client: {"c": torch.zeros(1)} for client in range(40)}))
    loaded = Checkpoint(tmp_path).load(State)
    assert loaded is not None and loaded.round == 1
    assert {float(state["c"]) for state in loaded.client_states.values()} == {1.0}


def test_if_none_is_whole_one_sentence_says_why(tmp_path: Path) -> None:
    saving = Checkpoint(tmp_path)
    for number in (1, 2):
        saving.save(snapshot(number))
        (tmp_path / f"server-00000{number}.safetensors").write_bytes(b"")
    said = damaged(tmp_path)
    assert said.startswith("no checkpoint is whole: the checkpoint file '")
    assert said.count("is missing, truncated or changed") == 2


def test_the_record_of_the_round_is_saved_with_it(tmp_path: Path) -> None:
    record = {"round": 1, "loss": float("nan")}
    Checkpoint(tmp_path).save(Snapshot(1, State({"w": torch.ones(1)}), {}, record))
    loaded = Checkpoint(tmp_path).load(State)
    assert loaded is not None
    assert loaded.record == {"round": 1, "loss": None}


def packed(folder: Path) -> dict[str, list[str]]:
    """Return whose states each pack holds."""
    return {
        path.name[8:14]: sorted(unpack_tensors(path.read_bytes(), "")) for path in packs(folder)
    }


def packs(folder: Path) -> list[Path]:
    return sorted(folder.glob("clients-*.safetensors"))


def states(*clients: int) -> dict[int, dict[str, Tensor]]:
    return {client: {"c": torch.full((1,), float(client))} for client in clients}


def test_a_state_that_did_not_change_is_not_written_again(tmp_path: Path) -> None:
    saving, held = Checkpoint(tmp_path), states(0, 1, 2)
    saving.save(snapshot(1, held))
    saving.save(replace(snapshot(2, {**held, **states(2)}), changed=[2]))
    assert packed(tmp_path) == {"000001": ["0/c", "1/c", "2/c"], "000002": ["2/c"]}
    loaded = Checkpoint(tmp_path).load(State)
    assert loaded is not None
    assert {k: float(s["c"]) for k, s in loaded.client_states.items()} == {0: 0, 1: 1, 2: 2}


def test_a_pack_of_which_half_is_out_of_date_is_dissolved(tmp_path: Path) -> None:
    # Prepare: four clients in the pack of round 1, of which one more is used in each round.
    saving, held = Checkpoint(tmp_path), states(0, 1, 2, 3)
    saving.save(snapshot(1, held))

    # Execute
    seen = []
    for number in (2, 3, 4, 5):
        held |= {number - 2: {"c": torch.full((1,), 10.0 * number)}}
        saving.save(replace(snapshot(number, held), changed=[number - 2]))
        seen.append(packed(tmp_path))

    # Assert: in round 3 two of four are left, and they move; the old pack stays for manifest 2.
    whole = ["0/c", "1/c", "2/c", "3/c"]
    assert seen[1] == {"000001": whole, "000002": ["0/c"], "000003": ["1/c", "2/c", "3/c"]}
    assert seen[2] == {**{k: v for k, v in seen[1].items() if k != "000001"}, "000004": ["2/c"]}
    assert seen[3] == {
        "000002": ["0/c"],
        "000003": ["1/c", "2/c", "3/c"],
        "000004": ["2/c"],
        "000005": ["1/c", "3/c"],
    }
    loaded = Checkpoint(tmp_path).load(State)
    assert loaded is not None
    assert {k: float(s["c"]) for k, s in loaded.client_states.items()} == {
        0: 20.0, 1: 30.0, 2: 40.0, 3: 50.0
    }  # fmt: skip


@pytest.mark.parametrize("damaged", [0, 1])
def test_every_kept_checkpoint_has_the_states_of_its_round(tmp_path: Path, damaged: int) -> None:
    # 40 rounds of 3 of 10 clients drawn at random, a state is the round that it was set in; the
    # folder is loaded again in the middle.
    draw, held, expected = random.Random(0), states(*range(10)), []
    saving = Checkpoint(tmp_path)
    for number in range(1, 41):
        chosen = draw.sample(range(10), 3) if number > 1 else list(held)
        held |= {k: {"c": torch.full((1,), float(number))} for k in chosen}
        saving.save(replace(snapshot(number, held), changed=chosen))
        expected.append({k: float(s["c"]) for k, s in held.items()})
        if number == 20:
            saving = Checkpoint(tmp_path)
            assert saving.load(State) is not None
        assert sum(map(len, packed(tmp_path).values())) <= 2 * 10 + 20  # twice what is remembered
    if damaged:
        (tmp_path / "manifest-000040.json").write_bytes(b"")
    loaded = Checkpoint(tmp_path).load(State)
    assert loaded is not None and loaded.round == 40 - damaged
    assert {k: float(s["c"]) for k, s in loaded.client_states.items()} == expected[-1 - damaged]


def test_what_a_checkpoint_writes_does_not_grow_with_those_ever_used(tmp_path: Path) -> None:
    saving, held, written = Checkpoint(tmp_path), states(*range(1000)), []
    saving.save(snapshot(1, held))
    for number in range(2, 12):
        chosen = range(10 * number, 10 * number + 10)
        held |= {k: {"c": torch.zeros(1)} for k in chosen}
        before = (tmp_path / "clients.jsonl").stat().st_size
        saving.save(replace(snapshot(number, held), changed=chosen))
        new = (tmp_path / "clients.jsonl").stat().st_size - before
        files = [f"clients-{number:06d}.safetensors", f"manifest-{number:06d}.json"]
        written.append(new + sum((tmp_path / name).stat().st_size for name in files))
    # Ten states of 4 bytes with their names, one line and one manifest of some hundred bytes each.
    assert max(written) < 2500


def test_a_line_that_no_manifest_stands_on_is_cut_off(tmp_path: Path) -> None:
    Checkpoint(tmp_path).save(snapshot(1, states(0)))
    journal = tmp_path / "clients.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"file": "clients-000002.safeten')
    going_on = Checkpoint(tmp_path)
    loaded = going_on.load(State)
    assert loaded is not None
    going_on.save(snapshot(2, states(1)))
    lines = journal.read_bytes().splitlines(keepends=True)
    assert lines[0] == whole
    assert [json.loads(line)["clients"] for line in lines] == [[0], [1]]


def test_a_damaged_journal_is_found_out(tmp_path: Path) -> None:
    Checkpoint(tmp_path).save(snapshot(1, states(0)))
    path = tmp_path / "clients.jsonl"
    path.write_bytes(path.read_bytes().replace(b"000001", b"000007"))
    assert f"'{path}' is missing, truncated or changed" in damaged(tmp_path)
    path.unlink()
    assert f"'{path}' is missing, truncated or changed" in damaged(tmp_path)


def test_without_states_there_is_no_journal(tmp_path: Path) -> None:
    Checkpoint(tmp_path).save(snapshot(1))
    assert files(tmp_path) == ["manifest-000001.json", "server-000001.safetensors"]


def test_a_loaded_checkpoint_goes_on_without_writing_all_again(tmp_path: Path) -> None:
    Checkpoint(tmp_path).save(snapshot(1, states(0, 1, 2)))
    going_on = Checkpoint(tmp_path)
    loaded = going_on.load(State)
    assert loaded is not None
    going_on.save(Snapshot(2, loaded.state, loaded.client_states, changed=()))
    assert list(packed(tmp_path)) == ["000001"]
    again = Checkpoint(tmp_path).load(State)
    assert again is not None and again.round == 2 and set(again.client_states) == {0, 1, 2}


@pytest.mark.parametrize(("every", "saved"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (10, [5])])
def test_every_so_many_rounds_and_the_last(tmp_path: Path, every: int, saved: list[int]) -> None:
    saving, found = Checkpoint(tmp_path, every), []
    for number in range(1, 6):
        saving.on_snapshot(replace(snapshot(number), last=number == 5))
        path = tmp_path / f"server-{number:06d}.safetensors"
        found += [number] if path.exists() else []
    assert found == saved


def test_a_kill_before_the_manifest_leaves_the_old_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Prepare
    Checkpoint(tmp_path).save(snapshot(1, {0: {"c": torch.tensor([1.0])}}))
    replace = Path.replace

    def killed(self: Path, target: Path) -> Path:
        if target.name == "manifest-000002.json":
            raise KeyboardInterrupt
        return replace(self, target)

    going_on = Checkpoint(tmp_path)
    assert going_on.load(State) is not None

    # Execute
    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        going_on.save(snapshot(2, {0: {"c": torch.tensor([2.0])}}))
    loaded = Checkpoint(tmp_path).load(State)

    # Assert
    assert loaded is not None
    assert loaded.round == 1
    assert loaded.client_states[0]["c"].tolist() == [1.0]


def test_left_overs_do_not_matter(tmp_path: Path) -> None:
    Checkpoint(tmp_path).save(snapshot(1))
    (tmp_path / ".server-000002.safetensors.99.tmp").write_bytes(b"half")
    (tmp_path / "server-000002.safetensors").write_bytes(b"half")
    loaded = Checkpoint(tmp_path).load(State)
    assert loaded is not None
    assert loaded.round == 1
    Checkpoint(tmp_path).save(snapshot(2))
    assert files(tmp_path) == ["manifest-000002.json", "server-000002.safetensors"]


def damaged(path: Path) -> str:
    with pytest.raises(FedtailError) as refused:
        Checkpoint(path).load(State)
    return str(refused.value)


@pytest.mark.parametrize("name", ["server-000001.safetensors", "clients-000001.safetensors"])
def test_a_truncated_file_is_one_sentence(tmp_path: Path, name: str) -> None:
    Checkpoint(tmp_path).save(snapshot(1, {0: {"c": torch.ones(3)}}))
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:-1])
    assert damaged(tmp_path) == (
        f"no checkpoint is whole: the checkpoint file '{path}' is missing, truncated or changed; "
        f"if you remove '{tmp_path}', the run starts again"
    )


def test_one_changed_bit_is_seen(tmp_path: Path) -> None:
    Checkpoint(tmp_path).save(snapshot(1))
    path = tmp_path / "server-000001.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert "truncated or changed" in damaged(tmp_path)


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    Checkpoint(tmp_path).save(snapshot(1))
    (tmp_path / "server-000001.safetensors").unlink()
    assert "missing" in damaged(tmp_path)


def changed(path: Path, **changes: Any) -> None:
    """Write another manifest, with its digest."""
    (file,) = path.glob("manifest-*.json")
    manifest = {**json.loads(file.read_text()), **changes}
    del manifest["sha256"]
    digest = hashlib.sha256(json.dumps(manifest).encode()).hexdigest()
    file.write_text(json.dumps({**manifest, "sha256": digest}))


def test_a_manifest_of_another_format_names_its_writer(tmp_path: Path) -> None:
    Checkpoint(tmp_path).save(snapshot(1))
    changed(tmp_path, format=99, version="9.9")
    assert "was written by fedtail 9.9 in format 99" in damaged(tmp_path)
    assert "reads format 3" in damaged(tmp_path)


def test_a_manifest_of_format_1_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"format": 1, "version": "0.0"}')
    assert "was written by fedtail 0.0 in format 1" in damaged(tmp_path)


@pytest.mark.parametrize("content", ["", '{"format": 3, "rou', "[]", "null"])
def test_a_torn_manifest_is_one_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest-000001.json").write_text(content)
    assert "is truncated or not JSON" in damaged(tmp_path)


def test_the_state_of_another_method_is_one_sentence(tmp_path: Path) -> None:
    Checkpoint(tmp_path).save(snapshot(1))
    changed(tmp_path, state={"duals": [1, 2]})
    assert "does not describe this run" in damaged(tmp_path)


def test_the_best_model_is_saved_once_and_comes_back(tmp_path: Path) -> None:
    # Prepare: round 1 is the best, and rounds 2 and 3 are not better.
    best = Best(1, 0.1 + 0.2, 0, {"w": torch.tensor([0.1])})
    saving = Checkpoint(tmp_path)

    # Execute
    for number in (1, 2, 3):
        saving.save(replace(snapshot(number), best=replace(best, waited=number - 1)))
    loaded = Checkpoint(tmp_path).load(State)

    # Assert: the file of round 1 is named by the newest two, and every bit is there.
    assert [name for name in files(tmp_path) if name.startswith("best")] == [
        "best-000001.safetensors"
    ]
    assert loaded is not None and loaded.best is not None
    assert (loaded.best.round, loaded.best.value, loaded.best.waited) == (1, 0.1 + 0.2, 2)
    assert torch.equal(loaded.best.model["w"], torch.tensor([0.1]))


def test_an_older_best_model_goes_when_no_checkpoint_names_it(tmp_path: Path) -> None:
    saving = Checkpoint(tmp_path)
    for number in (1, 2, 3):
        best = Best(number, float(number), 0, {"w": torch.ones(1)})
        saving.save(replace(snapshot(number), best=best))
    assert sorted(name for name in files(tmp_path) if name.startswith("best")) == [
        "best-000002.safetensors",
        "best-000003.safetensors",
    ]


def test_a_damaged_best_model_is_found_out(tmp_path: Path) -> None:
    best = Best(1, 0.5, 0, {"w": torch.ones(1)})
    Checkpoint(tmp_path).save(replace(snapshot(1), best=best))
    (tmp_path / "best-000001.safetensors").write_bytes(b"")
    assert "best-000001.safetensors' is missing, truncated or changed" in damaged(tmp_path)
