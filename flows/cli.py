"""The ``firstdiff`` command.

Data goes to stdout, everything for people to stderr. Exit status: 0 identical or equivalent, 1 divergent,
2 inconclusive, 64 bad usage or profile, 70 an internal error, 130 interrupted.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import typer

from flows import settings
from flows.terminal import Streams, fail, internal_error, printable, show_log
from probe.errors import FirstdiffError, UsageError, is_interruption
from probe.language import chosen_language, language, said, speaking
from probe.types import EXIT_CODES

if TYPE_CHECKING:
    from probe.config import Profile

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Are two runs of the same training the same bit for bit? If not: where is the first difference, and why?",
)

USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
"""What Typer raises for a wrong command line; it carries its own copy of click, which has no public name."""

Override = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a profile key by its dotted path.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Show the trainers' output and Prefect's logs.")]
Lang = Annotated[
    Literal["en", "zh"] | None,
    typer.Option("--lang", help="Language for people: by FIRSTDIFF_LANG, else by the locale, without it."),
]
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
    show: Callable[[TextIO], None] | None = None
    """Shows people what is more than lines of a log."""


@app.command(epilog="firstdiff check [OPTIONS] -- COMMAND checks any PyTorch script, as it is, without a profile.")
def check(
    context: typer.Context,
    profile: Annotated[str | None, typer.Argument(help="A file in profiles/ by name, or a path.")] = None,
    override: Override = None,
    out: Annotated[Path | None, typer.Option(help="The check's folder, new or empty.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Start though the disk has too little room.")] = False,
    lang: Lang = None,
    as_json: Json = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Train twice, compare, and name the first difference and its cause."""
    command: list[str] | None = context.obj
    if command == [] or (command is None) == (profile is None):
        what = "there is no command behind --" if command == [] else "give a PROFILE, or a command behind --"
        raise typer.BadParameter(f"{what}: firstdiff check -- python train.py", param_hint="PROFILE")

    def work() -> Outcome:
        if command is None:
            return work_on(str(profile))
        from flows.command import profile_of_command

        with profile_of_command(command) as file:
            return work_on(str(file))

    def work_on(profile: str) -> Outcome:
        from probe.config import hand_on, load_profile
        from probe.disk import require_room
        from probe.launch import check_folder, follow

        resolved = load_profile(profile, override)  # what is wrong is said before Prefect starts
        if resolved.trainer.node_rank:
            shared = _shared_folder(out)
            return _answer(follow(_with_secrets(resolved, verbose), shared), shared)
        if resolved.trainer.nnodes > 1:
            _shared_folder(out)
        require_room(out or Path("checks/new"), profile, resolved, override or (), force)
        folder = check_folder(profile, str(out) if out else None)
        settings.prepare(verbose)
        settings.connect()
        from flows.determinism import determinism_check
        from flows.states import document_of

        overrides = hand_on(override or [], getattr(resolved.trainer, "secrets", []))
        state = determinism_check(
            profile=profile, overrides=overrides, out=str(folder), force=force, lang=language(), return_state=True
        )
        document = document_of(state)
        document.pop("folder")
        return _answer(document, folder)

    _run(work, as_json, verbose, quiet, lang)


