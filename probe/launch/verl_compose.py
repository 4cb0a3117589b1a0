"""What verl makes of its overrides: asked of verl itself, by hydra's ``--cfg job``, which trains nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from probe.config import Profile, VerlTrainer, read_yaml
from probe.errors import ConfigError
from probe.launch.hydra_compose import asked
from probe.launch.whole import found_command

SOURCE = "verl's configuration"
_SECONDS = 600.0
_SHOWN = 400


def command_of(trainer: VerlTrainer, more: list[str]) -> list[str]:
    """How verl is started.

    Args:
        trainer: The profile's section.
        more: What follows the profile's own overrides.
    """
    return [*found_command([trainer.python]), "-m", trainer.entry, *trainer.overrides, *more]


def composed(profile: Profile, trainer: VerlTrainer, env: dict[str, str]) -> dict[str, Any]:
    """The whole configuration, with interpolations in place as far as they can be.

    Args:
        profile: The experiment.
        trainer: Its trainer.
        env: The environment that verl would be started in.

    Raises:
        ConfigError: Verl cannot be started there, or refuses its overrides.
    """
    said = ""
    for resolve in (["--resolve"], []):  # a value that is still missing cannot be resolved
        command = command_of(trainer, ["--cfg", "job", *resolve])
        done = asked(command, env, _SECONDS, SOURCE, trainer.entry, trainer.cwd)
        if done.returncode == 0 and (found := _mapping(done.stdout)) is not None:
            return found
        said = _reason(done.stderr) or _reason(done.stdout) or f"exit status {done.returncode}"
        if done.returncode and not ("nterpolat" in said or "Missing" in said):
            break
    raise ConfigError(
        SOURCE, "", f"{trainer.python} -m {trainer.entry} --cfg job does not show it, so no training can start: {said}"
    )


def _mapping(text: str) -> dict[str, Any] | None:
    """The configuration in an output in which libraries may have printed before it."""
    lines = text.splitlines(keepends=True)
    starts = [number for number, line in enumerate(lines) if line[:1].isalpha() and ":" in line]
    for start in starts[:20]:
        with tempfile.TemporaryDirectory(prefix="firstdiff-") as folder:
            file = Path(folder, "config.yaml")
            file.write_text("".join(lines[start:]), encoding="utf-8")
            try:
                found = read_yaml(file)
            except ConfigError:
                continue
        if "trainer" in found or "data" in found:
            return found
    return None


def _reason(text: str) -> str:
    """The line of an output that says most, without the advice of hydra that follows it."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("Set the environment")]
    telling = [line for line in lines if "rror" in line.partition(":")[0] or line.startswith(("Could not", "Key '"))]
    return (telling[0] if telling and telling[0].startswith("Could not") else (telling or lines or [""])[-1])[:_SHOWN]
