"""One device is used by one check at a time: locks, one file a device, which the kernel frees when their holder dies.

::

    /tmp/firstdiff-<user id>/, or what FIRSTDIFF_LOCKS names
      npu.check.lock      held by the check: alone by one that takes all devices of the kind, else together with others
      npu-3.check.lock    held by the check that takes device 3
      npu.use.lock …      the same, held by a run until nothing of its trainer is left, also where its check was killed

A check on the CPU takes none.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from probe.config import IntegratedTrainer, Profile
from probe.errors import InconclusiveError
from probe.launch.torchrun import hosts_are_one_machine

VISIBLE = {"npu": "ASCEND_RT_VISIBLE_DEVICES", "cuda": "CUDA_VISIBLE_DEVICES"}
"""What says which devices of a kind a process sees."""
FOLDER = "FIRSTDIFF_LOCKS"
"""Variable that names another folder for locks: of containers that share devices, say."""
_TEMPORARY = Path("/tmp")
"""Not TMPDIR or the like: jobs, services and terminals have their own, and must meet here."""
_NODES = {"npu": "davinci[0-9]*", "cuda": "nvidia[0-9]*"}
_POLL_SECONDS = 0.5
_SAY_AGAIN_SECONDS = 300.0
_log = logging.getLogger("firstdiff")


@dataclass(frozen=True, slots=True)
class Devices:
    """Accelerators of one kind that a trainer may use.

    Example:
        >>> Devices("npu", ("0", "3")).name
        'npu 0, 3'
    """

    kind: str
    numbers: tuple[str, ...] = ()
    """Which; none means all of the machine."""

    @property
    def name(self) -> str:
        """For a person."""
        return f"{self.kind} {', '.join(self.numbers)}" if self.numbers else self.kind

    @property
    def locks(self) -> list[tuple[str, int]]:
        """Names of the locks and how they are held, in the order in which everybody takes them."""
        if not self.numbers:
            return [(self.kind, fcntl.LOCK_EX)]
        return [(self.kind, fcntl.LOCK_SH), *((f"{self.kind}-{one}", fcntl.LOCK_EX) for one in self.numbers)]


def devices_of(profile: Profile, devices: Path = Path("/dev")) -> list[Devices]:
    """The accelerators that a profile's trainer may use on this host.

    Args:
        profile: The experiment. A command says nothing of its device: it may use each that it sees.
        devices: Where the machine's devices are listed.
    """
    trainer = profile.trainer
    if trainer.node_rank and hosts_are_one_machine(trainer):
        return []  # host 0 of the same check has them
    wanted = trainer.config.device if isinstance(trainer, IntegratedTrainer) else "auto"
    env = {} if isinstance(trainer, IntegratedTrainer) else trainer.env
    own = {name: value for name, value in env.items() if isinstance(value, str)}
    found = []
    for kind, variable in VISIBLE.items():
        here = any(devices.glob(_NODES[kind]))
        if wanted != kind and not (wanted == "auto" and here):
            continue
        visible = own.get(variable, os.environ.get(variable))
        if visible is None:
            found.append(Devices(kind))
        elif numbers := _numbers(visible):
            found.append(Devices(kind, numbers))
    return found


@contextmanager
def devices_reserved(profile: Profile) -> Iterator[None]:
    """Waits until no other check of this user on this host has the devices of this one, and keeps them.

    Raises:
        InconclusiveError: The locks' folder cannot be made, or is somebody else's.
    """
    with _locked(profile, "check"):
        yield


@contextmanager
def devices_in_use(profile: Profile) -> Iterator[list[int]]:
    """Waits until no trainer of another check, killed perhaps, is left on the devices.

    Yields:
        Descriptors that hold them as long as one copy is open.

    Raises:
        InconclusiveError: The locks' folder cannot be made, or is somebody else's.
    """
    with _locked(profile, "use") as descriptors:
        yield descriptors


@contextmanager
def _locked(profile: Profile, what: str) -> Iterator[list[int]]:
    held: list[int] = []
    try:
        for devices in devices_of(profile):
            folder = _folder()
            for name, how in devices.locks:
                held.append(_acquired(folder / f"{name}.{what}.lock", how, devices))
        yield held
    finally:
        for descriptor in held:
            os.close(descriptor)


def _acquired(path: Path, how: int, devices: Devices) -> int:
    """Waits for a lock; returns its descriptor."""
    said: float | None = None
    descriptor = _open(path)
    try:
        while not _got(descriptor, path, how, devices):
            if said is None or time.monotonic() - said > _SAY_AGAIN_SECONDS:
                said = time.monotonic()
                _log.info("waiting: another check uses %s (%s)", devices.name, _holder(descriptor))
            time.sleep(_POLL_SECONDS)
            os.close(descriptor)
            descriptor = _open(path)
        if how == fcntl.LOCK_EX:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()}".encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _got(descriptor: int, path: Path, how: int, devices: Devices) -> bool:
    """Whether the lock is held now, and is still the one that others find at its path."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EINTR):
            return False
        raise InconclusiveError(f"{devices.name}: {path} cannot be locked ({error.strerror})") from error
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False  # somebody tidied up


def _holder(descriptor: int) -> str:
    text = os.pread(descriptor, 100, 0).decode("ascii", errors="replace")
    return text if text.isprintable() and text else "its process is not known"


def _numbers(visible: str) -> tuple[str, ...]:
    """``0,1`` or ``0-3`` as sorted numbers; names such as GPU-8932f937 as they are, where a file can be called so."""
    found: set[str] = set()
    for part in filter(None, (part.strip() for part in visible.split(","))):
        first, dash, last = part.partition("-")
        if dash and first.isdigit() and last.isdigit() and int(last) - int(first) < 1 << 12:
            found |= {str(number) for number in range(int(first), int(last) + 1)}
        elif part == "-1":
            break  # CUDA sees none of those that follow
        else:
            found.add("".join(c if c.isalnum() or c in "-_" else "_" for c in part)[:100])
    return tuple(sorted(found))


def _folder() -> Path:
    """The user's own folder for locks.

    Raises:
        InconclusiveError: It cannot be made, or is not the user's own.
    """
    folder = Path(os.environ.get(FOLDER) or _TEMPORARY / f"firstdiff-{os.getuid()}")
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
    except OSError as error:
        raise InconclusiveError(f"{folder}: the folder for locks cannot be made ({error.strerror})") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise InconclusiveError(
            f"{folder}: is no folder of this user's own, which the locks of devices need; remove it, or name another in"
            f" {FOLDER}"
        )
    return folder


def _open(path: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InconclusiveError(f"{path}: the lock cannot be opened ({error.strerror}); remove it") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InconclusiveError(f"{path}: the lock is no file; remove it")
    return descriptor
