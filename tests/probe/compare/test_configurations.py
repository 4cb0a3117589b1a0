"""Whether two dumps come from the same experiment: strictly, by key, and from files that may hold anything."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.compare import ConfigurationComparison, compare_configurations
from probe.compare.configurations import KEPT_KEYS, _Comparing
from probe.compare.experiment import FOLLOWS_FROM, NOT_COUNTED, Counting
from probe.comparison import compare_dumps
from probe.config import load_profile
from probe.errors import DumpError
from probe.keys import CONFIGURATIONS, ENVIRONMENT, is_of_environment, parse_key, sections
from probe.store import layout
from probe.store.writer import DumpWriter

PROFILE: dict[str, Any] = {
    "trainer": {
        "kind": "integrated",
        "time_limit": 10.0,
        "config": {
            "device": "cpu",
            "megatron_training": {"seed": 1, "bf16": False},
            "actor_config": {"lr": 0.001},
            "rl_config": {"verifier_weight": [1.0, 0.5]},
            "msprobe_config": {"dump_path": "x", "step_start": 0},
        },
    },
    "check": {"steps": 3},
    "record": {"key_data": "full"},
    "determinism": {"num_threads": 1, "python_hash_seed": 0},
    "faults": [],
}
ENVIRONMENT_FILE: dict[str, Any] = {
    "versions": {"torch": "2.13", "numpy": "2.0", "torch-npu": None},
    "world_size": 1,
    "determinism": {
        "requested": {"num_threads": 1, "seed": 1, "sampling_seed": 1},
        "in_effect": {
            "num_threads": 1,
            "torch_seed": 1,
            "random_states": {"torch": "5a"},
            "variables": {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
        },
    },
}

Compared = Callable[..., ConfigurationComparison]


def _with(document: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A copy with dotted keys (``__`` for the dot) set."""
    changed = copy.deepcopy(document)
    for key, value in changes.items():
        *parents, last = key.split("__")
        target = changed
        for part in parents:
            target = target[part]
        target[last] = value
    return changed


@pytest.fixture
def folders(tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    """Two folders with the files that are given, of a and of b: documents, texts, or None for no file."""

    def make(configurations: tuple[Any, Any], environments: tuple[Any, Any]) -> tuple[Path, Path]:
        for index, name in enumerate("ab"):
            (tmp_path / name).mkdir(exist_ok=True)
            files = {"configurations.json": configurations[index], "environment.json": environments[index]}
            for file, content in files.items():
                if content is not None:
                    text = content if isinstance(content, str) else json.dumps(content)
                    (tmp_path / name / file).write_text(text, encoding="utf-8")
        return tmp_path / "a", tmp_path / "b"

    return make


@pytest.fixture
def compared(folders: Callable[..., tuple[Path, Path]]) -> Compared:
    def compare(
        configuration: Any = PROFILE, environment: Any = ENVIRONMENT_FILE, *allowed: str
    ) -> ConfigurationComparison:
        a, b = folders((PROFILE, configuration), (ENVIRONMENT_FILE, environment))
        return compare_configurations(a, b, allowed)

    return compare


def _keys(result: ConfigurationComparison, meant: bool = False) -> list[str]:
    return [found.key for found in result.different if found.meant is meant]


def test_the_same_experiment_has_no_error(compared: Compared) -> None:
    result = compared()
    assert (result.error, result.different, result.not_compared, result.damaged) == (None, [], [], False)
    assert result.compared > 15


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"trainer__config__megatron_training__seed": 2}, "trainer.config.megatron_training.seed"),
        ({"trainer__config__actor_config__lr": 0.002}, "trainer.config.actor_config.lr"),
        ({"trainer__config__rl_config__verifier_weight": [1.0, 0.6]}, "trainer.config.rl_config.verifier_weight.1"),
        ({"trainer__config__rl_config__verifier_weight": [1.0]}, "trainer.config.rl_config.verifier_weight"),
        ({"determinism__num_threads": 2}, "determinism.num_threads"),
        ({"faults": [{"kind": "sum_order"}]}, "faults"),
        ({"trainer__config__new": None}, "trainer.config.new"),
    ],
)
def test_what_makes_two_experiments_is_named(compared: Compared, changes: dict[str, Any], key: str) -> None:
    result = compared(_with(PROFILE, **changes))
    assert _keys(result) == [key]
    assert result.error is not None and key in result.error


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"versions__torch": "2.14"}, "environment.versions.torch"),
        ({"versions__torch-npu": "2.13"}, "environment.versions.torch-npu"),
        ({"world_size": 2}, "environment.world_size"),
        ({"determinism__in_effect__num_threads": 2}, "environment.determinism.in_effect.num_threads"),
        ({"determinism__in_effect__torch_seed": 2}, "environment.determinism.in_effect.torch_seed"),
    ],
)
def test_the_environment_counts_too(compared: Compared, changes: dict[str, Any], key: str) -> None:
    assert _keys(compared(PROFILE, _with(ENVIRONMENT_FILE, **changes))) == [key]


