"""The weights that ``probe.step`` records: by one algorithm in a run, which the manifest names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from probe import Probe
from probe.collect.weights import decided
from probe.compare import KeyDataComparison, compare_key_data
from probe.errors import DumpError
from probe.store import device_digest
from probe.store.digest import ALGORITHM, digest
from probe.store.reader import read_dump
from probe.types import RunSpec

Recorded = Callable[..., Path]


class Small(torch.nn.Module):
    """A model with weights and buffers of several types, shapes and strides."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        self.turned = torch.nn.Parameter(torch.arange(12.0).reshape(3, 4).bfloat16().t())
        self.register_buffer("count", torch.tensor(7))
        self.register_buffer("empty", torch.empty(0, 4))
        self.register_buffer("kept", torch.tensor([True, False, True]), persistent=False)


def model_of(seed: int = 0) -> Small:
    torch.manual_seed(seed)
    return Small()


@pytest.fixture
def recorded(tmp_path: Path, torch_state: None) -> Recorded:
    """Records two steps of a model: ``recorded("a", digest="device")``."""

    def record(name: str, change: Callable[[Small], Any] | None = None, **spec: Any) -> Path:
        probe = Probe(RunSpec(run=name, dump_path=str(tmp_path / name), **spec))
        model = model_of()
        probe.attach(actor=model)
        for step in range(2):
            if step == 1 and change is not None:
                with torch.no_grad():
                    change(model)
            probe.save({"loss": torch.tensor(float(step))})
            probe.step()
        probe.close()
        return tmp_path / name

    return record


@pytest.fixture
def compared(recorded: Recorded) -> Callable[..., KeyDataComparison]:
    def compare(a: str, b: str, change: Callable[[Small], Any] | None = None) -> KeyDataComparison:
        return compare_key_data(read_dump(recorded("a", digest=a)), read_dump(recorded("b", change, digest=b)))

    return compare


def manifest_of(folder: Path) -> Any:
    return json.loads((folder / "manifest.json").read_text())


def weights_of(folder: Path) -> dict[str, str | None]:
    (records,) = read_dump(folder).records.values()
    return {record.path: record.digest for record in records if record.tag == "weights" and record.step == 0}


def expected_weights(algorithm: Callable[[str, tuple[int, ...], Any], str]) -> dict[str, str]:
    model, found = model_of(), {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        found[f"actor.{name}"] = algorithm(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), data)
    return found


def test_on_the_device_they_have_the_device_s_digest_and_the_rest_that_of_the_host(recorded: Recorded) -> None:
    folder = recorded("a", digest="device")
    assert weights_of(folder) == expected_weights(device_digest.digest)
    manifest = manifest_of(folder)
    assert (manifest["digest"], manifest["digests"]) == (ALGORITHM, {"weights": device_digest.NAME})
    loss = read_dump(folder).find(0, 0, ("loss", 0, "", 0))
    assert loss is not None
    assert loss.digest == digest("float32", (), bytes(4))


@pytest.mark.parametrize("place", ["host", "auto"])
def test_on_the_host_they_have_the_host_s(recorded: Recorded, place: str) -> None:
    folder = recorded("a", digest=place)
    assert weights_of(folder) == expected_weights(digest)
    assert "digests" not in manifest_of(folder)


def test_the_algorithm_is_named_before_the_first_step_is_whole(tmp_path: Path, torch_state: None) -> None:
    """A run that dies early can be compared as far as it came."""
    probe = Probe(RunSpec(run="a", dump_path=str(tmp_path / "a"), digest="device"))
    probe.step()
    assert "digests" not in manifest_of(tmp_path / "a")
    probe.attach(actor=model_of())
    probe.step()
    probe.close(failed=True)
    assert read_dump(tmp_path / "a").algorithm(0, "weights") == device_digest.NAME


@pytest.mark.parametrize(
    ("place", "types", "found"),
    [
        ("auto", ["cpu"], "host"),
        ("auto", ["cpu", "cuda"], "device"),
        ("auto", ["npu"], "device"),
        ("auto", ["mps"], "host"),
        ("host", ["cuda"], "host"),
        ("device", ["cpu"], "device"),
    ],
)
def test_auto_takes_the_device_when_it_holds_any(place: Any, types: list[str], found: str) -> None:
    assert decided(place, types) == found


class TestTwoRuns:
    def test_of_one_algorithm_are_identical(self, compared: Callable[..., KeyDataComparison]) -> None:
        comparison = compared("device", "device")
        assert (comparison.verdict, comparison.counts) == ("identical", {"same": 14})

    def test_of_one_algorithm_that_differ_are_divergent(self, compared: Callable[..., KeyDataComparison]) -> None:
        comparison = compared("device", "device", lambda model: model.turned[0, 0].neg_())
        assert comparison.verdict == "divergent"
        assert comparison.counts == {"same": 13, "different": 1}
        (entry,) = comparison.entries
        assert (entry.step, entry.a.tag, entry.a.path) == (1, "weights", "actor.turned")

    def test_of_two_algorithms_are_inconclusive(self, compared: Callable[..., KeyDataComparison]) -> None:
        """Their weights cannot be compared at all, the rest can: nothing is called different, nothing equal."""
        comparison = compared("host", "device")
        assert comparison.verdict == "inconclusive"
        assert comparison.counts == {"same": 2, "unreadable": 12}
        assert comparison.problems[0] == (
            f"weights: digests are of different algorithms ({ALGORITHM}, {device_digest.NAME}); only values count"
        )

    def test_of_two_algorithms_still_differ_in_shape(self, compared: Callable[..., KeyDataComparison]) -> None:
        def widen(model: Small) -> None:
            model.kept = torch.zeros(5, dtype=torch.bool)

        assert compared("device", "host", widen).verdict == "divergent"

    def test_equal_lines_of_two_algorithms_are_not_taken_for_equal(
        self, recorded: Recorded, edit_json: Callable[..., None]
    ) -> None:
        a, b = recorded("a", digest="device"), recorded("b", digest="device")
        edit_json(b / "manifest.json", digests={})
        assert compare_key_data(read_dump(a), read_dump(b)).verdict == "inconclusive"


@pytest.mark.parametrize("digests", [[], "lanes-128", {"weights": 3}, {"weights": ""}, {"weights": None}])
def test_a_manifest_that_names_no_algorithm_is_damaged(
    recorded: Recorded, edit_json: Callable[..., None], digests: Any
) -> None:
    folder = recorded("a", digest="device")
    edit_json(folder / "manifest.json", digests=digests)
    with pytest.raises(DumpError, match=r"manifest.json: damaged"):
        read_dump(folder)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_weights_on_cuda_are_digested_there_by_themselves(tmp_path: Path, torch_state: None) -> None:
    probe = Probe(RunSpec(run="a", dump_path=str(tmp_path / "a")))
    probe.attach(actor=model_of().cuda())
    probe.step()
    probe.close()
    assert weights_of(tmp_path / "a") == expected_weights(device_digest.digest)
