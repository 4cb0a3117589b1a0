"""``python -m probe.trainer --config FILE``: trains, and records what the file or the check asks for."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import NoReturn, TextIO

from probe.config import TrainerRunConfig, load_trainer_config
from probe.errors import ConfigError, FirstdiffError, UsageError
from probe.privacy import never_call_home
from probe.types import RunSpec


class _Parser(argparse.ArgumentParser):
    """Exits with our status for bad usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(UsageError.exit_code, f"{self.prog}: {message}\n")


class _Lines(logging.StreamHandler[TextIO]):
    """Writes lines to standard output. When nobody reads it any more (``| head``), the training goes on in silence."""

    def handleError(self, record: logging.LogRecord) -> None:
        """See ``logging.Handler``."""
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            super().handleError(record)
            return
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def main() -> int:
    """Reads the configuration, sets the environment up, trains. Returns the exit status."""
    parser = _Parser(prog="python -m probe.trainer", description=__doc__)
    parser.add_argument("--config", required=True, type=Path, help="MindSpeed-RL style YAML file")
    parser.add_argument("--examine", action="store_true", help="set everything up and train nothing")
    arguments = parser.parse_args()
    never_call_home()
    try:
        config = load_trainer_config(arguments.config)
        restart_with(config.determinism.environment)
        for sentence in config.beyond_the_end if config.msprobe_config.msprobe else ():
            sys.stderr.write(f"{arguments.config}: {sentence}\n")
        logging.basicConfig(handlers=[_Lines(sys.stdout)], format="%(message)s", level=logging.INFO)
        from probe import Probe
        from probe.trainer.loop import examine, train

        probe = Probe.from_env()
        if not probe.active:
            probe = Probe(spec_of(config))
        try:
            (examine if arguments.examine else train)(config, probe)
        except BaseException:
            probe.close(failed=True)
            raise
        probe.close()
    except ConfigError as error:
        sys.stderr.write(f"{error if error.source else ConfigError(str(arguments.config), error.key, error.problem)}\n")
        return error.exit_code
    except FirstdiffError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def restart_with(variables: dict[str, str]) -> None:
    """Starts this program again where variables differ that only a new interpreter obeys (PYTHONHASHSEED)."""
    if any(os.environ.get(name) != value for name, value in variables.items()):
        program = [sys.executable, "-m", "probe.trainer", *sys.argv[1:]]
        os.execve(sys.executable, program, {**os.environ, **variables})  # noqa: S606  (this very program)


def spec_of(config: TrainerRunConfig) -> RunSpec | None:
    """What a trainer that was started alone records: what its ``msprobe_config`` says."""
    section = config.msprobe_config
    if not section.msprobe:
        return None
    from probe.collect.ranks import place_of_process

    place, local = place_of_process(), os.environ.get("LOCAL_WORLD_SIZE", "")
    world = 1 if place is None else place.world_size
    processes = int(local) if local.isdecimal() and 0 < int(local) <= world else world
    return RunSpec(
        run="alone",
        dump_path=section.dump_path,
        key_data="full" if section.key_data_dump else "off",
        configurations=section.configurations_dump,
        dump_stages=section.dump_stages,
        step_start=section.step_start,
        step_end=section.step_end,
        token_range=(section.token_range_start, section.token_range_end),
        task="statistics",
        determinism={**config.determinism.asked_for, **config.seeds},
        configuration=config.as_profile(processes, world // processes).model_dump(mode="json"),
    )


if __name__ == "__main__":
    sys.exit(main())
