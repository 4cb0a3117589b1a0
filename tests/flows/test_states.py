"""Final states: by the verdict's name, in a type that is seen, with a result that can be read."""

from __future__ import annotations

from typing import Any

import pytest
from prefect.client.schemas.objects import StateType

from flows.names import artifact_key
from flows.states import document_of, state_of, state_of_error
from probe.errors import ConfigError, DumpError, TrainerError
from probe.report import CheckResult
from probe.report.verdict import verdict_document


@pytest.mark.parametrize(
    ("verdict", "type_"),
    [
        ("identical", StateType.COMPLETED),
        ("equivalent", StateType.COMPLETED),
        ("divergent", StateType.FAILED),
        ("inconclusive", StateType.FAILED),
    ],
)
def test_a_verdict_is_a_state_whose_result_can_be_read(verdict: Any, type_: StateType) -> None:
    document = verdict_document(CheckResult(verdict), None)
    state = state_of(document)
    assert (state.name, state.type) == (verdict.capitalize(), type_)
    assert state.message.startswith(verdict)
    if type_ is StateType.FAILED:
        assert document_of(state) == document


def test_a_bad_parameter_is_refused_and_a_failure_is_inconclusive() -> None:
    refused = state_of_error(ConfigError("parameters", "steps", "no"))
    assert (refused.name, refused.type, refused.message) == ("Refused", StateType.FAILED, "parameters: steps: no")
    with pytest.raises(ConfigError):
        document_of(refused)
    assert state_of_error(DumpError("x")).name == "Inconclusive"
    full = state_of_error(OSError(28, "No space left on device"), "checks/x")
    assert full.message == "checks/x: No space left on device; no verdict could be written"


def test_a_message_is_one_short_printable_line() -> None:
    state = state_of_error(TrainerError("a\nb\x1b[2J" + "x" * 9999))
    assert len(state.message) <= 500 and state.message.isprintable()


@pytest.mark.parametrize("label", ["demo", "Grpo 2", "grpo-2", "grpo_2", "ü", "", "a" * 300, "-x-"])
def test_keys_are_lowercase_letters_digits_and_dashes(label: str) -> None:
    import re

    key = artifact_key(label)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", key)


def test_keys_of_different_names_differ() -> None:
    names = ["Grpo 2", "grpo-2", "grpo_2", "GRPO-2", "ü", "ä"]
    assert len({artifact_key(name) for name in names}) == len(names)


def test_a_run_whose_process_dies_each_time_is_not_started_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.determinism import MOST_TRIES, determinism_check

    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__RUN_COUNT", str(MOST_TRIES + 1))
    state = determinism_check.fn(profile="nope")
    assert state.name == "Inconclusive" and "3 times" in state.message
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__RUN_COUNT", str(MOST_TRIES))
    assert "nope" in determinism_check.fn(profile="nope").message


@pytest.mark.parametrize(
    "parameters", [{"profile": "demo", "nope": 1}, {"profile": "\ud800" * 999}, {"profile": [1]}, {}]
)
def test_a_run_gets_a_name_whatever_it_is_given(parameters: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from flows import names

    monkeypatch.setattr(names.flow_run, "parameters", parameters, raising=False)
    assert "seed" not in names.check_name()


@pytest.mark.parametrize(("name", "value"), [("out", 5), ("out", "a\0b"), ("force", "maybe"), ("force", None)])
def test_parameters_of_a_wrong_type_are_refused_where_no_schema_does(name: str, value: Any) -> None:
    from flows.determinism import determinism_check

    state = determinism_check.fn(profile="demo", steps=1, **{name: value})
    assert state.name == "Refused" and state.message.startswith(f"parameters: {name}: must be")


@pytest.mark.parametrize("profile", ["", "\ud800", "x" * 9999, "a\0b", "nope", "loop.yaml", "deep.yaml"])
def test_one_broken_profile_never_stops_a_night(profile: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from flows import nightly

    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    (tmp_path / "deep.yaml").write_text("trainer: " + "[" * 3000)
    monkeypatch.chdir(tmp_path)
    given = {"profile": profile, "seed": None, "nproc_per_node": None, "overrides": []}
    nightly._require_allowed(given)

    def check(**parameters: Any) -> Any:
        return nightly.determinism_check.fn(**{name: parameters[name] for name in ("profile", "overrides")})

    monkeypatch.setattr(nightly, "determinism_check", lambda return_state, **parameters: check(**parameters))
    row = nightly._checked(given)
    assert row["verdict"] == "inconclusive" and row["found"]
    assert row["profile"].encode() or not profile
    with pytest.raises(ConfigError):
        nightly._require_allowed({**given, "profile": "demo", "seed": -5})
