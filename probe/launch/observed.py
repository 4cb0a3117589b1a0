"""What a script's processes left word of, while they were observed: how far each came, and what was not recorded."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from probe.adapters import bootstrap, ray_workers
from probe.language import join, tell

_FOLDER = bootstrap.SEEN
_BOOTSTRAP = "bootstrap"
_MOST = 5
"""Problems that are told."""


@contextmanager
def offered(observe: bool) -> Iterator[str]:
    """A folder for the front of a trainer's ``PYTHONPATH``.

    Args:
        observe: Whether its Python processes are observed without being asked; else ``probe`` is importable in them,
            and nothing else.
    """
    package = Path(bootstrap.__file__).resolve().parent.parent
    folder = tempfile.mkdtemp(prefix="firstdiff-")
    try:
        if observe:
            Path(folder, "sitecustomize.py").symlink_to(bootstrap.__file__)
        else:
            Path(folder, package.name).symlink_to(package, target_is_directory=True)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def lasting_offer(folder: Path) -> Path:
    """A folder for the front of a ``PYTHONPATH``, whose processes are observed, that lasts as long as the run's folder.

    Args:
        folder: The run's folder.
    """
    goal = folder / _BOOTSTRAP
    goal.mkdir(exist_ok=True)
    link = goal / "sitecustomize.py"
    if not link.is_symlink():
        link.symlink_to(Path(bootstrap.__file__).resolve())
    return goal


def await_word(folder: Path) -> None:
    """Makes the place where the processes of a run leave word.

    Args:
        folder: The run's folder, where its spec is.
    """
    forget(folder)
    (folder / _FOLDER).mkdir()


def problems(folder: Path) -> list[str]:
    """What keeps a run's dump from being whole, one sentence each.

    Args:
        folder: The run's folder.
    """
    return _few([*_said(folder, "problem-*"), *_of_another_ray(folder)])


def notes(folder: Path) -> list[str]:
    """What people should know of how a run was observed, one sentence each.

    Args:
        folder: The run's folder.
    """
    return _few(_said(folder, "note-*"))


def _said(folder: Path, names: str) -> list[str]:
    return sorted({file.read_text(encoding="utf-8") for file in (folder / _FOLDER).glob(names)})


def _few(said: list[str]) -> list[str]:
    more = [f"and {len(said) - _MOST} more"] if len(said) > _MOST else []
    return [*said[:_MOST], *more]


def _of_another_ray(folder: Path) -> list[str]:
    """What to say of a Ray that ran before the script: its workers do not know of the check."""
    elsewhere = folder / _FOLDER / ray_workers.ELSEWHERE
    if not elsewhere.exists() or (folder / _FOLDER / ray_workers.WORKER).exists():
        return []
    return [
        tell(
            "the script uses a Ray that was running already ({address}), whose workers are not observed: unset"
            " RAY_ADDRESS, give ray.init address='local', or stop that Ray, so that the script starts one of its own",
            address=elsewhere.read_text(encoding="utf-8"),
        )
    ]


def forget(folder: Path) -> None:
    """Takes away what the processes of a run left.

    Args:
        folder: The run's folder.
    """
    shutil.rmtree(folder / _FOLDER, ignore_errors=True)


def why_nothing(folder: Path) -> str:
    """Why a script whose command ended well left no record, in one sentence.

    Args:
        folder: The run's folder.
    """
    seen = {file.name for file in (folder / _FOLDER).glob("*")}
    if told := problems(folder):
        return tell("nothing was recorded: {problems}", problems=join("; ", told))
    if "recorded" in seen:
        return tell("nothing was recorded before the script ended")
    if "torch" in seen:
        return tell(
            "the script imported torch, and called no module (torch.nn.Module) that could be seen: there is nothing to"
            " compare; trainer.compile=eager shows those inside compiled functions"
        )
    if "python" in seen:
        return tell(
            "no Python process of the command imported torch: there is nothing to compare; those that it starts with"
            " -I, -E or -S, or with a PYTHONPATH of their own, are not seen"
        )
    return tell(
        "no Python process of the command reported in: it runs none, or with -I, -E or -S, or with a PYTHONPATH of its"
        " own"
    )


def why_nothing_of_ranks(folder: Path) -> str:
    """Why a trainer with an adapter of its own left no record, though it ended well, in one sentence.

    Args:
        folder: The run's folder.
    """
    seen = {file.name for file in (folder / _FOLDER).glob("*")}
    if told := problems(folder):
        return tell("nothing was recorded: {problems}", problems=join("; ", told))
    if "python" not in seen:
        return tell(
            "no Python process of the trainer reported in: with -I, -E or -S, or a PYTHONPATH of its own, none does"
        )
    modules = sorted({name for watched in bootstrap.WATCHED_OF.values() for name in watched} & seen)
    if not modules:
        return tell("no process imported what is observed; is trainer.script the one that trains?")
    return tell("{modules} was imported, and no process recorded with it", modules=", ".join(modules))
