"""Several hosts run one check: host 0 decides, the others follow it through small files in the check's folder.

::

    <check>/hosts/
      check.json             host 0 began: the check's name and its profile
      join{k}.json           host k is there
      beat{k}.json           host k lives: a number that grows
      run-{run}.json         host 0 starts a run: what to record, and the launch's name
      run-{run}.failed{k}    host k's part failed: the others end theirs
      run-{run}.host{k}.json host k's part has ended, and what it recorded lies in the run's folder
      end.json               host 0 has ended, and why where it has no verdict

Every file is written whole. Clocks are never compared: a host is silent when its beat does not change.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from probe.config import Launch, Profile
from probe.errors import TrainerError
from probe.launch.failures import Failure, first_failure
from probe.launch.running import Ended, Here
from probe.masking import masked_profile
from probe.store.writer import write_json
from probe.types import RunSpec

FOLDER = "hosts"
JOIN_SECONDS = 600.0
"""Longest time to wait for another host to begin, unless ``trainer.time_limit`` says another."""
SILENT_SECONDS = 90.0
"""Time without a beat after which a host has vanished: shared file systems may show a change a minute late."""
BEAT_SECONDS = 2.0
POLL_SECONDS = 0.3


class Hosts:
    """The files through which the hosts of one check speak.

    Args:
        check: The check's folder.
        me: This host's number.
        trainer: How many hosts there are, and how long one waits.
    """

    def __init__(self, check: Path, me: int, trainer: Launch) -> None:
        self.folder = check / FOLDER
        self.me = me
        self.count = trainer.nnodes
        self.patience = trainer.time_limit or JOIN_SECONDS
        self._seen: dict[int, tuple[Any, float]] = {}

    def read(self, name: str) -> dict[str, Any] | None:
        """The content of a file; None while it is not there."""
        try:
            content = json.loads((self.folder / name).read_bytes())
        except (OSError, ValueError):
            return None
        return content if isinstance(content, dict) else None

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Writes a whole file."""
        write_json(self.folder / name, content)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Shows the other hosts that this one lives."""
        ended = threading.Event()

        def beat() -> None:
            number = 0
            while True:
                number += 1
                try:
                    self.write(f"beat{self.me}.json", {"beat": number})
                except OSError:  # a full disk: the next may succeed, and if none does, this host is silent
                    pass
                if ended.wait(BEAT_SECONDS):
                    return

        thread = threading.Thread(target=beat, name="firstdiff-beat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def silent(self, host: int) -> str | None:
        """A sentence when a host gave no sign of life for too long."""
        now, beat = time.monotonic(), self.read(f"beat{host}.json")
        seen = self._seen.get(host)
        if seen is None or (beat is not None and beat != seen[0]):
            self._seen[host] = (beat, now)
        elif now - seen[1] > SILENT_SECONDS:
            return f"host {host} vanished: it gave no sign of life for {SILENT_SECONDS:g} s"
        return None

    def others_fail(self, run: str) -> str | None:
        """A sentence when another host's part of a run failed, or another host vanished."""
        for host in range(self.count):
            if host == self.me:
                continue
            if (self.folder / f"run-{run}.failed{host}").exists():
                return f"ended since host {host} failed"
            if (self.me == 0 or host == 0) and (reason := self.silent(host)) is not None:
                return reason
        if self.me and self.read("end.json") is not None:
            return "ended since host 0 did"
        return None

    def take_part(self, spec: RunSpec, launch: str, folder: Path, here: Here) -> Ended:
        """Runs this host's part, and tells the others at once where it failed."""
        ended = here(folder, spec, launch, lambda: self.others_fail(spec.run))
        if ended.error is not None and not ended.told:
            (self.folder / f"run-{spec.run}.failed{self.me}").touch()
        return ended


@contextmanager
def leading(profile: Profile, check: Path) -> Iterator[None]:
    """Begins a check of several hosts as host 0, and tells the others when and how it has ended."""
    if profile.trainer.nnodes == 1:
        yield
        return
    hosts = Hosts(check, 0, profile.trainer)
    hosts.folder.mkdir()
    with hosts.beating():
        name = f"{check.name}-{secrets.token_hex(4)}"
        hosts.write("check.json", {"check": name, "profile": masked_profile(profile.model_dump(mode="json"), False)})
        error: str | None = "host 0 was interrupted"
        try:
            yield
            error = None
        except Exception as problem:
            error = f"host 0 failed: {problem}"
            raise
        finally:
            hosts.write("end.json", {"error": error})


def run_on_all(trainer: Launch, folder: Path, spec: RunSpec, here: Here) -> Ended:
    """Runs a trainer on all hosts, as host 0, and waits until what each recorded lies in the run's folder.

    Args:
        trainer: How many hosts there are.
        folder: The run's folder.
        spec: What to record.
        here: Runs this host's part.

    Raises:
        TrainerError: A host did not come, or cannot take part.
    """
    hosts = Hosts(folder.parent, 0, trainer)
    check = hosts.read("check.json")
    if check is None:
        raise TrainerError(f"run {spec.run}: {hosts.folder / 'check.json'} is gone")
    for host in range(1, trainer.nnodes):
        joined = wait(lambda host=host: hosts.read(f"join{host}.json"), hosts.patience)  # type: ignore[misc]
        if joined is None:
            command = "start the same firstdiff check there, with its own trainer.node_rank"
            raise TrainerError(f"run {spec.run}: host {host} did not come within {hosts.patience:g} s; {command}")
        if joined["error"] is not None:
            raise TrainerError(f"run {spec.run}: host {host} cannot take part: {joined['error']}")
    launch = f"{check['check']}-{spec.run}"
    hosts.write(f"run-{spec.run}.json", {"launch": launch, "spec": spec.to_json()})
    parts = [hosts.take_part(spec, launch, folder, here)]
    for host in range(1, trainer.nnodes):
        parts.append(_part_of(hosts, host, spec.run))
    return _together(parts)


def told(ended: Ended) -> dict[str, Any]:
    """What a host says of its part."""
    return asdict(ended)


def _part_of(hosts: Hosts, host: int, run: str) -> Ended:
    silence: str | None = None

    def part() -> dict[str, Any] | None:
        nonlocal silence
        found = hosts.read(f"run-{run}.host{host}.json")
        silence = None if found else hosts.silent(host)
        return found or ({} if silence else None)

    content = wait(part, None)
    if not content:
        return Ended(silence)
    failures = [Failure(**failure) for failure in content.pop("failures")]
    return Ended(**content, failures=failures)


def _together(parts: list[Ended]) -> Ended:
    """What came of a run on all hosts: the first failure, whichever host it was on."""
    failures = [failure for part in parts for failure in part.failures]
    failed = [part for part in parts if part.error is not None]
    if not failed:
        return Ended()
    first = next((part for part in failed if not part.told), failed[0])
    if (hung := next((part for part in parts if part.hung), None)) is not None:
        first, failures = hung, []  # what ranks of other hosts said when it was ended
    if (culprit := first_failure(failures)) is not None:
        first = next(part for part in parts if culprit in part.failures)
    elif len(parts) > 1:
        first = replace(first, error=f"host {parts.index(first)}: {first.error}")
    return replace(first, failures=failures)


def wait(found: Callable[[], dict[str, Any] | None], patience: float | None) -> dict[str, Any] | None:
    """Asks until something is there; None when the time is over."""
    start = time.monotonic()
    while (content := found()) is None:
        if patience is not None and time.monotonic() - start > patience:
            return None
        time.sleep(POLL_SECONDS)
    return content