def test_what_differs_by_design_does_not_count(compared: Compared) -> None:
    changes = {
        "check__steps": 9,
        "record__key_data": "digests",
        "trainer__time_limit": None,
        "trainer__cwd": "/elsewhere",
        "trainer__config__msprobe_config": {"dump_path": "y", "step_start": 2, "reference_dump": True},
    }
    environment = _with(ENVIRONMENT_FILE, determinism__in_effect__random_states={"torch": "5b"})
    assert compared(_with(PROFILE, **changes), environment).different == []


def test_sections_named_like_a_profile_s_count_where_there_is_no_profile(
    folders: Callable[..., tuple[Path, Path]],
) -> None:
    a, b = folders(({"check": 1, "rl": {"lr": 1}}, {"check": 2, "rl": {"lr": 1}}), (None, None))
    assert _keys(compare_configurations(a, b)) == ["check"]


def test_every_key_that_does_not_count_says_why_and_exists() -> None:
    profile = load_profile("deterministic").model_dump(mode="json")
    known = {path for path in sections({CONFIGURATIONS: profile})}
    launch = {"trainer.cwd", "trainer.node_rank", "trainer.rdzv_endpoint", "trainer.secrets"}
    for key, reason in NOT_COUNTED.items():
        assert reason
        path = parse_key(key)
        assert path in known or is_of_environment(path) or key in launch, key
    for effect in FOLLOWS_FROM:
        assert is_of_environment(parse_key(effect)), effect


def test_a_seed_that_nobody_set_is_said(compared: Compared) -> None:
    seeded = compared(environment=_with(ENVIRONMENT_FILE, determinism__in_effect__torch_seed=77))
    assert seeded.error is not None and "never seeds torch" in seeded.error
    other = compared(environment=_with(ENVIRONMENT_FILE, versions__torch="0.1"))
    assert other.error is not None and "seeds torch" not in other.error


@pytest.mark.parametrize("other", [True, 1.0, "1", None, [1], {"1": 1}, -1])
def test_types_are_told_apart(compared: Compared, other: Any) -> None:
    result = compared(_with(PROFILE, trainer__config__megatron_training__seed=other))
    assert result.unmeant == 1


def test_a_missing_key_is_no_null(compared: Compared) -> None:
    environment = copy.deepcopy(ENVIRONMENT_FILE)
    del environment["versions"]["torch-npu"]
    (found,) = compared(PROFILE, environment).different
    assert (found.key, found.a, found.b, found.only) == ("environment.versions.torch-npu", None, None, "a")


def test_a_key_with_a_dot_is_not_two_keys(folders: Callable[..., tuple[Path, Path]]) -> None:
    a, b = folders(({"x": {"a.b": 1}}, {"x": {"a": {"b": 1}}}), (None, None))
    assert _keys(compare_configurations(a, b)) == ['x."a.b"', "x.a.b"]


