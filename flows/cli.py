"""The ``firstdiff`` command.

Data goes to stdout, everything for people to stderr. Exit status: 0 identical or equivalent, 1 divergent,
2 inconclusive, 64 bad usage or profile, 70 an internal error, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from flows import settings
from probe.errors import DumpError, FirstdiffError, UsageError
from probe.types import EXIT_CODES

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Are two runs of the same training the same bit for bit? If not: where is the first difference, and why?",
)

USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
"""What Typer raises for a wrong command line; it carries its own copy of click, which has no public name."""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Show the trainers' output and Prefect's logs.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Show the last line only.")]


@dataclass(frozen=True)
class Outcome:
    """What a command prints and exits with.

    Example:
        >>> Outcome({"verdict": "identical"}, "identical", 0).exit_code
        0
    """

    document: dict[str, Any]
    line: str
    exit_code: int


@app.command()
def check(
    profile: Annotated[str, typer.Argument(help="A file in profiles/ by name, or a path.")],
    override: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a profile key by its dotted path.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The check's folder, new or empty.")] = None,
    as_json: Json = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Train twice, compare, and name the first difference and its cause."""

    def work() -> Outcome:
        from probe.config import load_profile
        from probe.launch import check_folder, follow

        resolved = load_profile(profile, override)  # what is wrong is said before Prefect starts
        if resolved.trainer.node_rank:
            shared = _shared_folder(out)
            return _answer(follow(resolved, shared), shared)
        if resolved.trainer.nnodes > 1:
            _shared_folder(out)
        folder = check_folder(profile, str(out) if out else None)
        settings.prepare(verbose)
        from flows.determinism import determinism_check

        try:
            document = determinism_check(profile, override, str(folder))
        except OSError as error:  # a full disk, say
            raise DumpError(f"{folder}: {error.strerror or error}; no verdict could be written") from error
        document.pop("folder")
        return _answer(document, folder)

    _run(work, as_json, verbose, quiet)


@app.command()
def compare(
    dump_a: Annotated[Path, typer.Argument(help="A dump folder (msprobe_dump).")],
    dump_b: Annotated[Path, typer.Argument(help="Another.")],
    allow_different: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="A key of the experiment, or a section, that is meant to differ."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for verdict, report and tables, new or empty.")] = None,
    as_json: Json = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Compare two existing dump folders: key data, and layers where both have them."""

    def work() -> Outcome:
        from probe.comparison import compare_dumps
        from probe.report import last_line, summary_lines

        document = compare_dumps(dump_a, dump_b, out, allow_different or ())
        for line in [*summary_lines(document["key_data"]["summary"]), *document["notes"]]:
            logging.getLogger("firstdiff").info("%s", line)
        report = out / "report.html" if out else None
        return Outcome(document, last_line(document, report), EXIT_CODES[document["verdict"]])

    _run(work, as_json, verbose, quiet)


@app.command()
def doctor(as_json: Json = False) -> None:
    """Say what this machine has: versions, devices, determinism settings in effect."""

    def work() -> Outcome:
        from probe.doctor import examine, summary

        document = examine()
        for line in summary(document):
            logging.getLogger("firstdiff").info("%s", line)
        missing = document["missing"]
        line = f"missing: {', '.join(missing)}" if missing else "everything that is needed is here"
        return Outcome(document, line, 2 if missing else 0)

    _run(work, as_json, verbose=False, quiet=False)


@app.command()
def bench(
    name: Annotated[
        str | None, typer.Argument(help="recording, bytes, digests or device-digest; all without it.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure on this machine what recording and comparing cost, as ratios. Takes some minutes."""

    def work() -> Outcome:
        from probe.bench.suite import run_benchmarks, summary

        document = run_benchmarks(name)
        *lines, last = summary(document)
        for line in lines:
            logging.getLogger("firstdiff").info("%s", line)
        return Outcome(document, last, 0)

    _run(work, as_json, verbose=False, quiet=False)


def _answer(document: dict[str, Any], folder: Path) -> Outcome:
    from probe.report import last_line

    report = os.path.relpath(folder / "report.html")
    return Outcome(document, last_line(document, Path(report)), EXIT_CODES[document["verdict"]])


def _shared_folder(out: Path | None) -> Path:
    if out is None:
        raise UsageError("--out: a check of several hosts needs one folder that all of them share")
    return out.absolute()


def main() -> None:
    """Runs the command line."""
    as_json = "--json" in sys.argv[1:]
    try:
        status = app(standalone_mode=False)
    except typer.Abort:
        sys.exit(_fail("interrupted", 130, as_json))
    except USAGE_ERROR as error:
        sys.exit(_fail(f"{error}; firstdiff --help says what there is", 64, as_json))
    sys.exit(status or 0)


def _run(work: Callable[[], Outcome], as_json: bool, verbose: bool, quiet: bool) -> None:
    """Runs a command's work and exits: the one place that turns errors into exit statuses."""
    _log_to_stderr(verbose, quiet)
    signal.signal(signal.SIGTERM, _interrupt)  # so that trainers are ended too
    try:
        with contextlib.redirect_stdout(sys.stderr):
            outcome = work()
    except FirstdiffError as error:
        raise SystemExit(_fail(str(error), error.exit_code, as_json)) from error
    except KeyboardInterrupt as error:
        raise SystemExit(_fail("interrupted", 130, as_json)) from error
    except OSError as error:  # a full disk, a folder that vanished: the machine's doing, not a defect
        raise SystemExit(
            _fail(f"{error.filename or 'input or output'}: {error.strerror or error}", 2, as_json)
        ) from error
    except Exception as error:  # noqa: BLE001  (whatever is left is a defect, and is said in one sentence too)
        raise SystemExit(_fail(_internal(error), 70, as_json)) from error
    if as_json:
        sys.stdout.write(json.dumps(outcome.document, indent=2) + "\n")
    sys.stderr.write(_printable(outcome.line) + "\n")
    raise SystemExit(outcome.exit_code)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _fail(message: str, status: int, as_json: bool) -> int:
    sentence = " ".join(message.split())
    if as_json and status != 2:
        sys.stdout.write(json.dumps({"format": 1, "verdict": None, "error": sentence}) + "\n")
    elif as_json:
        sys.stdout.write(json.dumps({"format": 1, "verdict": "inconclusive", "error": sentence}) + "\n")
    sys.stderr.write(f"firstdiff: {_printable(sentence)}\n")
    return status


def _internal(error: Exception) -> str:
    """One sentence for a defect; the traceback goes into a file for whoever mends it."""
    with tempfile.NamedTemporaryFile("w", prefix="firstdiff-", suffix=".log", delete=False, encoding="utf-8") as file:
        file.write("".join(traceback.format_exception(error)))
    return f"internal error, please report it with {file.name}: {type(error).__name__}: {error}"


def _printable(text: str) -> str:
    """Text for a terminal. Names come from anybody's dumps: none moves the cursor or has no encoding."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


class _PrintableFormatter(logging.Formatter):
    """Formats a record as text that is safe for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return _printable(super().format(record))


def _log_to_stderr(verbose: bool, quiet: bool) -> None:
    logger = logging.getLogger("firstdiff")
    logger.setLevel(logging.INFO)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_PrintableFormatter("%(message)s"))
    handler.addFilter(lambda record: verbose or not (quiet or record.name == "firstdiff.trainer"))
    logger.handlers = [handler]
    logger.propagate = False


if __name__ == "__main__":
    main()
