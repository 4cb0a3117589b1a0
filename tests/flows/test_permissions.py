"""What the parameters of a deployment's flow run may not do."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from flows.permissions import ALLOW, OF_A_WORKER, require_allowed
from probe.errors import UsageError

PROFILE = "trainer: {kind: command, command: [python, train.py]}\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A worker's folder with a profile of its own, seen from a process that works for a deployment."""
    folder = tmp_path / "work"
    (folder / "profiles").mkdir(parents=True)
    (folder / "profiles/mine.yaml").write_text(PROFILE)
    (tmp_path / "elsewhere.yaml").write_text(PROFILE)
    monkeypatch.chdir(folder)
    monkeypatch.setenv(OF_A_WORKER, "00000000-0000-0000-0000-000000000001")
    monkeypatch.delenv(ALLOW, raising=False)
    return folder


FORBIDDEN = [
    "trainer.command=[sh, -c, id]",
    " trainer.command =[sh, -c, id]",
    "trainer.command.0=sh",
    "trainer.kind=command",
    "trainer.cwd=/",
    "trainer.env.LD_PRELOAD=/tmp/x.so",
    "trainer.env={PYTHONSTARTUP: /tmp/x.py}",
    "trainer.env.X={variable: HOME}",
    "trainer={kind: command, command: [sh]}",
    "trainer={kind: command}",
    "trainer=other.yaml",
    "trainer.config=/etc/other.yaml",
    "trainer.config={model: {path: /tmp/model}}",
    "trainer.config.model={path: /tmp/model}",
    "trainer.config.megatron_training.load=/tmp/checkpoint",
    "trainer.config.megatron_training={save: /tmp/x}",
    "trainer.local_dump=/tmp",
    "check={b: {trainer.command: [sh]}}",
    "check.b={trainer.command: [sh]}",
    "check.b={trainer.command.0: sh}",
    "check.b={trainer: {command: [sh]}}",
    "check.b.trainer.command=[sh]",
    "check.b.trainer={env: {A: b}}",
]


@pytest.mark.parametrize("override", FORBIDDEN)
def test_parameters_do_not_change_what_is_run(here: Path, override: str) -> None:
    with pytest.raises(UsageError, match=r"^overrides: trainer.*may not change it.* FIRSTDIFF_ALLOW_COMMANDS=1"):
        require_allowed("mine", ["check.steps=2", override])


@pytest.mark.parametrize("override", FORBIDDEN)
def test_the_worker_may_allow_it(here: Path, monkeypatch: pytest.MonkeyPatch, override: str) -> None:
    monkeypatch.setenv(ALLOW, "1")
    require_allowed("mine", [override])
    for no in ("0", "false", ""):
        monkeypatch.setenv(ALLOW, no)
        with pytest.raises(UsageError):
            require_allowed("mine", [override])


@pytest.mark.parametrize("override", FORBIDDEN)
def test_the_command_line_may_change_everything(here: Path, monkeypatch: pytest.MonkeyPatch, override: str) -> None:
    monkeypatch.delenv(OF_A_WORKER)
    require_allowed("mine", [override])
    require_allowed("../elsewhere.yaml", [override])


@pytest.mark.parametrize(
    "override",
    [
        *("check.steps=3", "check={steps: 3}", "determinism.num_threads=1", "trainer.nproc_per_node=2"),
        *("trainer.time_limit=60", "trainer.config.megatron_training.seed=7", "trainer.config.device=cpu"),
        *("check.b={trainer.config.megatron_training.bf16: true}", "trainer.config.model={config: {hidden_size: 8}}"),
    ],
)
def test_what_is_compared_is_anybodys_choice(here: Path, override: str) -> None:
    require_allowed("mine", [override])
    require_allowed("demo", [override])


def test_profiles_come_from_the_folders_for_profiles(here: Path, tmp_path: Path) -> None:
    (here / "profiles/link.yaml").symlink_to(tmp_path / "elsewhere.yaml")
    (here / "profiles/within.yaml").symlink_to("mine.yaml")
    (here / "beside.yaml").write_text(PROFILE)
    (here / "profiles-of-others").mkdir()
    (here / "profiles-of-others/x.yaml").write_text(PROFILE)
    dotted = "profiles/../profiles/mine.yaml"
    for name in ("mine", "profiles/mine.yaml", str(here / "profiles/mine.yaml"), "within", dotted):
        require_allowed(name)
    outside = [
        *("link", "profiles/link.yaml", "beside.yaml", "../elsewhere.yaml", "profiles/../../elsewhere.yaml"),
        *(str(tmp_path / "elsewhere.yaml"), "profiles-of-others/x.yaml"),
    ]
    for name in outside:
        with pytest.raises(UsageError, match="takes no other; put it there, or set FIRSTDIFF_ALLOW_COMMANDS=1"):
            require_allowed(name)


async def _flow_run(folder: Path, parameters: dict[str, object]) -> UUID:
    from prefect.client.orchestration import get_client

    from flows.determinism import determinism_check

    async with get_client() as client:
        deployment = await client.create_deployment(
            await client.create_flow(determinism_check),
            "permissions",
            entrypoint="flows.determinism.determinism_check",
            pull_steps=[{"prefect.deployments.steps.set_working_directory": {"directory": str(folder)}}],
        )
        return (await client.create_flow_run_from_deployment(deployment, parameters=parameters)).id


@pytest.mark.slow
def test_a_real_flow_run_of_a_deployment_runs_no_command_of_its_parameters(here: Path, prefect_api: str) -> None:
    """As a worker does it: ``prefect flow-run execute``, in the worker's folder."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    (here / "train.py").write_text("")
    overrides = [f"trainer.command=[touch, {here / 'was-here'}]", f"trainer.cwd={here}"]
    for allowed in ("", "1"):
        parameters = {"profile": "mine", "overrides": overrides, "out": str(here / f"out{allowed}")}
        with temporary_settings({PREFECT_API_URL: prefect_api}):
            run = asyncio.run(_flow_run(here, parameters))
        env = {**os.environ, "PREFECT_API_URL": prefect_api, ALLOW: allowed, OF_A_WORKER: str(run)}
        done = subprocess.run(
            [sys.executable, "-m", "prefect", "flow-run", "execute", str(run)],
            cwd=here, env=env, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert (here / "was-here").exists() is bool(allowed), done.stderr
        assert ("may not change it" in done.stdout + done.stderr) is not bool(allowed)
