"""``firstdiff compare`` on the folders that MindSpeed-RL and verl leave: stage folders, key data, samples."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.comparison import compare_dumps
from probe.errors import DumpError

MsprobeRuns = Callable[[str, str], Path]
STATISTICS = "statistics-L0-statistics"


def sample(number: int, step: int) -> dict[str, Any]:
    """One line, as verl's trainer writes it; the last key comes from its agent loop."""
    return {
        "input": f"user\nwhat is {number} and {step}?\nassistant\n",
        "output": f"it is {number + step}, I think",
        "gts": str(number + step),
        "score": number / 3,
        "step": step,
        "acc": bool(number % 2),
        "request_id": str(uuid.uuid4()),
    }


def write_samples(folder: Path, change: Callable[[int, list[dict[str, Any]]], None] | None = None) -> Path:
    folder.mkdir(parents=True)
    for step in (1, 2, 3):
        samples = [sample(number, step) for number in range(6)]
        if change is not None:
            change(step, samples)
        text = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in samples)
        (folder / f"{step}.jsonl").write_text(text, encoding="utf-8")
    return folder


class TestSamples:
    def test_that_are_equal_but_for_names_of_requests(self, tmp_path: Path) -> None:
        document = compare_dumps(write_samples(tmp_path / "a"), write_samples(tmp_path / "b"), None)
        assert document["verdict"] == "identical"
        assert document["key_data"]["compared"] == 3 * (3 * 6 + 3)  # three columns of texts, three of numbers
        assert any("request_id" in note for note in document["notes"])

    def test_a_response_that_differs(self, tmp_path: Path) -> None:
        def change(step: int, samples: list[dict[str, Any]]) -> None:
            if step == 2:
                samples[4]["output"] = "it is 6, I know"
                samples[4]["score"] = np.nextafter(4 / 3, 9)

        document = compare_dumps(write_samples(tmp_path / "a"), write_samples(tmp_path / "b", change), tmp_path / "out")
        first = document["key_data"]["first"]
        assert (document["verdict"], document["first"]["stage"]) == ("divergent", "actor_generate_sequences")
        assert (first["step"], first["tag"], first["path"]) == (2, "responses", "4")
        assert document["notes"][0] == (
            "step 2, responses of sample 4: from character 11 on: 'it is 6, I think' against 'it is 6, I know'"
        )
        (rewards,) = (row for row in document["key_data"]["summary"] if row["tag"] == "rewards")
        assert (rewards["max_ulp"], rewards["first"]["index"]) == (1, [4])
        assert "I know" in (tmp_path / "out/report.html").read_text()

    def test_in_another_order(self, tmp_path: Path) -> None:
        def change(step: int, samples: list[dict[str, Any]]) -> None:
            if step == 3:
                samples.reverse()

        document = compare_dumps(write_samples(tmp_path / "a"), write_samples(tmp_path / "b", change), None)
        assert (document["first"]["step"], document["cause"]["kind"]) == (3, "data")
        assert document["cause"]["permutation"] is True

    def test_sorted_by_names_that_are_random_in_every_run(self, tmp_path: Path) -> None:
        """As verl 0.9.1 writes them: ``{uuid4}_{rollout}_{output}``, in the order of these names."""

        def named(step: int, samples: list[dict[str, Any]]) -> None:
            for first in range(0, 6, 2):
                name = uuid.uuid4()
                for number in (0, 1):  # two samples of one prompt
                    samples[first + number]["input"] = samples[first]["input"]
                    samples[first + number]["uid"] = f"{name}_{number}_0"
            samples.sort(key=lambda one: one["uid"])

        def other(step: int, samples: list[dict[str, Any]]) -> None:
            if step == 2:
                samples[3]["output"] = "it is 5, I hope"
            named(step, samples)

        def exchanged(step: int, samples: list[dict[str, Any]]) -> None:
            if step == 2:  # the two samples of one prompt: their order is that of the rollout
                samples[2]["output"], samples[3]["output"] = samples[3]["output"], samples[2]["output"]
            named(step, samples)

        a = write_samples(tmp_path / "a", named)
        document = compare_dumps(a, write_samples(tmp_path / "b", named), None)
        assert document["verdict"] == "identical"
        assert any("sorts the samples of a step by random names" in note for note in document["notes"])
        document = compare_dumps(a, write_samples(tmp_path / "c", other), None)
        first = document["key_data"]["first"]
        assert (first["step"], first["tag"], first["path"]) == (2, "responses", "3")
        assert document["key_data"]["different"] == 1
        assert "I hope" in document["notes"][0]
        assert compare_dumps(a, write_samples(tmp_path / "d", exchanged), None)["first"]["step"] == 2

    def test_names_of_another_kind_count(self, tmp_path: Path) -> None:
        def named(step: int, samples: list[dict[str, Any]]) -> None:
            for number, one in enumerate(samples):
                one["uid"] = f"prompt_{number}_0"

        def other(step: int, samples: list[dict[str, Any]]) -> None:
            named(step, samples)
            samples[1]["uid"] = "prompt_7_0"

        a = write_samples(tmp_path / "a", named)
        document = compare_dumps(a, write_samples(tmp_path / "b", other), None)
        assert (document["verdict"], document["key_data"]["first"]["tag"]) == ("divergent", "uid")

    def test_a_sample_a_column_or_a_step_that_one_run_lacks(self, tmp_path: Path) -> None:
        def fewer(step: int, samples: list[dict[str, Any]]) -> None:
            if step == 3:
                samples.pop()

        def without(step: int, samples: list[dict[str, Any]]) -> None:
            for one in samples:
                del one["acc"]

        a = write_samples(tmp_path / "a")
        for number, change in enumerate((fewer, without)):
            document = compare_dumps(a, write_samples(tmp_path / f"b{number}", change), None)
            assert document["verdict"] == "divergent"
        last = write_samples(tmp_path / "c")
        (last / "3.jsonl").unlink()
        assert compare_dumps(a, last, None)["first"]["step"] == 3

    def test_of_validation_are_told_from_those_of_the_training(self, tmp_path: Path) -> None:
        def change(step: int, samples: list[dict[str, Any]]) -> None:
            samples[0]["output"] = "no"

        for name, changed in (("a", None), ("b", change)):
            write_samples(tmp_path / name / "rollout")
            write_samples(tmp_path / name / "val", changed)
        document = compare_dumps(tmp_path / "a", tmp_path / "b", None)
        assert document["first"]["tag"] == "val.responses"

    @pytest.mark.parametrize(
        ("left", "right", "same"),
        [
            ("NaN", "NaN", True),
            ("NaN", "Infinity", False),
            ("1", "1.0", False),
            ("9" * 30, "9" * 30, True),
            ("9" * 30, "9" * 29 + "8", False),
            ('"\\ud800"', '"\\ud800"', True),
            ("[1, [2]]", "[1, [2.0]]", False),
            ("0.0", "-0.0", False),
        ],
    )
    def test_values_of_every_kind_are_compared_strictly(
        self, tmp_path: Path, left: str, right: str, same: bool
    ) -> None:
        for name, value in (("a", left), ("b", right)):
            (tmp_path / name).mkdir()
            (tmp_path / name / "1.jsonl").write_text('{"input": "x", "score": ' + value + "}\n")
        document = compare_dumps(tmp_path / "a", tmp_path / "b", None)
        assert document["verdict"] == ("identical" if same else "divergent")
        json.dumps(document, allow_nan=False)

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b"{", "cut off"),
            (b"{\n", "line 1 is damaged"),
            (b"[1]\n", "not an object"),
            (b'{"x": 1}\n{"x"', "line 2 is damaged"),
            (b'{"x": ' + b"9" * 5000 + b"}\n", "line 1 is damaged"),
            (b'{"x": ' + b"[" * 100_000 + b"\n", "line 1 is damaged"),
            (b'{"../../x": 1}\n', "not a valid folder name"),
            (b"\xff\xfe\n", "line 1 is damaged"),
        ],
    )
    def test_a_damaged_file_is_one_sentence(self, tmp_path: Path, content: bytes, words: str) -> None:
        a, b = write_samples(tmp_path / "a"), write_samples(tmp_path / "b")
        (b / "2.jsonl").write_bytes(content)
        with pytest.raises(DumpError, match=words) as raised:
            compare_dumps(a, b, None)
        assert str(b / "2.jsonl") in str(raised.value)

    def test_a_link_is_not_followed(self, tmp_path: Path) -> None:
        a, b = write_samples(tmp_path / "a"), write_samples(tmp_path / "b")
        (b / "4.jsonl").symlink_to(a / "3.jsonl")
        with pytest.raises(DumpError, match="a link is not followed"):
            compare_dumps(a, b, None)

    def test_a_link_that_was_named_is(self, tmp_path: Path) -> None:
        a = write_samples(tmp_path / "a")
        (tmp_path / "b").symlink_to(a)
        assert compare_dumps(a, tmp_path / "b", None)["verdict"] == "identical"

    def test_against_records_of_another_kind_are_not_compared(self, tmp_path: Path, single_save_tree: Path) -> None:
        samples = write_samples(tmp_path / "a")
        for pair in ((samples, single_save_tree), (single_save_tree, samples)):
            document = compare_dumps(*pair, None)
            assert (document["verdict"], document["first"]) == ("inconclusive", None)
            assert "records of another kind" in document["not_compared"][0]

    def test_empty_files_compare_to_nothing(self, tmp_path: Path) -> None:
        for name in "ab":
            (tmp_path / name).mkdir()
            (tmp_path / name / "1.jsonl").touch()
        assert compare_dumps(tmp_path / "a", tmp_path / "b", None)["verdict"] == "inconclusive"