# ---- what is meant ----


def test_an_allowed_key_is_listed_and_no_error(compared: Compared) -> None:
    configuration = _with(PROFILE, trainer__config__actor_config__lr=0.5)
    result = compared(configuration, ENVIRONMENT_FILE, "trainer.config.actor_config.lr")
    assert (result.error, result.meant, _keys(result, meant=True)) == (None, 1, ["trainer.config.actor_config.lr"])
    assert "trainer.config.actor_config.lr (0.001 against 0.5)" in result.notes[0]


@pytest.mark.parametrize("section", ["trainer.config", "trainer", "configurations", "configurations.trainer.config"])
def test_a_section_stands_for_its_keys(compared: Compared, section: str) -> None:
    configuration = _with(PROFILE, trainer__config__actor_config__lr=0.5)
    assert compared(configuration, ENVIRONMENT_FILE, section).error is None


@pytest.mark.parametrize("section", ["", ".", "train", "trainer.config.actor", "environment", "lr"])
def test_a_part_of_a_name_is_no_section(compared: Compared, section: str) -> None:
    configuration = _with(PROFILE, trainer__config__actor_config__lr=0.5)
    assert compared(configuration, ENVIRONMENT_FILE, section).unmeant == 1


def test_what_follows_from_an_allowed_key_is_allowed(compared: Compared) -> None:
    environment = _with(
        ENVIRONMENT_FILE,
        determinism__requested__seed=2,
        determinism__requested__sampling_seed=2,
        determinism__in_effect__torch_seed=2,
    )
    configuration = _with(PROFILE, trainer__config__megatron_training__seed=2)
    result = compared(configuration, environment, "trainer.config.megatron_training.seed")
    assert (result.error, result.meant) == (None, 4)
    assert compared(configuration, environment).unmeant == 4


def test_threads_follow_from_the_setting(compared: Compared) -> None:
    environment = _with(
        ENVIRONMENT_FILE,
        determinism__requested__num_threads=2,
        determinism__in_effect__num_threads=2,
        determinism__in_effect__variables__OMP_NUM_THREADS="2",
    )
    configuration = _with(PROFILE, determinism__num_threads=2)
    assert compared(configuration, environment, "determinism.num_threads").error is None
    other = _with(environment, determinism__in_effect__variables__PYTHONHASHSEED="7")
    assert _keys(compared(configuration, other, "determinism.num_threads")) == [
        "environment.determinism.in_effect.variables.PYTHONHASHSEED"
    ]


def test_nothing_follows_from_a_key_that_is_the_same(compared: Compared) -> None:
    """A seed that is allowed to differ and does not explains no other seed in effect."""
    environment = _with(ENVIRONMENT_FILE, determinism__in_effect__torch_seed=2)
    assert compared(PROFILE, environment, "trainer.config.megatron_training.seed").unmeant == 1


def test_a_trainer_file_s_keys_have_the_same_consequences(folders: Callable[..., tuple[Path, Path]]) -> None:
    configurations = ({"megatron_training": {"seed": 1}}, {"megatron_training": {"seed": 2}})
    environments = (ENVIRONMENT_FILE, _with(ENVIRONMENT_FILE, determinism__in_effect__torch_seed=2))
    a, b = folders(configurations, environments)
    assert compare_configurations(a, b, ["megatron_training.seed"]).error is None


def test_an_unknown_key_is_noted_with_close_ones(compared: Compared) -> None:
    (note,) = compared(PROFILE, ENVIRONMENT_FILE, "environment.torch").notes
    assert "environment.torch may differ, but neither dump has such a key" in note
    assert "environment.versions.torch" in note


# ---- missing and damaged files ----


def test_neither_dump_saying_anything_is_noted(folders: Callable[..., tuple[Path, Path]]) -> None:
    result = compare_configurations(*folders((None, None), (None, None)))
    assert (result.error, result.damaged, result.compared) == (None, False, 0)
    assert result.not_compared == ["neither dump has configurations.json", "neither dump has environment.json"]
    assert "is not known" in result.notes[0]


