"""Reading profiles: names, paths, overrides, YAML's traps, and errors that name the file and the key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flows.determinism import profile_yaml
from probe.config import find_profile, load_profile
from probe.errors import ConfigError, UsageError

Write = Callable[..., Path]

INTEGRATED = "trainer: {kind: integrated}\n"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def file(text: str, name: str = "profile.yaml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return file


def problem_of(path: Path, *overrides: str) -> str:
    """The one sentence that a wrong profile gives."""
    with pytest.raises(ConfigError) as caught:
        load_profile(str(path), list(overrides))
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.exit_code == 64
    return message


class TestFinding:
    def test_a_name_is_found_among_the_shipped(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert find_profile("demo").name == "demo.yaml"

    def test_the_current_folders_profiles_come_first(self, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
        mine = write(INTEGRATED, "profiles/demo.yaml")
        monkeypatch.chdir(mine.parent.parent)
        assert find_profile("demo") == mine

    def test_an_unknown_name_lists_those_that_exist(self) -> None:
        with pytest.raises(UsageError, match=r"nonesuch: no such profile; there are .*demo.*deterministic"):
            load_profile("nonesuch")

    @pytest.mark.parametrize("name", ["nowhere.yaml", "some/where", "."])
    def test_a_path_that_is_no_file_is_refused(self, name: str) -> None:
        with pytest.raises(UsageError, match="no such profile"):
            load_profile(name)


class TestUnknownKeys:
    @pytest.mark.parametrize(
        ("text", "key", "suggestion"),
        [
            ("chekc: {steps: 2}", "chekc", "check"),
            ("check: {stpes: 2}", "check.stpes", "steps"),
            ("record: {layers: {levle: L0}}", "record.layers.levle", "level"),
            ("faults: [{role: actor, module: x, setp: 1}]", "faults.0.setp", "step"),
        ],
    )
    def test_are_named_with_file_key_and_suggestion(self, write: Write, text: str, key: str, suggestion: str) -> None:
        path = write(INTEGRATED + text)
        assert problem_of(path) == f"{path}: {key}: unknown key; did you mean {suggestion!r}?"

    def test_below_the_trainer_too(self, write: Write) -> None:
        path = write("trainer: {kind: integrated, config: {msprobe_config: {refrence_dump: true}}}\n")
        expected = "trainer.config.msprobe_config.refrence_dump: unknown key; did you mean 'reference_dump'?"
        assert problem_of(path) == f"{path}: {expected}"

    def test_of_the_other_kind_of_trainer(self, write: Write) -> None:
        assert "trainer.command: unknown key" in problem_of(write("trainer: {kind: integrated, command: [x]}\n"))

    def test_that_resemble_nothing_list_the_known_ones(self, write: Write) -> None:
        assert "known keys here: steps" in problem_of(write(INTEGRATED + "check: {zzz: 2}"))

    def test_in_a_trainer_file_name_that_file(self, write: Write) -> None:
        write("actor_config: {lrr: 1e-6}\n", "grpo.yaml")
        message = problem_of(write("trainer: {kind: integrated, config: grpo.yaml}\n"))
        assert "grpo.yaml" in message
        assert "actor_config.lrr" in message


class TestWrongValues:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("trainer: {kind: other}", "trainer.kind: must be one of 'integrated', 'command'"),
            ("trainer: {command: [x]}", "trainer.kind: must be one of"),
            ("trainer: {kind: command}", "trainer.command: this key is required"),
            ("trainer: {kind: command, command: python train.py}", "trainer.command: input should be a valid list"),
            ("trainer: integrated", "trainer"),
            ("check: {steps: 2}", "trainer: this key is required"),
            (INTEGRATED + "check: {steps: two}", "check.steps: input should be a valid integer, not 'two'"),
            (INTEGRATED + "record: {key_data: some}", "record.key_data: "),
            (INTEGRATED + "check:\n  - 1", "check: "),
            (INTEGRATED + "1: 2", "1"),
        ],
    )
    def test_are_named_with_file_and_key(self, write: Write, text: str, words: str) -> None:
        path = write(text)
        message = problem_of(path)
        assert message.startswith(f"{path}: ")
        assert words in message

    @pytest.mark.parametrize("section", ["msprobe: false", "dump_path: here"])
    def test_what_a_check_sets_itself(self, write: Write, section: str) -> None:
        path = write(f"trainer: {{kind: integrated, config: {{msprobe_config: {{{section}}}}}}}\n")
        assert f"trainer.config.msprobe_config.{section.split(':')[0]}" in problem_of(path)

    def test_a_mode_that_cannot_be_recorded(self, write: Write) -> None:
        path = write("trainer: {kind: integrated, config: {rl_config: {use_integrated_worker: false}}}\n")
        assert "rl_config.use_integrated_worker is false" in problem_of(path)


class TestYaml:
    def test_exponents_without_a_point_are_numbers(self, write: Write) -> None:
        path = write("trainer: {kind: integrated, config: {actor_config: {lr: 1e-6}}}\n")
        profile = load_profile(str(path))
        assert profile.trainer.kind == "integrated"
        assert profile.trainer.config.actor_config.lr == 1e-6

    def test_a_key_that_stands_twice_is_refused(self, write: Write) -> None:
        path = write(INTEGRATED + "check:\n  steps: 2\n  steps: 3\n")
        assert problem_of(path) == f"{path}: line 4: not valid YAML (the key 'steps' stands twice)"

    @pytest.mark.parametrize(
        "text",
        [
            "trainer: [",
            "trainer: {kind: !!python/name:os.system x}",
            "- a\n- b",
            "",
            "just text",
            "a: &x [*x]\nb: \t: c",
            "\x00",
            "[a]: 1",
            "{a: 1}: 2",
        ],
    )
    def test_what_is_no_profile_is_one_sentence(self, write: Write, text: str) -> None:
        path = write(text)
        assert problem_of(path).startswith(f"{path}: ")

    def test_bytes_that_are_no_text(self, write: Write) -> None:
        path = write("")
        path.write_bytes(b"\xff\xfe\xfa")
        assert "cannot be read" in problem_of(path)


class TestOverrides:
    @pytest.mark.parametrize(
        ("override", "read"),
        [
            ("check.steps=8", lambda p: p.check.steps == 8),
            ("check={steps: 3}", lambda p: p.check.steps == 3),
            ("trainer.config.actor_config.lr=1e-6", lambda p: p.trainer.config.actor_config.lr == 1e-6),
            (
                "trainer.config.megatron_training.train_iters=8",
                lambda p: p.trainer.config.megatron_training.train_iters == 8,
            ),
            ("faults.0.step=4", lambda p: p.faults[0].step == 4),
            ("faults=[]", lambda p: p.faults == []),
            ("check.steps=null", lambda p: p.check.steps is None),
            ("determinism.hccl_deterministic='false'", lambda p: p.determinism.hccl_deterministic == "false"),
        ],
    )
    def test_reach_any_key(self, override: str, read: Callable[..., bool]) -> None:
        assert read(load_profile("demo", [override]))

    def test_the_last_of_one_key_counts(self) -> None:
        assert load_profile("demo", ["check.steps=8", "check.steps=2"]).check.steps == 2

    def test_make_sections_that_the_file_leaves_out(self, write: Write) -> None:
        assert load_profile(str(write(INTEGRATED)), ["record.layers.level=L0"]).record.layers.level == "L0"

    def test_change_a_configuration_that_is_a_file(self, write: Write) -> None:
        write("megatron_training: {train_iters: 3, seed: 5}\n", "grpo.yaml")
        path = write("trainer: {kind: integrated, config: grpo.yaml}\n")
        profile = load_profile(str(path), ["trainer.config.megatron_training.train_iters=4"])
        assert profile.trainer.kind == "integrated"
        assert profile.trainer.config.megatron_training.train_iters == 4
        assert profile.trainer.config.megatron_training.seed == 5

    def test_name_another_configuration_file(self, write: Write) -> None:
        write("megatron_training: {train_iters: 3}\n", "grpo.yaml")
        profile = load_profile(str(write(INTEGRATED)), ["trainer.config=grpo.yaml"])
        assert profile.trainer.kind == "integrated"
        assert profile.trainer.config.megatron_training.train_iters == 3

    @pytest.mark.parametrize(
        ("override", "key"),
        [
            ("check.steps", "check.steps"),
            ("=3", "=3"),
            ("faults.7.step=1", "faults.7.step"),
            ("faults.x.step=1", "faults.x.step"),
            ("faults.-1.step=1", "faults.-1.step"),
            ("faults.3={}", "faults.3"),
            ("trainer.kind.x=1", "trainer.kind.x"),
            ("trainer.kind.x.y=1", "trainer.kind.x.y"),
            ("check.steps=[", "check.steps"),
            ("check.steps={a: 1, a: 2}", "check.steps"),
            ("check={[a]: 1}", "check"),
        ],
    )
    def test_that_make_no_sense_are_named(self, override: str, key: str) -> None:
        with pytest.raises(ConfigError) as caught:
            load_profile("demo", [override])
        assert str(caught.value).startswith("--set: ")
        assert key in str(caught.value)

    @pytest.mark.parametrize(
        ("override", "words"),
        [
            ("check.steps=two", "check.steps: input should be a valid integer"),
            ("check.stepz=1", "check.stepz: unknown key; did you mean 'steps'?"),
            ("trainer.config.msprobe_config.msprobe=false", "trainer.config.msprobe_config.msprobe"),
        ],
    )
    def test_are_checked_as_the_file_is(self, override: str, words: str) -> None:
        with pytest.raises(ConfigError) as caught:
            load_profile("demo", [override])
        assert words in str(caught.value)


class TestPaths:
    def test_a_configuration_may_be_a_file_with_its_own_paths(
        self, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = write("{}\n", "shared/data/prompts.jsonl")
        write("megatron_training: {data_path: data/prompts.jsonl}\n", "shared/grpo.yaml")
        path = write("trainer: {kind: integrated, config: shared/grpo.yaml}\n")
        monkeypatch.chdir("/")
        profile = load_profile(str(path))
        assert profile.trainer.kind == "integrated"
        assert profile.trainer.config.megatron_training.data_path == str(data)

    def test_a_configuration_file_that_is_not_there(self, write: Write) -> None:
        message = problem_of(write("trainer: {kind: integrated, config: nowhere.yaml}\n"))
        assert "nowhere.yaml: trainer.config: no such file" in message

    @pytest.mark.parametrize("section", ["model: {path: nowhere}", "megatron_training: {data_path: nowhere}"])
    def test_files_that_are_not_there(self, write: Write, section: str) -> None:
        message = problem_of(write(f"trainer: {{kind: integrated, config: {{{section}}}}}\n"))
        assert f"trainer.config.{section.split(':')[0]}." in message

    def test_a_commands_folder_is_relative_to_the_profile(
        self, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "work").mkdir()
        path = write("trainer: {kind: command, command: [python, train.py], cwd: work}\n")
        monkeypatch.chdir("/")
        profile = load_profile(str(path))
        assert profile.trainer.kind == "command"
        assert profile.trainer.cwd == str(tmp_path / "work")

    def test_a_commands_folder_that_is_not_there(self, write: Write) -> None:
        message = problem_of(write("trainer: {kind: command, command: [x], cwd: nowhere}\n"))
        assert "trainer.cwd: no such folder" in message


class TestSteps:
    def test_are_the_length_of_an_integrated_run(self) -> None:
        profile = load_profile("demo", ["check.steps=2"])
        assert profile.trainer.kind == "integrated"
        assert profile.trainer.config.megatron_training.train_iters == 2

    def test_default_to_what_the_trainer_runs(self) -> None:
        profile = load_profile("demo")
        assert profile.trainer.kind == "integrated"
        assert profile.trainer.config.megatron_training.train_iters == 6


class TestRoundTrip:
    @pytest.mark.parametrize(
        ("text", "overrides"),
        [
            (INTEGRATED, []),
            (INTEGRATED + "check: {steps: 3}\nrecord: {key_data: digests}\n", []),
            (
                "trainer: {kind: integrated, config: {actor_config: {lr: 1e-6}, msprobe_config: {"
                " reference_dump: true, step_start: 1, step_end: 2}}}\n",
                ["faults=[{role: actor, module: model.norm, step: 1}]"],
            ),
            ("trainer: {kind: command, command: [python, 'a b.py', '1e3'], env: {A: 'yes', B: '1'}}\n", []),
        ],
    )
    def test_a_checks_profile_yaml_reloads_to_the_same_profile(
        self, write: Write, tmp_path: Path, text: str, overrides: list[str]
    ) -> None:
        profile = load_profile(str(write(text)), overrides)
        again = write(profile_yaml(profile), "checks/one/profile.yaml")
        assert load_profile(str(again)) == profile

    @pytest.mark.parametrize("name", ["demo", "deterministic"])
    def test_of_the_shipped_profiles(self, write: Write, name: str) -> None:
        profile = load_profile(name)
        assert load_profile(str(write(profile_yaml(profile)))) == profile
