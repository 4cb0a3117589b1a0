"""What a configuration of hydra's amounts to: asked of the trainer's own interpreter, which has hydra.

Firstdiff needs no hydra itself. ``--cfg job`` would ask the trainer's script the same, but that imports all that the
training needs (torch_npu, vLLM, Ray) before it answers, and fails where there is no NPU. So the text of ``_COMPOSE``
runs there alone: it needs nothing but hydra.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from probe.errors import ConfigError

_SECONDS = 120.0
_COMPOSE = """
import json, sys, warnings
warnings.simplefilter("ignore")
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
folder, name, *overrides = sys.argv[1:]
with initialize_config_dir(config_dir=folder, version_base=None):
    found = compose(config_name=name, overrides=overrides)
try:
    values = OmegaConf.to_container(found, resolve=True)
except Exception:  # what only a run of hydra's own can resolve
    values = OmegaConf.to_container(found, resolve=False)
print("composed " + json.dumps(values, default=str))
"""


def compose(python: str, folder: Path, name: str, overrides: Sequence[str], env: dict[str, str]) -> dict[str, Any]:
    """A configuration with its defaults and overrides, as the trainer gets it.

    Args:
        python: The trainer's interpreter.
        folder: Where the configuration is; its groups are found there, too.
        name: Its hydra name.
        overrides: Hydra's overrides.
        env: The interpreter's environment, the whole of it.

    Raises:
        ConfigError: Hydra does not take it, or is not there; says what it said last.
    """
    source = str(folder / f"{name}.yaml")
    done = asked([python, "-c", _COMPOSE, str(folder), name, *overrides], env, _SECONDS, source, "hydra")
    line = next((line for line in done.stdout.splitlines() if line.startswith("composed ")), None)
    if done.returncode == 0 and line is not None:
        found = json.loads(line.partition(" ")[2])
        if isinstance(found, dict):
            return found
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    if any("No module named 'hydra'" in line or "No module named 'omegaconf'" in line for line in said):
        problem = f"{python} has no hydra, which MindSpeed-RL needs; name the interpreter that it is installed in"
        raise ConfigError("the profile", "trainer.python", problem)
    why = next((line for line in said if line.startswith(("hydra.", "omegaconf."))), said[-1] if said else "no output")
    raise ConfigError(source, "", f"hydra does not take it: {why[:400]}")


def asked(
    command: list[str], env: dict[str, str], seconds: float, source: str, who: str, cwd: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command of the trainer's interpreter that shows a configuration.

    Args:
        command: Program and arguments.
        env: Its environment, the whole of it.
        seconds: How long it may take.
        source: The configuration, as it is called in an error.
        who: Who is asked, for an error.
        cwd: Working folder; None is this process's.

    Raises:
        ConfigError: It cannot be started, or does not answer in time.
    """
    try:
        return subprocess.run(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except OSError as error:
        problem = f"{command[0]} cannot be started ({error.strerror})"
        raise ConfigError("the profile", "trainer.python", problem) from error
    except subprocess.TimeoutExpired as error:
        raise ConfigError(source, "", f"{who} did not show it within {seconds:g} s") from error


def quoted(value: object) -> str:
    """A value of an override, in hydra's grammar.

    Example:
        >>> quoted(["some text", True, 3])
        "['some text',true,3]"
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(quoted, value))}]"
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return str(value)
