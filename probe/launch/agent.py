"""``python -m probe.launch.agent FILE TORCHRUN-ARGUMENTS``: torchrun, which leaves in FILE which ranks failed and how.

torchrun itself only prints that, in a form for people; here its own exception is written as JSON.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args, run

from probe.launch.failures import Failure, write_failures


def main(file: Path, arguments: list[str]) -> int:
    """Runs torchrun. Returns the exit status: 1 when a rank failed.

    Args:
        file: Receives the failures.
        arguments: What torchrun is given, without the program.
    """
    options = parse_args(arguments)
    try:
        run(options)
    except ChildFailedError as error:
        host = None if options.standalone else socket.gethostname()
        failures = []
        for rank, failure in error.failures.items():
            folders = [*Path(options.log_dir).glob(f"*/attempt_0/{failure.local_rank}")]
            output = [folder / name for name in ("stdout.log", "stderr.log") for folder in folders]
            failures.append(Failure.of(rank, failure.exitcode, failure.timestamp, output, host))
        write_failures(file, failures)
        return 1
    except SignalException as error:
        return 128 + error.sigval.value
    except OSError as error:  # the program is not there
        sys.stderr.write(f"the trainer could not be started: {error.strerror}: {error.filename}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