def test_one_dump_saying_nothing_is_noted(folders: Callable[..., tuple[Path, Path]]) -> None:
    result = compare_configurations(*folders((PROFILE, None), (ENVIRONMENT_FILE, None)))
    assert (result.error, result.damaged) == (None, False)
    assert len(result.not_compared) == len(result.notes) == 2
    assert all("is not known" in note for note in result.notes)


def test_a_recording_of_ours_without_its_environment_is_damaged(folders: Callable[..., tuple[Path, Path]]) -> None:
    a, b = folders((PROFILE, PROFILE), (ENVIRONMENT_FILE, None))
    (b / "manifest.json").write_text("{}")
    assert compare_configurations(a, b).damaged


HOSTILE = ["", "{", "[1, 2]", "3", "null", "\x00", '{"a": 1', "[" * 100_000, '{"a":' * 500 + "1" + "}" * 500]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("file", ["configurations.json", "environment.json"])
def test_a_damaged_file_is_a_finding(folders: Callable[..., tuple[Path, Path]], text: str, file: str) -> None:
    a, b = folders((PROFILE, PROFILE), (ENVIRONMENT_FILE, ENVIRONMENT_FILE))
    (b / file).write_text(text)
    result = compare_configurations(a, b)
    assert result.damaged
    assert len(result.not_compared) == 1
    assert f"{b / file}: cannot be read" in result.not_compared[0]


def test_links_folders_and_pipes_are_not_read(folders: Callable[..., tuple[Path, Path]]) -> None:
    a, b = folders((PROFILE, None), (ENVIRONMENT_FILE, None))
    (b / "configurations.json").symlink_to(a / "configurations.json")
    os.mkfifo(b / "environment.json")
    result = compare_configurations(a, b)
    assert result.damaged
    assert len(result.not_compared) == 2


def test_the_environments_of_further_hosts_count(folders: Callable[..., tuple[Path, Path]]) -> None:
    a, b = folders((PROFILE, PROFILE), (ENVIRONMENT_FILE, ENVIRONMENT_FILE))
    other = _with(ENVIRONMENT_FILE, versions__torch="0.1")
    for folder, first, second in ((a, ENVIRONMENT_FILE, ENVIRONMENT_FILE), (b, other, other)):
        (folder / "environment.rank2.json").write_text(json.dumps(first))
        (folder / "environment.rank10.json").write_text(json.dumps(second))
    result = compare_configurations(a, b)
    assert (_keys(result), result.unmeant) == (["environment.versions.torch"], 1), "once, though two hosts differ"
    assert compare_configurations(a, b, ["environment.versions.torch"]).error is None
    (b / "environment.rank10.json").unlink()
    assert any("environment.rank10.json: missing" in said for said in compare_configurations(a, b).not_compared)


def test_a_huge_file_is_not_read(folders: Callable[..., tuple[Path, Path]]) -> None:
    a, b = folders((PROFILE, PROFILE), (ENVIRONMENT_FILE, ENVIRONMENT_FILE))
    with (b / "environment.json").open("wb") as file:
        file.truncate(1 << 30)
    assert "bytes" in compare_configurations(a, b).not_compared[0]


def test_many_differences_are_counted_and_cut(folders: Callable[..., tuple[Path, Path]]) -> None:
    left, right = ({f"k{index}": value for index in range(1000)} for value in (1, 2))
    result = compare_configurations(*folders((left, right), (None, None)))
    assert (result.unmeant, len(result.different)) == (1000, KEPT_KEYS)
    assert result.error is not None and "and 995 more" in result.error


