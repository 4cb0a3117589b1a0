"""What a flow run of a deployment may ask for: whoever fills in a form runs no program that is in no profile.

On a worker, the profiles in its profile folders are what its owner allows. A form chooses among them and changes what
they train, not which program runs, where, and with which variables. ``FIRSTDIFF_ALLOW_COMMANDS`` on the worker lifts
that; ``FIRSTDIFF_PROFILE_FOLDERS`` names further folders, with ``:`` between them. ``firstdiff check`` is not limited.

Whoever may set job variables may set these, as well as the very command of the flow's process: that is for Prefect's
own permissions and the work pool's template to forbid.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from prefect.runtime import deployment

from flows.settings import FOLDERS
from probe.config import Profile, Request, find_profile, load_profile, profile_of, resolve
from probe.config.loading import SHIPPED_PROFILES
from probe.config.request import SOURCE
from probe.errors import ConfigError

ALLOW = "FIRSTDIFF_ALLOW_COMMANDS"
KEYS = ("kind", "command", "cwd", "env", "repo", "python", "entry", "script", "overrides")
"""Keys of ``trainer`` that say what runs."""
_NOT_SET = ("", "0", "false", "no", "off")


def require_allowed(request: Request) -> None:
    """Sees to it that a flow run of a deployment runs only what its worker's owner allows.

    Args:
        request: What is asked for.

    Raises:
        ConfigError: It asks for something else; names the field.
        UsageError: There is no such profile.
    """
    if not _is_deployed() or os.environ.get(ALLOW, "").strip().lower() not in _NOT_SET:
        return
    file = find_profile(request.profile).resolve()
    if not any(file.is_relative_to(folder) for folder in _profile_folders()):
        problem = (
            f"{request.profile!r:.200} lies outside the worker's profile folders; {FOLDERS} on the worker names more"
        )
        raise ConfigError(SOURCE, "profile", problem)
    asked, allowed = resolve(request), load_profile(request.profile)
    for run in ("a", "b"):
        mine, theirs = _what_runs(profile_of(asked, run)), _what_runs(profile_of(allowed, run))
        for key in KEYS:
            if mine.get(key) != theirs.get(key):
                problem = f"trainer.{key} may not be changed in a deployment, unless {ALLOW} is set on the worker"
                raise ConfigError(SOURCE, "overrides", problem)


def _what_runs(profile: Profile) -> dict[str, Any]:
    return profile.trainer.model_dump(mode="json", include=set(KEYS))


def _is_deployed() -> bool:
    """Whether a worker or a runner started this process for a deployment's flow run, be this one or one within it."""
    return bool(os.environ.get("PREFECT__FLOW_RUN_ID")) or deployment.id is not None


def _profile_folders() -> list[Path]:
    more = filter(None, os.environ.get(FOLDERS, "").split(os.pathsep))
    return [folder.resolve() for folder in (Path.cwd() / "profiles", SHIPPED_PROFILES, *map(Path, more))]