class TestVerl:
    @pytest.fixture
    def make(self, msprobe_runs: MsprobeRuns, tmp_path: Path) -> Callable[..., Path]:
        """What a run of verl leaves: dumps of its profiler tool and samples, side by side."""

        def make(
            name: str, fault: str = "base", change: Callable[[int, list[dict[str, Any]]], None] | None = None
        ) -> Path:
            root = tmp_path / name
            for stage in ("ref_compute_log_prob", "actor_update"):
                for step in (0, 1):
                    (process,) = (msprobe_runs("tensor-mix-statistics", fault) / f"step{step}").iterdir()
                    shutil.copytree(process, root / f"step_{step + 1}" / stage / "step0" / "rank0")
            write_samples(root / "rollout_data", change)
            return root

        return make

    def test_equal_runs_are_identical(self, make: Callable[..., Path]) -> None:
        document = compare_dumps(make("a"), make("b"), None)
        assert document["verdict"] == "identical"
        assert document["layers"]["compared"] == 2 * 192
        assert document["key_data"]["compared"] == 63

    def test_the_first_module_is_named_with_the_trainers_own_step_and_our_stage(
        self, make: Callable[..., Path]
    ) -> None:
        first = compare_dumps(make("a"), make("b", "weight"), None)["first"]
        assert (first["step"], first["stage"]) == (2, "reference_compute_log_prob")
        assert first["name"] == "reference.b.fc2.weight"

    def test_samples_that_differ_at_an_earlier_step_come_first(self, make: Callable[..., Path]) -> None:
        def change(step: int, samples: list[dict[str, Any]]) -> None:
            samples[1]["output"] = "other"

        document = compare_dumps(make("a"), make("b", "weight", change), None)
        assert (document["first"]["step"], document["first"]["tag"]) == (1, "responses")

    def test_samples_of_one_run_only_are_said(self, make: Callable[..., Path]) -> None:
        a, b = make("a"), make("b")
        shutil.rmtree(b / "rollout_data")
        document = compare_dumps(a, b, None)
        assert document["verdict"] == "inconclusive"
        assert any("holds no key data" in said for said in document["not_compared"])