@pytest.mark.parametrize("value", ["x" * 10_000, ["y" * 10_000], 10**4000, float("nan"), float("inf"), "\ud800"])
def test_what_is_shown_is_short_strict_json(folders: Callable[..., tuple[Path, Path]], value: Any) -> None:
    result = compare_configurations(*folders(({"k" * 500: value}, {"k" * 500: 1}), (None, None)))
    (found,) = result.different
    assert len(json.dumps([found.key, found.a, found.b], allow_nan=False)) < 600
    assert result.error is not None and len(result.error) < 600


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=3),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=3), children, max_size=3),
    max_leaves=12,
)


def _differ(left: Any, right: Any, allowed: tuple[str, ...] = ()) -> ConfigurationComparison:
    result = ConfigurationComparison()
    comparing = _Comparing(Counting({}, {}), [parse_key(key) for key in allowed], result)
    comparing.compare({ENVIRONMENT: left}, {ENVIRONMENT: right})
    comparing.finish()
    return result


@given(value=JSON)
def test_anything_is_the_same_as_itself(value: Any) -> None:
    assert _differ({"v": value}, json.loads(json.dumps({"v": value}))).unmeant == 0


@given(left=JSON, right=JSON)
def test_what_json_writes_differently_differs(left: Any, right: Any) -> None:
    same = json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)
    there, back = _differ({"v": left}, {"v": right}), _differ({"v": right}, {"v": left})
    assert (there.unmeant == 0) is same
    assert {found.key for found in there.different} == {found.key for found in back.different}


@given(left=JSON, right=JSON)
def test_every_named_key_can_be_allowed(left: Any, right: Any) -> None:
    keys = tuple(found.key for found in _differ({"v": left}, {"v": right}).different)
    assert _differ({"v": left}, {"v": right}, keys).unmeant == 0


# ---- what follows for the verdict ----


@pytest.fixture
def dumps(make_dump: Callable[..., Path]) -> Callable[..., tuple[Path, Path]]:
    """Two dumps with one record each and the files of the same experiment."""

    def make(left: float, right: float) -> tuple[Path, Path]:
        made = []
        for name, value in (("a", left), ("b", right)):
            folder = make_dump(name, [("loss", value)])
            (folder / "configurations.json").write_text(json.dumps(PROFILE))
            (folder / "environment.json").write_text(json.dumps(ENVIRONMENT_FILE))
            made.append(folder)
        return made[0], made[1]

    return make


@pytest.mark.parametrize(("right", "verdict"), [(1.0, "identical"), (2.0, "divergent")])
def test_the_records_decide_where_the_experiment_is_one(
    dumps: Callable[..., tuple[Path, Path]], right: float, verdict: str
) -> None:
    a, b = dumps(1.0, right)
    document = compare_dumps(a, b, None)
    assert (document["verdict"], document["error"]) == (verdict, None)
    assert document["configurations"]["different"] == document["configurations"]["not_compared"] == []


@pytest.mark.parametrize("right", [1.0, 2.0])
def test_two_experiments_are_inconclusive_whatever_the_records_say(
    dumps: Callable[..., tuple[Path, Path]], right: float, tmp_path: Path
) -> None:
    a, b = dumps(1.0, right)
    changed = _with(PROFILE, trainer__config__megatron_training__seed=2)
    (b / "configurations.json").write_text(json.dumps(changed))
    document = compare_dumps(a, b, tmp_path / "out")
    assert document["verdict"] == "inconclusive"
    assert "trainer.config.megatron_training.seed (1 against 2)" in document["error"]
    assert document["configurations"]["different"] == [
        {"key": "trainer.config.megatron_training.seed", "a": 1, "b": 2, "only": None, "meant": False}
    ]
    page = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert "Are they the same experiment?" in page
    assert "not allowed to differ" in page


@pytest.mark.parametrize(("right", "verdict"), [(1.0, "identical"), (2.0, "divergent")])
def test_with_the_difference_allowed_the_records_decide(
    dumps: Callable[..., tuple[Path, Path]], right: float, verdict: str
) -> None:
    a, b = dumps(1.0, right)
    changed = _with(PROFILE, trainer__config__megatron_training__seed=2)
    (b / "configurations.json").write_text(json.dumps(changed))
    document = compare_dumps(a, b, None, ["trainer.config.megatron_training.seed"])
    assert document["verdict"] == verdict
    assert any("meant to differ" in note for note in document["notes"])


