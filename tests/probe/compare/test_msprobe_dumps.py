"""``firstdiff compare`` on dumps that msprobe alone wrote, in every mode: what differs first, and how sure that is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probe.comparison import compare_dumps
from probe.errors import DumpError
from probe.store.windows import Place, find_windows

MsprobeRuns = Callable[[str, str], Path]

L0, L0_MD5, MIX_XOR, MIX = (
    "statistics-L0-statistics",
    "statistics-L0-md5",
    "statistics-mix-xor",
    "tensor-mix-statistics",
)
SLOW = [
    pytest.param(mode, marks=pytest.mark.slow)
    for mode in (
        *("statistics-L1-statistics", "statistics-L1-xor", "statistics-mix-statistics", "statistics-L0-xor"),
        *("statistics-mix-md5", "tensor-L0-statistics", "tensor-L1-statistics"),
    )
]
MODES = [L0, L0_MD5, MIX_XOR, MIX, *SLOW]

# The first event at which each fault shows, by level.
FIRST = {
    "L0": {
        "output": ("forward_output", "b.fc2", "module_forward"),
        "operation": ("forward_input", "b.act", "module_input"),
        "call": ("forward_input", "b.act", "calls"),
        "weight": ("weights", "b.fc2.weight", "weights"),
    },
    "L1": {
        "output": ("forward_input", "Tensor.__mul__", "calls"),
        "operation": ("forward_input", "Tensor.__mul__", "module_input"),
        "call": ("forward_input", "Torch.tanh", "calls"),
        "weight": ("forward_input", "Functional.linear", "module_input"),
    },
    "mix": {
        "output": ("forward_input", "Tensor.__mul__", "calls"),
        "operation": ("forward_input", "Tensor.__mul__", "module_input"),
        "call": ("forward_input", "b.act", "calls"),
        "weight": ("weights", "b.fc2.weight", "weights"),
    },
}


@pytest.mark.parametrize("mode", MODES)
def test_equal_runs_are_as_equal_as_the_mode_can_tell(msprobe_runs: MsprobeRuns, mode: str) -> None:
    document = compare_dumps(msprobe_runs(mode, "base"), msprobe_runs(mode, "again"), None)
    task, _, summary = mode.split("-")
    level = "exact" if task == "tensor" else "statistics" if summary == "statistics" else "checksum"
    assert document["certainty"]["level"] == level
    assert document["first"] is None
    assert document["layers"]["compared"] > 40
    if task == "tensor" or summary == "md5":
        assert document["verdict"] == "identical"
        assert document["not_compared"] == []
    else:
        assert document["verdict"] == "inconclusive"
        (sentence,) = document["not_compared"]
        assert f"{document['certainty']['values'][summary]} values were compared by" in sentence
        assert "no difference" in sentence


@pytest.mark.parametrize("fault", ["output", "operation", "call", "weight"])
@pytest.mark.parametrize("mode", MODES)
def test_the_first_difference_is_the_planted_one(msprobe_runs: MsprobeRuns, mode: str, fault: str) -> None:
    document = compare_dumps(msprobe_runs(mode, "base"), msprobe_runs(mode, fault), None)
    event, name, kind = FIRST[mode.split("-")[1]][fault]
    first = document["first"]
    assert document["verdict"] == "divergent"
    assert (first["step"], first["rank"], first["stage"]) == (1, [0], None)
    assert (first["event"], first["name"], document["cause"]["kind"]) == (event, name, kind)


@pytest.mark.parametrize(("mode", "seen"), [(MIX_XOR, False), (L0_MD5, True)])
def test_rows_in_another_order_are_seen_by_what_is_sensitive_to_it(
    msprobe_runs: MsprobeRuns, edit_json: Callable[..., None], tmp_path: Path, mode: str, seen: bool
) -> None:
    """The same XOR, of the output of the module whose rows were turned around, is no proof of anything."""
    runs = [msprobe_runs(mode, fault) for fault in ("base", "order")]
    outputs = []
    for run in runs:
        (file,) = run.glob("step1/*/dump.json")
        data = json.loads(file.read_text())["data"]
        values = data.get("Functional.linear.3.forward", data["Module.b.fc2.Head.forward.0"])
        outputs.append(data["Module.b.fc2.Head.forward.0"]["output"][0]["md5"] if seen else values["output"][0]["md5"])
    if seen:
        assert outputs[0] != outputs[1]
    document = compare_dumps(*runs, None)
    assert document["verdict"] == "divergent"
    assert document["first"]["name"] == ("b.fc2" if seen else "Tensor.flip")


class TestWhereTheDumpLies:
    """The same dumps in the folders that trainers make, and any part of them."""

    @pytest.fixture
    def laid_out(self, msprobe_runs: MsprobeRuns, tmp_path: Path) -> Callable[[str, str], list[Path]]:
        def lay_out(step0: str, step1: str) -> list[Path]:
            roots = []
            for name, fault in (("a", "base"), ("b", "output")):
                root = tmp_path / name
                for number, place in enumerate((step0, step1)):
                    (process,) = (msprobe_runs(L0, fault) / f"step{number}").iterdir()
                    shutil.copytree(process, root / place)
                roots.append(root)
            return roots

        return lay_out

    @pytest.mark.parametrize(
        ("step0", "step1", "part", "expected"),
        [
            ("step0/rank", "step1/rank", "", (1, [0], None)),
            ("step4/rank3", "step5/rank3", "", (5, [3], None)),
            ("step0/rank0", "step1/rank0", "step1", (1, [0], None)),
            ("step0/rank0", "step1/rank2", "step1/rank2", (1, [2], None)),
            ("actor_update/step0/rank0", "actor_update/step1/rank1", "", (1, [1], "actor_update")),
            ("actor_update/step0/rank0", "actor_update/step1/rank1", "actor_update", (1, [1], "actor_update")),
            ("actor_update/step0/rank0", "actor_update/step1/rank1", "actor_update/step1", (1, [1], "actor_update")),
            (
                "step_1/ref_compute_log_prob/step0/rank0",
                "step_2/ref_compute_log_prob/step0/rank0",
                "",
                (2, [0], "reference_compute_log_prob"),
            ),
            ("step_1/compute_values/step0/rank0", "step_2/compute_values/step0/rank0", "step_2",
             (2, [0], "critic_compute_values")),
            ("step_1/actor_update/rank_0/step0/proc7", "step_1/actor_update/rank_5/step0/proc8", "",
             (1, [5], "actor_update")),
            ("step_1/compute_rm_score/step0/rank0", "step_2/compute_rm_score/step0/rank0", "",
             (2, [0], "compute_rm_score")),
        ],
    )  # fmt: skip
    def test_step_rank_and_stage_are_named(
        self,
        laid_out: Callable[[str, str], list[Path]],
        step0: str,
        step1: str,
        part: str,
        expected: tuple[int, list[int], str | None],
    ) -> None:
        a, b = laid_out(step0, step1)
        first = compare_dumps(a / part, b / part, None)["first"]
        assert (first["step"], first["rank"], first["stage"]) == expected
        assert first["name"].endswith("b.fc2")

    def test_two_folders_of_other_steps_are_compared_as_asked(
        self, laid_out: Callable[[str, str], list[Path]], tmp_path: Path
    ) -> None:
        a, b = laid_out("step0/rank0", "step1/rank0")
        document = compare_dumps(a / "step0", a / "step1", None)
        assert document["layers"]["compared"] > 40
        assert (
            document["first"]["event"] == "param_grad"
        )  # gradients of the second step are added to those of the first
        assert any("step 0" in note and "step 1" in note for note in document["notes"])

    def test_processes_without_a_rank_are_not_guessed(self, laid_out: Callable[[str, str], list[Path]]) -> None:
        a, b = laid_out("step0/proc7", "step0/proc8")
        document = compare_dumps(a, b, None)
        assert document["verdict"] == "inconclusive"
        assert "nobody knows which is which" in document["not_compared"][0]

    def test_a_rank_that_one_run_lacks_is_not_passed_over(self, laid_out: Callable[[str, str], list[Path]]) -> None:
        a, b = laid_out("step0/rank0", "step0/rank1")
        shutil.rmtree(b / "step0/rank1")
        document = compare_dumps(a, b, None)
        assert document["verdict"] == "inconclusive"
        assert any("rank1: the other run has no such layer dump" in said for said in document["not_compared"])

    def test_report_and_tables_are_written(self, laid_out: Callable[[str, str], list[Path]], tmp_path: Path) -> None:
        document = compare_dumps(*laid_out("step0/rank0", "step1/rank0"), tmp_path / "out")
        assert json.loads((tmp_path / "out/verdict.json").read_text()) == document
        page = (tmp_path / "out/report.html").read_text()
        assert "statistics: max, min, mean and norm" in page
        assert "between runs a and b" in page
        assert len(document["tables"]["made"]) == 2
        assert document["tables"]["not_made"] == ["keydata: no values were kept to compare"]


class TestWhatProvesNothing:
    @pytest.fixture
    def pair(self, msprobe_runs: MsprobeRuns, tmp_path: Path) -> list[Path]:
        return [
            Path(shutil.copytree(next((msprobe_runs(L0_MD5, "base") / "step0").iterdir()), tmp_path / name / "rank0"))
            for name in "ab"
        ]

    @staticmethod
    def change(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
        file = folder / "dump.json"
        content = json.loads(file.read_text())
        change(content)
        file.write_text(json.dumps(content))

    def test_weights_of_other_checksums_and_the_same_statistics_do_not_count(self, pair: list[Path]) -> None:
        def change(content: dict[str, Any]) -> None:
            content["data"]["Module.b.fc1.Linear.forward.0"]["parameters"]["weight"]["md5"] = "00000000"

        self.change(pair[1], change)
        document = compare_dumps(*pair, None)
        assert (document["verdict"], document["first"]) == ("inconclusive", None)
        assert "1 parameters have other checksums, yet the same statistics" in document["not_compared"][0]

    def test_statistics_that_differ_count_where_the_checksum_does_not(self, pair: list[Path]) -> None:
        def change(content: dict[str, Any]) -> None:
            content["data"]["Module.b.fc1.Linear.forward.0"]["output"][0]["Max"] = 7.0

        self.change(pair[1], change)
        document = compare_dumps(*pair, None)
        assert (document["verdict"], document["first"]["name"]) == ("divergent", "b.fc1")

    @pytest.mark.parametrize("value", [None, "NaN"])
    def test_values_that_say_nothing_of_themselves(self, pair: list[Path], value: str | None) -> None:
        def change(content: dict[str, Any]) -> None:
            output = content["data"]["Module.b.fc1.Linear.forward.0"]["output"][0]
            output.update(dict.fromkeys(("Max", "Min", "Mean", "Norm"), float(value) if value else None))
            del output["md5"]

        for folder in pair:
            self.change(folder, change)
        document = compare_dumps(*pair, None)
        assert document["verdict"] == "inconclusive"
        assert document["certainty"]["level"] == "statistics"
        assert document["certainty"]["values"]["statistics" if value else "nothing"] == 1

    def test_another_kind_of_checksum(self, pair: list[Path]) -> None:
        def change(content: dict[str, Any]) -> None:
            for entry in content["data"].values():
                for value in entry["output"]:
                    value["md5"] = "0x00000000" + value["md5"]
                    for key in ("Max", "Min", "Mean", "Norm"):
                        value.pop(key)

        self.change(pair[1], change)
        document = compare_dumps(*pair, None)
        assert document["verdict"] == "inconclusive"
        assert document["certainty"]["values"]["nothing"] > 0

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda content: content.update(data={}), "dump.json is empty"),
            (lambda content: content.update(level="L1"), "dumped at levels L0 and L1"),
            (lambda content: content.update(task="structure"), "dumped with task 'structure'"),
            (lambda content: content["data"].update({"x": {}}), "is not a module"),
            (lambda content: content["data"].update({"x": 3}), "an entry is not an object"),
        ],
    )
    def test_a_damaged_dump(self, pair: list[Path], change: Callable[[dict[str, Any]], None], words: str) -> None:
        self.change(pair[1], change)
        document = compare_dumps(*pair, None)
        assert document["verdict"] == "inconclusive"
        assert words in document["not_compared"][0]

    @pytest.mark.parametrize("text", ["", "{", "[1]", '{"task": ' + "[" * 100_000, '{"x": ' + "9" * 5000 + "}"])
    def test_a_file_that_is_no_json_of_ours(self, pair: list[Path], text: str) -> None:
        (pair[1] / "dump.json").write_text(text)
        document = compare_dumps(*pair, None)
        assert document["verdict"] == "inconclusive"
        assert str(pair[1]) in document["not_compared"][0]

    def test_events_without_any_tensor(self, pair: list[Path]) -> None:
        def change(content: dict[str, Any]) -> None:
            for entry in content["data"].values():
                for key in entry:
                    entry[key] = {} if isinstance(entry[key], dict) else []

        for folder in pair:
            self.change(folder, change)
        document = compare_dumps(*pair, None)
        assert document["verdict"] == "inconclusive"
        assert "tells anything of a tensor's values" in document["not_compared"][0]

    def test_what_msprobe_could_not_dump(self, pair: list[Path]) -> None:
        (pair[0] / "dump_error_info.log").write_text("[2026] no such thing")
        assert "msprobe could not dump everything" in compare_dumps(*pair, None)["not_compared"][0]

    def test_a_dump_that_ends_where_msprobe_writes_in_between(self, pair: list[Path]) -> None:
        def change(content: dict[str, Any]) -> None:
            name, entry = next(iter(content["data"].items()))
            for call in range(1, 1 + 1000 - len(content["data"])):
                content["data"][name[:-1] + str(call)] = entry

        for folder in pair:
            self.change(folder, change)
            (folder / "construct.json").unlink()
            (folder / "stack.json").unlink()
        document = compare_dumps(*pair, None)
        assert document["verdict"] == "inconclusive"
        assert "ends after 1000 entries" in document["not_compared"][0]

    def test_a_link(self, pair: list[Path]) -> None:
        (pair[1] / "more").symlink_to("/etc")
        with pytest.raises(DumpError, match=r"more: a link is not followed"):
            compare_dumps(*pair, None)

    @pytest.mark.parametrize("name", ["nowhere", "."])
    def test_no_dump_at_all(self, pair: list[Path], tmp_path: Path, name: str) -> None:
        (tmp_path / "empty").mkdir()
        with pytest.raises(DumpError, match="no such|holds no"):
            compare_dumps(pair[0], tmp_path / "empty" / name, None)


def test_without_construct_and_stack_the_order_is_that_of_leaving(msprobe_runs: MsprobeRuns, tmp_path: Path) -> None:
    """``extra_info: false`` writes neither."""
    folders = []
    for fault in ("base", "output"):
        folder = Path(shutil.copytree(msprobe_runs(L0, fault), tmp_path / fault))
        for file in [*folder.rglob("construct.json"), *folder.rglob("stack.json")]:
            file.unlink()
        folders.append(folder)
    document = compare_dumps(*folders, None)
    assert (document["first"]["name"], document["first"]["event"]) == ("b.fc2", "forward_output")


def test_places_are_read_from_their_own_path_up_to_the_first_other_name(tmp_path: Path) -> None:
    assert Place.of_root(tmp_path / "step7" / "other" / "actor_update" / "step2" / "rank3") == Place(
        "actor_update", 2, 3
    )
    assert Place.of_root(tmp_path / "step7" / "msprobe_dump") == Place()
    assert Place.of(("step7", "actor_update", "step2", "rank0")).step == 2  # a folder that is called so by chance
    assert find_windows(tmp_path / "nowhere") == []