@app.command()
def compare(
    dump_a: Annotated[Path, typer.Argument(help="A dump folder of ours, msprobe's or a trainer's, or a checkpoint.")],
    dump_b: Annotated[Path, typer.Argument(help="Another of its kind.")],
    allow_different: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="A key of the experiment, or a section, that is meant to differ."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for verdict, report and tables, new or empty.")] = None,
    lang: Lang = None,
    as_json: Json = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Compare what exists: dumps (key data, traces, layers), or two checkpoints."""

    def work() -> Outcome:
        from probe.comparison import compare_dumps
        from probe.report import certainty_line, checkpoint_lines, hint_line, last_line, summary_lines

        document = compare_dumps(dump_a, dump_b, out, allow_different or ())
        last = [line for line in (certainty_line(document), hint_line(document)) if line]
        found = [*summary_lines(document["key_data"]["summary"]), *checkpoint_lines(document)]
        for line in [*found, *document["notes"], *last]:
            logging.getLogger("firstdiff").info("%s", line)
        report = out / "report.html" if out else None
        return Outcome(document, last_line(document, report), EXIT_CODES[document["verdict"]])

    _run(work, as_json, verbose, quiet, lang)


@app.command()
def doctor(
    profile: Annotated[
        str | None, typer.Argument(help="A profile: its workers are started and asked what is in effect there.")
    ] = None,
    override: Override = None,
    as_json: Json = False,
) -> None:
    """Say what this machine has, and whether a profile's workers have what it asks for."""

    def work() -> Outcome:
        from probe.doctor import examine, examine_profile, is_well, last_line, summary

        document = examine()
        if profile is not None:
            document["workers_of_profile"] = examine_profile(profile, override or ())
        elif override:
            raise UsageError("--set: name a profile too")
        for line in summary(document):
            logging.getLogger("firstdiff").info("%s", line)
        return Outcome(document, last_line(document), 0 if is_well(document) else 2)

    _run(work, as_json, verbose=False, quiet=False)


@app.command()
def bench(
    name: Annotated[
        str | None,
        typer.Argument(help="recording, bytes, digests, device-digest, trace, locate or overhead; all without it."),
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


Checks = Annotated[Path, typer.Option("--checks", metavar="DIR", help="The folder of checks.")]


@app.command()
def history(
    profile: Annotated[str | None, typer.Argument(help="A profile's name; all of them without it.")] = None,
    checks: Checks = Path("checks"),
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Read all checks' folders again.")] = False,
    lang: Lang = None,
    as_json: Json = False,
) -> None:
    """Tell since when profiles are divergent, what changed then, and whether it is one cause."""

    def work() -> Outcome:
        from flows.past import history_of

        document, show, line = history_of(profile, checks, rebuild)
        return Outcome(document, line, 0, show)

    _run(work, as_json, verbose=False, quiet=False, lang=lang)


@app.command()
def prune(
    checks: Checks = Path("checks"),
    older_than: Annotated[float | None, typer.Option(metavar="DAYS", min=0, help="Checks of more days go.")] = None,
    max_checks: Annotated[int | None, typer.Option(metavar="N", min=0, help="The oldest go until N are left.")] = None,
    max_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="The oldest go until all take no more, as 20G.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    as_json: Json = False,
) -> None:
    """Remove old checks; never one that runs, nor the newest divergent one of each profile."""

    def work() -> Outcome:
        from probe.disk import parse_size, prune, pruned_lines

        size = None if max_bytes is None else parse_size(max_bytes)
        result = prune(checks, older_than, max_checks, size, dry_run)
        *lines, last = pruned_lines(result)
        for line in lines:
            logging.getLogger("firstdiff").info("%s", line)
        return Outcome(result.as_dict(), last, 2 if result.failed else 0)

    _run(work, as_json, verbose=False, quiet=False)


@app.command()
def replay(
    check: Annotated[Path, typer.Argument(help="A check's folder, or a dump folder (msprobe_dump), with a capture.")],
    times: Annotated[int, typer.Option(help="How often the module runs in one process, 2 or more.")] = 20,
    lang: Lang = None,
    as_json: Json = False,
) -> None:
    """Run the captured module again, alone: does it differ by itself?

    This loads the module from the capture, and so runs code of whoever made it: replay only checks of your own.
    """

    def work() -> Outcome:
        from probe.replay import replay_check, summary

        answer = replay_check(check, times)
        return Outcome(answer.as_dict(), said(summary(answer)), 0)

    _run(work, as_json, verbose=False, quiet=False, lang=lang)


@app.command()
def unpack(
    dump: Annotated[Path, typer.Argument(help="A dump folder (msprobe_dump) that was compressed.")],
    target: Annotated[Path, typer.Argument(help="A new folder for its files.")],
    as_json: Json = False,
) -> None:
    """Write the files of a compressed dump into a folder, for msprobe's own tools."""

    def work() -> Outcome:
        from flows.past import unpack_dump

        document = unpack_dump(dump, target)
        return Outcome(document, f"unpacked into {target}", 0)

    _run(work, as_json, verbose=False, quiet=False)


def _answer(document: dict[str, Any], folder: Path) -> Outcome:
    from probe.report import hint_line, last_line

    if line := hint_line(document):
        logging.getLogger("firstdiff").info("%s", line)
    report = os.path.relpath(folder / "report.html")
    return Outcome(document, last_line(document, Path(report)), EXIT_CODES[document["verdict"]])


def _with_secrets(profile: Profile, verbose: bool) -> Profile:
    """The profile of a host that starts no flow, with its secrets: only where it has any does it need Prefect."""
    from probe.config import has_sources, plain

    if not has_sources(plain(profile)):
        return profile
    settings.prepare(verbose)
    settings.connect()
    from flows.secrets import with_secrets

    return with_secrets(profile)


def _shared_folder(out: Path | None) -> Path:
    if out is None:
        raise UsageError("--out: a check of several hosts needs one folder that all of them share")
    return out.absolute()


def main() -> None:
    """Runs the command line."""
    arguments, command = _before_the_command(sys.argv[1:])
    as_json = "--json" in arguments
    try:
        status = app(arguments, standalone_mode=False, obj=command)
    except typer.Abort:
        sys.exit(fail("interrupted", 130, as_json, sys.stdout, sys.stderr))
    except USAGE_ERROR as error:
        said = getattr(error, "format_message", error.__str__)()  # with the option's name, where there is one
        sys.exit(fail(f"{said}; firstdiff --help says what there is", 64, as_json, sys.stdout, sys.stderr))
    sys.exit(status or 0)


def _before_the_command(arguments: list[str]) -> tuple[list[str], list[str] | None]:
    """The arguments that are ours, and the command behind ``--``; None where there is none."""
    if arguments[:1] != ["check"] or "--" not in arguments:
        return arguments, None
    place = arguments.index("--")
    return arguments[:place], arguments[place + 1 :]


def _run(
    work: Callable[[], Outcome], as_json: bool, verbose: bool, quiet: bool, lang: Literal["en", "zh"] | None = "en"
) -> None:
    """Runs a command's work in a language for people, and exits."""
    try:
        spoken = chosen_language(lang)
    except UsageError as error:
        raise SystemExit(fail(str(error), error.exit_code, as_json, sys.stdout, sys.stderr)) from error
    with speaking(spoken):
        _do(work, as_json, verbose, quiet)


def _do(work: Callable[[], Outcome], as_json: bool, verbose: bool, quiet: bool) -> None:
    """Does a command's work and exits: the one place that turns errors into exit statuses."""
    streams = Streams(verbose)
    end_of_log = show_log(streams, verbose, quiet)
    if not verbose:
        warnings.simplefilter("ignore")
    signal.signal(signal.SIGTERM, _interrupt)  # so that trainers are ended too

    def failed(message: str, status: int) -> SystemExit:
        end_of_log()
        return SystemExit(fail(message, status, as_json, streams.results, streams.people))

    try:
        outcome = work()
    except FirstdiffError as error:
        raise failed(str(error), error.exit_code) from error
    except KeyboardInterrupt as error:
        raise failed("interrupted", 130) from error
    except OSError as error:  # a full disk, a folder that vanished: the machine's doing, not a defect
        raise failed(f"{error.filename or 'input or output'}: {error.strerror or error}", 2) from error
    except Exception as error:  # noqa: BLE001  (whatever is left is a defect, and is said in one sentence too)
        if is_interruption(error):  # Prefect raises errors of its own when it is interrupted at some moments
            raise failed("interrupted", 130) from error
        raise failed(internal_error(error, streams.said_aside()), 70) from error
    end_of_log()
    if outcome.show is not None:
        outcome.show(streams.people)
    if as_json:
        streams.results.write(json.dumps(outcome.document, indent=2) + "\n")
    streams.people.write(printable(outcome.line) + "\n")
    raise SystemExit(outcome.exit_code)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