@pytest.mark.parametrize("text", ["", "{", "[]"])
@pytest.mark.parametrize(("right", "verdict"), [(1.0, "inconclusive"), (2.0, "divergent")])
def test_a_damaged_file_is_never_identical(
    dumps: Callable[..., tuple[Path, Path]], text: str, right: float, verdict: str
) -> None:
    a, b = dumps(1.0, right)
    (b / "environment.json").write_text(text)
    document = compare_dumps(a, b, None)
    assert document["verdict"] == verdict
    assert any("environment.json: cannot be read" in sentence for sentence in document["not_compared"])


def test_a_lost_environment_is_never_identical(dumps: Callable[..., tuple[Path, Path]]) -> None:
    a, b = dumps(1.0, 1.0)
    (b / "environment.json").unlink()
    assert compare_dumps(a, b, None)["verdict"] == "inconclusive"


def test_a_lost_configuration_is_never_identical(dumps: Callable[..., tuple[Path, Path]]) -> None:
    a, b = dumps(1.0, 1.0)
    (b / "configurations.json").unlink()
    assert compare_dumps(a, b, None)["verdict"] == "inconclusive"


def test_a_tree_of_single_save_is_compared_with_a_note(single_save_tree: Path, tmp_path: Path) -> None:
    a, b = (Path(shutil.copytree(single_save_tree, tmp_path / name)) for name in "ab")
    document = compare_dumps(a, b, None)
    assert document["verdict"] == "identical"
    assert any("is not known" in note for note in document["notes"])
    (a / "configurations.json").write_text('{"actor": {"lr": 1e-6}, "rl": {"seed": 1}}')
    document = compare_dumps(a, b, None)
    assert document["verdict"] == "identical", "only one of them had configurations_dump on"
    assert any("only one dump has configurations.json" in note for note in document["notes"])
    (b / "configurations.json").write_text('{"actor": {"lr": 1e-5}, "rl": {"seed": 1}}')
    document = compare_dumps(a, b, None)
    assert document["verdict"] == "inconclusive"
    assert "actor.lr (1e-06 against 1e-05)" in document["error"]


def test_what_was_written_and_is_gone_from_both_is_never_identical(tmp_path: Path) -> None:
    """The manifest says which files a recording wrote."""
    made = []
    for name in "ab":
        layout.claim(tmp_path / name)
        writer = DumpWriter(tmp_path / name, name, keep_values=False)
        writer.write_file("environment.json", ENVIRONMENT_FILE)
        writer.write_file("environment.rank8.json", ENVIRONMENT_FILE)
        writer.add("loss", 0, 0, 0, "", None, None, "float32", (1,), "0" * 32)
        writer.finish_step(0)
        writer.close(complete=True)
        made.append(tmp_path / name)
    assert compare_dumps(*made, None)["verdict"] == "identical"
    for gone in ("environment.rank8.json", "environment.json"):
        for folder in made:
            (folder / gone).rename(tmp_path / "kept")
        document = compare_dumps(*made, None)
        assert document["verdict"] == "inconclusive"
        assert any(f"{gone}: missing, though it was written" in said for said in document["not_compared"])
        for folder in made:
            shutil.copy(tmp_path / "kept", folder / gone)


def test_a_manifest_names_no_file_outside_its_folder(dumps: Callable[..., tuple[Path, Path]]) -> None:
    a, b = dumps(1.0, 1.0)
    manifest = json.loads((b / "manifest.json").read_text())
    (b / "manifest.json").write_text(json.dumps({**manifest, "files": ["../secret.json"]}))
    with pytest.raises(DumpError, match=r"manifest\.json: damaged \(it lists a file that no recording writes\)"):
        compare_dumps(a, b, None)