class TestMindSpeedRl:
    @pytest.fixture
    def make(self, msprobe_runs: MsprobeRuns, single_save_tree: Path, tmp_path: Path) -> Callable[..., Path]:
        """Key data by SingleSave, statistics of the stages' layers, and the configuration."""

        def make(name: str, fault: str = "base") -> Path:
            root = Path(shutil.copytree(single_save_tree, tmp_path / name))
            for step in (0, 1):
                (process,) = (msprobe_runs(STATISTICS, fault) / f"step{step}").iterdir()
                shutil.copytree(process, root / "actor_update" / f"step{step}" / "rank0")
            (root / "configurations.json").write_text(json.dumps({"actor_config": {"seed": 1}}))
            return root

        return make

    def test_equal_runs_show_no_difference_in_what_there_is(self, make: Callable[..., Path]) -> None:
        document = compare_dumps(make("a"), make("b"), None)
        assert (document["verdict"], document["certainty"]["level"]) == ("inconclusive", "statistics")
        assert document["key_data"]["compared"] > 0
        assert "no difference in the statistics" in document["not_compared"][0]

    def test_the_first_module_is_named(self, make: Callable[..., Path]) -> None:
        document = compare_dumps(make("a"), make("b", "output"), None)
        first = document["first"]
        assert (first["step"], first["stage"], first["name"]) == (1, "actor_update", "actor.b.fc2")

    def test_key_data_against_layers_alone_is_not_compared(
        self, make: Callable[..., Path], single_save_tree: Path
    ) -> None:
        layers = make("a") / "actor_update"
        for pair in ((layers, single_save_tree), (single_save_tree, layers)):
            document = compare_dumps(*pair, None)
            assert document["verdict"] == "inconclusive"
            assert document["first"] is None
