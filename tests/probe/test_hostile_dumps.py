"""Dump folders from anybody, through ``firstdiff compare``: one clear finding each, and nothing outside is touched.

Every command runs in a process of its own with a limit on its memory and an alarm, so that a command that hangs, or
takes the machine's memory, fails its test alone. The processes are forks of one that has imported everything.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pytest
import torch
from xxhash import xxh3_128_hexdigest

from probe.collect.values import Snapshot
from probe.store.writer import DumpWriter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits, FIFOs and names of bytes as Linux has them")

MakeDump = Callable[..., Path]
ROOT = Path(__file__).resolve().parents[2]
SECRET = b"the-secret-that-nobody-may-see"
NOBODY = 65534
GIB = 1 << 30
MODULE = "Module.fc.Linear.forward.0"
TENSOR = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "data_name": f"{MODULE}.pt"}

COMMANDS = """
import gc, importlib.util, json, os, resource, signal, sys, tempfile
from pathlib import Path

import flows.cli

find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "msprobe" else find_spec(name, *rest)
with tempfile.TemporaryDirectory() as folder:  # whatever is imported late is imported now: nobody may read the modules
    (Path(folder) / "a/data").mkdir(parents=True)
    sys.argv = ["firstdiff", "compare", f"{folder}/a", f"{folder}/a", "--json", "--out", f"{folder}/out"]
    own = [os.dup(number) for number in (1, 2)]
    for number in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    try:
        flows.cli.main()
    except SystemExit:
        for number, kept in zip((1, 2), own):
            os.dup2(kept, number)
gc.freeze()
for line in sys.stdin:
    order = json.loads(line)
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            signal.alarm(order["seconds"])
            for number, name in enumerate((os.devnull, order["stdout"], order["stderr"])):
                os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
            resource.setrlimit(resource.RLIMIT_AS, (order["memory"], order["memory"]))
            if order["msprobe"]:
                importlib.util.find_spec = find_spec
            os.chdir(order["cwd"])
            if order["user"] is not None:
                os.setgroups([])
                os.setgid(order["user"])
                os.setuid(order["user"])
            sys.argv = ["firstdiff", *order["arguments"]]
            flows.cli.main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 98
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    _, status, usage = os.wait4(pid, 0)
    print(json.dumps([os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024]), flush=True)
"""


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    status: int
    stdout: str
    stderr: str
    peak: int
    """Most memory that it held, in bytes."""

    @property
    def document(self) -> Any:
        return json.loads(self.stdout)

    @property
    def sentences(self) -> str:
        """What was not compared, and why there is no verdict."""
        found = self.document
        return "\n".join([*found.get("not_compared", []), found.get("error") or ""])


Run = Callable[..., Result]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs ``firstdiff ARGUMENTS --json``."""
    folder = tmp_path_factory.mktemp("commands")
    process = subprocess.Popen(
        [sys.executable, "-c", COMMANDS],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONIOENCODING": "utf-8:strict",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None

    def command(
        *arguments: str | Path,
        seconds: int = 30,
        memory: int = 4 * GIB,
        user: int | None = None,
        msprobe: bool = False,
    ) -> Result:
        assert process.stdin is not None and process.stdout is not None
        out, err = folder / "stdout", folder / "stderr"
        order = {
            "arguments": [*map(str, arguments), "--json"],
            "cwd": str(folder),
            "stdout": str(out),
            "stderr": str(err),
            "seconds": seconds,
            "memory": memory,
            "user": user,
            "msprobe": msprobe,
        }
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        status, peak = json.loads(process.stdout.readline())
        result = Result(status, out.read_text("utf-8"), err.read_text("utf-8", "backslashreplace"), peak)
        assert status != -14, f"hangs: {arguments}\n{result.stderr}"
        if "Traceback" in result.stderr:
            pytest.fail(result.stderr[-3000:])
        assert status in (0, 1, 2, 64), f"exit status {status}\n{result.stdout[-2000:]}\n{result.stderr[-2000:]}"
        return result

    yield command
    process.stdin.close()
    process.wait(60)
    process.stdout.close()


# ---- the two kinds of dump, and what is wanted of a damaged one ----


def _write_ours(folder: Path) -> None:
    """A dump with an index and a manifest: two steps."""
    folder.mkdir()
    writer = DumpWriter(folder, folder.name, keep_values=True)
    for step in range(2):
        for tag, value, stage in (
            ("prompts", torch.arange(6).reshape(2, 3) + step, None),
            ("loss", torch.full((4,), 0.5 + step), "actor_update"),
        ):
            shot = Snapshot.take(value)
            writer.add(tag, step, 0, 0, "", stage, shot.numbers, shot.dtype, shot.shape, shot.digest)
        shot = Snapshot.take(torch.ones(3) * step)
        writer.add_digests("weights", step, 0, [("actor.w", shot.dtype, shot.shape, shot.digest)])
        writer.finish_step(step)
    writer.close(complete=True)


def _write_layers(folder: Path) -> None:
    """One small layer window and nothing else, as msprobe writes it."""
    window = _window(folder)
    (window / "dump_tensor_data").mkdir(parents=True)
    torch.save(torch.ones(2), _tensor(folder))
    data = {MODULE: {"input_args": [TENSOR], "input_kwargs": {}, "output": [TENSOR]}}
    (window / "dump.json").write_text(json.dumps({"task": "tensor", "level": "L0", "data": data}))
    (window / "construct.json").write_text(json.dumps({MODULE: None}))
    (window / "stack.json").write_text("{}")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, single_save_tree: Path, run: Run) -> Path:
    """One good dump of each kind. Two of a kind are identical, or no test here would say anything."""
    folder = tmp_path_factory.mktemp("whole")
    _write_ours(folder / "ours")
    _write_layers(folder / "layered")
    shutil.copytree(single_save_tree, folder / "tree")
    for name in ("ours", "tree", "layered"):
        shutil.copytree(folder / name, folder / "copy")
        found = run("compare", folder / name, folder / "copy")
        assert (found.status, found.document["verdict"]) == (0, "identical"), found.stdout
        assert found.document["key_data"]["compared"] or found.document["layers"]["compared"]
        shutil.rmtree(folder / "copy")
    return folder


Kind = Callable[[str], Path]
"""Makes a good dump of a kind, below the test's folder."""


@pytest.fixture
def ours(whole: Path, tmp_path: Path) -> Kind:
    """A dump with an index and a manifest."""
    return lambda name: shutil.copytree(whole / "ours", tmp_path / name)


@pytest.fixture
def tree(whole: Path, tmp_path: Path) -> Kind:
    """A dump that SingleSave wrote."""
    return lambda name: shutil.copytree(whole / "tree", tmp_path / name)


@pytest.fixture
def layered(whole: Path, tmp_path: Path) -> Kind:
    """A dump that holds layers alone."""
    return lambda name: shutil.copytree(whole / "layered", tmp_path / name)


@dataclass
class Outside:
    """A folder that is no part of any dump, and whether anybody looked at it."""

    folder: Path

    def __post_init__(self) -> None:
        np.save(self.array, np.frombuffer(SECRET, np.uint8))
        (self.folder / "secret.json").write_text(json.dumps({"torch": SECRET.decode()}))
        (self.folder / "nested").mkdir()
        self.paths = [self.folder, *sorted(self.folder.iterdir())]

    @property
    def array(self) -> Path:
        return self.folder / "secret.npy"

    def forget(self) -> None:
        """Sets access times back, so that a look at a file changes its time (unless they are not kept at all)."""
        for path in self.paths:
            status = path.stat()
            os.utime(path, ns=(status.st_mtime_ns - 10**12, status.st_mtime_ns))
        self._times = {path: path.stat().st_atime_ns for path in self.paths}

    @property
    def looked_at(self) -> list[Path]:
        return [path for path in self.paths if path.stat().st_atime_ns != self._times[path]]


@pytest.fixture
def outside(tmp_path: Path) -> Outside:
    folder = tmp_path / "outside"
    folder.mkdir()
    return Outside(folder)


def test_a_look_outside_would_be_noticed(outside: Outside) -> None:
    if os.statvfs(outside.folder).f_flag & os.ST_NOATIME:
        pytest.skip("this file system keeps no access times")
    outside.forget()
    assert outside.looked_at == []
    outside.array.read_bytes()
    list(outside.folder.iterdir())
    assert outside.looked_at == [outside.folder, outside.array]


def _texts(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Every file's bytes; of a spreadsheet its members."""
    for path in folder.rglob("*"):
        if path.suffix == ".xlsx":
            with zipfile.ZipFile(path) as book:
                yield from ((path, book.read(name)) for name in book.namelist())
        elif path.is_file():
            yield path, path.read_bytes()


Damage = Callable[[Path, Outside], str]
"""Damages a dump; returns what a finding must name."""


@pytest.fixture(params=["ours", "tree"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Both kinds of dump."""
    made: Kind = request.getfixturevalue(request.param)
    return made


@pytest.fixture(params=["one", pytest.param("both", marks=pytest.mark.slow)])
def both(request: pytest.FixtureRequest) -> bool:
    """Whether both dumps are damaged, in the same way."""
    return bool(request.param == "both")


PAIRS = [
    ("ours", "both"),
    ("tree", "one"),
    pytest.param("ours", "one", marks=pytest.mark.slow),
    pytest.param("tree", "both", marks=pytest.mark.slow),
]
"""Kinds of dump and how many of a pair are damaged: for the longer lists."""


@pytest.fixture
def assert_found(run: Run, tmp_path: Path, outside: Outside) -> Callable[..., Result]:
    """Damages one dump of a pair or both: what comes out must be a clear finding."""

    def check(
        make: Kind, damage: Damage, both: bool, may: tuple[int, ...] = (2,), out: bool = False, **options: Any
    ) -> Result:
        a, b = make("a"), make("b")
        named = damage(b, outside)
        if both:
            assert damage(a, outside) == named
        outside.forget()
        found = run("compare", a, b, *(["--out", tmp_path / "out"] if out else []), **options)
        assert outside.looked_at == []
        for path, content in [*_texts(tmp_path / "out"), (tmp_path, found.stdout.encode())]:
            assert SECRET not in content, f"{path} holds what lies outside the dump"
        assert not (tmp_path / "witness").exists(), "a pickle ran"
        assert found.status in may, f"{found.status}: {found.stderr}\n{found.stdout[-3000:]}"
        assert found.document["verdict"] == {1: "divergent", 2: "inconclusive"}.get(found.status, "identical")
        if found.status == 2:
            _assert_named(named, found)
        return found

    return check


AssertFound = Callable[..., Result]


def _assert_named(named: str, found: Result) -> None:
    """Not a plain assert: pytest would compare long texts for a long time."""
    if named not in found.sentences:
        pytest.fail(f"nothing names {named!r}: {found.sentences[:2000]}")


def _values(dump: Path) -> Path:
    return sorted((dump / "data/loss").rglob("loss.npy"))[0]


def _replaced(dump: Path, content: bytes) -> str:
    _values(dump).write_bytes(content)
    return "loss.npy"


class Boom:
    """Unpickling it writes a file."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.witness), "w"))


def _witness(dump: Path) -> Boom:
    return Boom(dump.parent / "witness")


def _header(descr: object, shape: tuple[int, ...], data: bytes = b"", order: bool = False) -> bytes:
    """A ``.npy`` file whose header says anything."""
    text = repr({"descr": descr, "fortran_order": order, "shape": shape}).encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


def _saved(array: Any, **options: Any) -> bytes:
    with tempfile.TemporaryFile() as file:
        np.save(file, array, **options)
        file.seek(0)
        return file.read()


VALUES: dict[str, Callable[[Path], bytes]] = {
    "empty": lambda _: b"",
    "cut off": lambda file: file.read_bytes()[:-1],
    "header alone": lambda file: file.read_bytes()[:128],
    "half a header": lambda file: file.read_bytes()[:60],
    "a byte more": lambda file: file.read_bytes() + b"\0",
    "other bytes": lambda _: bytes(range(256)) * 3,
    "objects": lambda file: _saved(np.array([_witness(file.parents[5])], dtype=object), allow_pickle=True),
    "a pickle": lambda file: pickle.dumps(_witness(file.parents[5])),
    "terabytes": lambda _: _header("<f4", (2**40, 2**40)),
    "a terabyte": lambda _: _header("<f4", (2**38,)),
    "negative": lambda _: _header("<f4", (-1,)),
    "a hundred axes": lambda _: _header("<f4", (1,) * 100, bytes(4)),
    "an axis beyond all": lambda _: _header("<f4", (0, 2**70)),
    "a size that is true": lambda _: _header("<f4", (True,), bytes(4)),
    "a shape of text": lambda _: (
        b"\x93NUMPY\x01\x00\x40\x00" + b"{'descr':'<f4','fortran_order':False,'shape':('1',)}".ljust(64)
    ),
    "a header that is code": lambda _: b"\x93NUMPY\x01\x00\x40\x00" + b"__import__('os').getpid()".ljust(64),
    "a deep header": lambda _: b"\x93NUMPY\x01\x00\x00\x20" + (b"[" * 8000).ljust(8192),
    "a long header": lambda _: b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + bytes(1000),
    "version 3": lambda file: file.read_bytes().replace(b"\x93NUMPY\x01", b"\x93NUMPY\x03"),
    "a structure": lambda _: _saved(np.zeros(2, dtype=[("a", "<f4"), ("b", "<i4")])),
    "text": lambda _: _saved(np.array(["a", "bc"])),
    "bytes": lambda _: _saved(np.array([b"a", b"bc"])),
    "dates": lambda _: _saved(np.array(["2026-01-01"], dtype="datetime64[D]")),
    "raw": lambda _: _saved(np.zeros(2, dtype="V3")),
    "a long double": lambda _: _saved(np.zeros(2, dtype=np.longdouble)),
    "an archive": lambda _: b"PK\x03\x04" + bytes(100),
}
"""Contents that no reader may take for the numbers that were there."""


@pytest.mark.parametrize(("kind", "both"), PAIRS, indirect=True)
@pytest.mark.parametrize("name", VALUES)
def test_values(assert_found: AssertFound, kind: Kind, both: bool, name: str) -> None:
    same_size = []

    def damage(dump: Path, outside: Outside) -> str:
        size = _values(dump).stat().st_size
        _replaced(dump, VALUES[name](_values(dump)))
        same_size.append(_values(dump).stat().st_size == size and (dump / "index").exists())
        return "loss.npy"

    # where there are digests, files of the right number and sizes are not opened: the digests are what was recorded
    found = assert_found(kind, damage, both, may=(0, 2))
    assert found.status == 2 or same_size[0]


def _link(path: Path, target: Path) -> str:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.symlink_to(target)
    return path.name


def _fifo(path: Path) -> str:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path.name


def _folder(path: Path) -> str:
    path.unlink()
    path.mkdir()
    return path.name


def _socket(path: Path) -> str:
    path.unlink()
    with closing(socket.socket(socket.AF_UNIX)) as opened:
        here = os.getcwd()
        os.chdir(path.parent)  # a socket's address is short
        try:
            opened.bind(path.name)
        finally:
            os.chdir(here)
    return path.name


def _sparse(path: Path, size: int = 10 * GIB) -> str:
    with path.open("ab") as file:
        file.truncate(size)
    return path.name


def _moved_away(path: Path, outside: Outside) -> str:
    """What was inside lies outside now, with a link to it in its place."""
    target = Path(tempfile.mkdtemp(dir=outside.folder)) / path.name
    shutil.move(path, target)
    outside.paths += [target, target.parent] if target.is_dir() else [target]
    path.symlink_to(target)
    return path.name


FILES: dict[str, Damage] = {
    "a link to a secret": lambda dump, outside: _link(_values(dump), outside.array),
    "a link to zeros": lambda dump, _: _link(_values(dump), Path("/dev/zero")),
    "a link to itself": lambda dump, _: _link(_values(dump), _values(dump)),
    "a link to nothing": lambda dump, _: _link(_values(dump), Path("nowhere")),
    "a link to what was there": lambda dump, outside: _moved_away(_values(dump), outside),
    "a link to a folder": lambda dump, outside: _link(_values(dump), outside.folder),
    "a pipe": lambda dump, _: _fifo(_values(dump)),
    "a folder": lambda dump, _: _folder(_values(dump)),
    "a socket": lambda dump, _: _socket(_values(dump)),
    "ten gigabytes": lambda dump, _: _sparse(_values(dump)),
    "a linked folder": lambda dump, outside: _moved_away(_values(dump).parent, outside),
    "a linked tag": lambda dump, outside: _moved_away(dump / "data/loss", outside),
    "linked data": lambda dump, outside: _moved_away(dump / "data", outside),
    "data to the root": lambda dump, _: _link(dump / "data", Path("/")),
}


@pytest.mark.parametrize(("kind", "both"), PAIRS, indirect=True)
@pytest.mark.parametrize("name", FILES)
def test_files(assert_found: AssertFound, kind: Kind, both: bool, name: str) -> None:
    # what lies behind a link in a tree is as good as missing: a difference where the other run has it
    found = assert_found(kind, FILES[name], both, may=(1, 2), out=True)
    assert found.status == 2 or (not both and name in ("a linked folder", "a linked tag", "linked data"))
    if "link" in name:
        _assert_named("link", found)


# ---- what is right although it looks strange ----


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("byte_order", ["<", ">"])
def test_the_same_numbers_laid_out_in_another_way(run: Run, tree: Kind, order: str, byte_order: str) -> None:
    a, b = tree("a"), tree("b")
    file = "data/prompts/step1/rank0/micro_step0/prompts.npy"
    values = np.load(a / file)
    np.save(b / file, np.asarray(values, dtype=values.dtype.newbyteorder(byte_order), order=order))  # type: ignore[call-overload]
    assert run("compare", a, b).status in ((0,) if byte_order == "<" else (0, 1))
    np.save(a / file, np.load(b / file))
    assert run("compare", a, b).status == 0

    changed = np.array(values, order="C")
    changed[1, 0] += 1
    np.save(b / file, np.asarray(changed, dtype=values.dtype.newbyteorder(byte_order), order=order))  # type: ignore[call-overload]
    found = run("compare", a, b)
    assert found.status == 1
    (row,) = found.document["key_data"]["summary"]
    assert (row["tag"], row["first"]["index"], row["elements_differing"]) == ("prompts", [1, 0], 1)


@pytest.mark.parametrize("kind_of_number", ["<f2", "<u8", "|b1", ">c16", ">i8", ">f8"])
def test_every_kind_of_number_is_compared(run: Run, tree: Kind, kind_of_number: str) -> None:
    a, b = tree("a"), tree("b")
    file = "data/prompts/step1/rank0/micro_step0/prompts.npy"
    for dump in (a, b):
        np.save(dump / file, np.array([0, 1, 0], dtype=kind_of_number))
    assert run("compare", a, b).status == 0
    np.save(b / file, np.array([0, 1, 1], dtype=kind_of_number))
    found = run("compare", a, b)
    assert found.status == 1
    assert found.document["key_data"]["summary"][0]["first"]["index"] == [2]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (_header("<f4", (0, 2**70)), _header("<f4", (0, 2**70), order=True)),
        (_header("<f4", (0, 2**70)), _saved(np.ones(1, np.float32))),
        (_header("<f4", (1,) * 100, bytes(4)), _header("<f4", (1,) * 100, b"abcd")),
        (_header("<f4", (1,) * 65, bytes(4)), _saved(np.zeros(1, np.float32))),
        (_header("<f4", (2**40, 0)), _header("<f4", (2**41, 0))),
    ],
    ids=["order", "beyond", "axes", "axes against one", "nothing in many rows"],
)
def test_shapes_that_no_array_has(run: Run, tree: Kind, left: bytes, right: bytes) -> None:
    a, b = tree("a"), tree("b")
    _replaced(a, left)
    _replaced(b, right)
    assert run("compare", a, b).status in (1, 2)


# ---- manifests ----


def _manifest(dump: Path, **changes: Any) -> str:
    path = dump / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return "manifest.json"


def _written(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return path.name


def _listed_twice(dump: Path, _: Outside) -> str:
    return _manifest(dump, ranks=[0, 0])


def _ranks_of_one_place(dump: Path, _: Outside) -> str:
    """``0`` and ``False`` are equal numbers."""
    return _manifest(dump, ranks=[0, False])


MANIFESTS: dict[str, Damage] = {
    "empty": lambda dump, _: _written(dump / "manifest.json", b""),
    "cut off": lambda dump, _: _written(dump / "manifest.json", (dump / "manifest.json").read_bytes()[:-3]),
    "deep": lambda dump, _: _written(dump / "manifest.json", b"[" * 100_000),
    "deep inside": lambda dump, _: _written(
        dump / "manifest.json",
        (dump / "manifest.json").read_bytes().replace(b'"errors": []', b'"errors": ' + b"[" * 10**5 + b"]" * 10**5),
    ),
    "not UTF-8": lambda dump, _: _written(dump / "manifest.json", b'{"format": "\xff"}'),
    "a link": lambda dump, outside: _moved_away(dump / "manifest.json", outside),
    "a link to a secret": lambda dump, outside: _link(dump / "manifest.json", outside.folder / "secret.json"),
    "a link to zeros": lambda dump, _: _link(dump / "manifest.json", Path("/dev/zero")),
    "a pipe": lambda dump, _: _fifo(dump / "manifest.json"),
    "a folder": lambda dump, _: _folder(dump / "manifest.json"),
    "ten gigabytes": lambda dump, _: _sparse(dump / "manifest.json"),
    "a rank twice": _listed_twice,
    "a rank twice in two types": _ranks_of_one_place,
    "a format that is no number": lambda dump, _: _manifest(dump, format=float("nan")),
    "digests of a wrong type": lambda dump, _: str(_manifest(dump, index_digests={"0": 5}) and "rank0.jsonl"),
    "no digests": lambda dump, _: str(_manifest(dump, index_digests={}) and "rank0.jsonl"),
    "a rank beyond all": lambda dump, _: str(_manifest(dump, ranks=[0, 10**4000]) and "rank1000"),
    "errors that are no text": lambda dump, _: str(_manifest(dump, errors=[{"a": 1}], complete=False) and "{'a': 1}"),
    "errors that are no UTF-8": lambda dump, _: str(_manifest(dump, errors=["bad \ud800"], complete=False) and "bad"),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests(assert_found: AssertFound, ours: Kind, both: bool, name: str) -> None:
    assert_found(ours, MANIFESTS[name], both)


@pytest.mark.parametrize("complete", [True, False])
def test_a_manifest_with_steps_that_never_were(run: Run, ours: Kind, complete: bool) -> None:
    a, b = ours("a"), ours("b")
    assert run("compare", a, b).status == 0
    _manifest(b, steps_finished=10**15, complete=complete)
    assert run("compare", a, b, memory=2 * GIB).status in (1, 2)


def test_many_ranks_that_are_not_there(run: Run, ours: Kind) -> None:
    a, b = ours("a"), ours("b")
    _manifest(b, ranks=list(range(20_000)))
    found = run("compare", a, b, memory=2 * GIB)
    assert found.status in (1, 2)
    _assert_named("rank1.jsonl", found)


# ---- indexes ----


def _index(dump: Path) -> Path:
    return dump / "index/rank0.jsonl"


INDEXES: dict[str, Damage] = {
    "missing": lambda dump, _: str(_index(dump).unlink() or "rank0.jsonl"),
    "empty": lambda dump, _: _written(_index(dump), b""),
    "cut off": lambda dump, _: _written(_index(dump), _index(dump).read_bytes()[:-9]),
    "not UTF-8": lambda dump, _: _written(_index(dump), _index(dump).read_bytes() + b'{"tag":"\xff"}\n'),
    "deep": lambda dump, _: _written(_index(dump), _index(dump).read_bytes() + b"[" * 100_000 + b"\n"),
    "a link": lambda dump, outside: _moved_away(_index(dump), outside),
    "a link to a secret": lambda dump, outside: _link(_index(dump), outside.folder / "secret.json"),
    "a link to zeros": lambda dump, _: _link(_index(dump), Path("/dev/zero")),
    "a pipe": lambda dump, _: _fifo(_index(dump)),
    "a folder": lambda dump, _: _folder(_index(dump)),
    "a gigabyte": lambda dump, _: _sparse(_index(dump), GIB),
    "a linked folder": lambda dump, outside: _moved_away(dump / "index", outside),
    "one more rank": lambda dump, _: str(shutil.copy(_index(dump), dump / "index/rank1.jsonl") and "rank1.jsonl"),
    "a rank in other digits": lambda dump, _: str(
        shutil.copy(_index(dump), dump / "index/rank00.jsonl") and "rank00.jsonl"
    ),
    "a name that is not UTF-8": lambda dump, _: str(
        shutil.copy(_index(dump), os.fsencode(dump) + b"/index/rank\xff.jsonl") and "rank\\udcff.jsonl"
    ),
}


@pytest.mark.parametrize("name", INDEXES)
def test_indexes(assert_found: AssertFound, ours: Kind, both: bool, name: str) -> None:
    assert_found(ours, INDEXES[name], both, memory=GIB)


def _reseal(dump: Path, lines: list[bytes]) -> str:
    """Writes an index that the manifest's digest vouches for."""
    content = b"".join(lines)
    _index(dump).write_bytes(content)
    _manifest(dump, index_digests={"0": xxh3_128_hexdigest(content)})
    return "rank0.jsonl"


def _lines(dump: Path) -> list[bytes]:
    return _index(dump).read_bytes().splitlines(keepends=True)


def _canonical(fields: object) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def _forged(**changes: Any) -> Damage:
    """Changes fields of the record of ``loss`` at step 1, and seals the index again."""

    def damage(dump: Path, _: Outside) -> str:
        lines = _lines(dump)
        (number,) = [n for n, line in enumerate(lines) if b'"step":1,"tag":"loss"' in line]
        lines[number] = _canonical({**json.loads(lines[number]), **changes})
        _reseal(dump, lines)
        return file if isinstance(file := changes.get("file"), str) and file else "rank0.jsonl"

    return damage


def _sealed(change: Callable[[list[bytes]], list[bytes]]) -> Damage:
    return lambda dump, _: _reseal(dump, change(_lines(dump)))


def _without(key: str) -> Callable[[list[bytes]], list[bytes]]:
    return lambda lines: [_canonical({k: v for k, v in json.loads(line).items() if k != key}) for line in lines]


FORGED: dict[str, Damage] = {
    **{
        f"{key} {value!r:.20}": _forged(**{key: value})
        for key, value in (
            *(("step", value) for value in ("1", True, 1.5, -1, None, 10**30)),
            *(("rank", value) for value in ("0", 7, -1)),
            *(("micro_step", value) for value in ("0", -1, False)),
            *(("call", value) for value in (None, 0.0)),
            *(("shape", value) for value in ("4", [-1], [4.0], None, {"4": 4})),
            *(("digest", value) for value in (3, None, ["x"])),
            *(("masked", 3), ("stage", 3), ("dtype", None), ("path", None), ("path", 3), ("surplus", 1)),
            *(("tag", value) for value in (None, "../../etc", "a/b", "", "x" * 300)),
            ("file", 3),
        )
    },
    "no step": _sealed(_without("step")),
    "no tag": _sealed(_without("tag")),
    "no file": _sealed(_without("file")),
    "no digest": _sealed(_without("digest")),
    "a step back": _sealed(lambda lines: [*lines[3:], *lines[:3]]),
    "a record twice": _sealed(lambda lines: [lines[0], *lines]),
    "spaces": _sealed(lambda lines: [line.replace(b",", b", ") for line in lines]),
    "no end": _sealed(lambda lines: [*lines[:-1], lines[-1][:-1]]),
    "no JSON": _sealed(lambda lines: [*lines, b"garbage\n"]),
    "an empty line": _sealed(lambda lines: [*lines, b"\n"]),
    "no object": _sealed(lambda lines: [*lines, b'["x",{"step":1,"tag":"loss"}]\n']),
    "not UTF-8": _sealed(lambda lines: [*lines, lines[-1].replace(b"actor.w", b"actor.\xff")]),
    "deep": _sealed(lambda lines: [*lines, b"[" * 100_000 + b',"step":1,"tag":"loss"}\n']),
    "deep tail": _sealed(lambda lines: [*lines, b'{"x":1,"step":1,"tag":' + b"[" * 100_000 + b"\n"]),
    "a tail with other fields": _sealed(lambda lines: [*lines, b'{"x":1,"step":1,"step":0}\n']),
    "a tail of lists": _sealed(lambda lines: [*lines, b'{"file":null,"x":1,"file":null,"step":1,"tag":["loss"]}\n']),
    "half a record without a file": _sealed(lambda lines: [*lines, b'{"x":1,"file":null,"step":1,"tag":"loss"}\n']),
}


WELL_FORMED = {"step 10000000000000000000", "rank 7", "a step back"}
"""What is in a line that Firstdiff would not write, but that can be compared."""


@pytest.mark.parametrize("name", FORGED)
def test_forged_indexes(assert_found: AssertFound, ours: Kind, both: bool, name: str) -> None:
    # a record of another place is a difference where only one dump has it; two equal indexes hold the same records
    assert_found(ours, FORGED[name], both, may=(1, 2) if not both else (0,) if name in WELL_FORMED else (2,))


@pytest.mark.parametrize(
    "file",
    [
        *("../x", "../outside/secret.npy", "/etc/passwd", "data/../../outside/secret.npy", "data", "", "."),
        *("link.npy", "linked/secret.npy", "zeros.npy", "pipe.npy", "a\0b", "x" * 5000, "y/" * 3000, "nowhere.npy"),
        *("data/\ud800.npy", "OUTSIDE"),
    ],
)
def test_forged_files(assert_found: AssertFound, ours: Kind, both: bool, outside: Outside, file: str) -> None:
    name = str(outside.array) if file == "OUTSIDE" else file

    def damage(dump: Path, outside: Outside) -> str:
        (dump / "link.npy").symlink_to(outside.array)
        (dump / "linked").symlink_to(outside.folder)
        (dump / "zeros.npy").symlink_to("/dev/zero")
        os.mkfifo(dump / "pipe.npy")
        _forged(file=name)(dump, outside)
        printable = name.isprintable() and len(name) < 100
        return name if printable and "\ud800" not in name else ".npy" if name.endswith(".npy") else "loss"

    assert_found(ours, damage, both)


def test_a_forged_record_that_hides_another(run: Run, ours: Kind) -> None:
    """The same entry twice: whichever is compared, the other must not be passed over."""
    a, b = ours("a"), ours("b")
    for first in (True, False):
        lines = _lines(a)
        fields = json.loads(lines[1])
        other = _canonical({**fields, "digest": "0" * 32})
        _reseal(b, [*lines[:1], *([other, lines[1]] if first else [lines[1], other]), *lines[2:]])
        assert run("compare", a, b).status in (1, 2)
        assert run("compare", b, a).status in (1, 2)


def test_forged_records_without_a_digest_are_not_the_same(run: Run, ours: Kind) -> None:
    """Nothing vouches for the values but the values: they differ here."""
    a, b = ours("a"), ours("b")
    for dump in (a, b):
        _forged(digest=None)(dump, Outside.__new__(Outside))
    file = b / "data/loss/step1/rank0/micro_step0/loss.npy"
    np.save(file, np.load(file) + 1)
    assert run("compare", a, b).status in (1, 2)


def test_forged_digests_over_arrays_without_end(run: Run, ours: Kind) -> None:
    """Rows of nothing, 2 to the 40: a small file that takes for ever to walk through."""
    a, b = ours("a"), ours("b")
    for dump, digest in ((a, "0" * 32), (b, "1" * 32)):
        file = dump / "data/prompts/step1/rank0/micro_step0/prompts.npy"
        file.write_bytes(_header("<i8", (2**40, 0)))
        lines = _lines(dump)
        fields = {**json.loads(lines[3]), "digest": digest, "shape": [2**40, 0]}
        assert fields["tag"] == "prompts"
        _reseal(dump, [*lines[:3], _canonical(fields), *lines[4:]])
    found = run("compare", a, b, memory=2 * GIB)
    assert found.status == 1


# ---- trees of SingleSave ----


def _copied(source: Path, target: Path) -> str:
    target.parent.mkdir(parents=True, exist_ok=True)
    (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    return target.name


TREES: dict[str, Damage] = {
    "a rank in other digits": lambda dump, _: str(
        _copied(dump / "data/prompts/step0/rank0", dump / "data/prompts/step0/rank00") and "rank00"
    ),
    "a step in other digits": lambda dump, _: str(
        _copied(dump / "data/prompts/step0", dump / "data/prompts/step00") and "step00"
    ),
    "a rank that is no number": lambda dump, _: str(
        _copied(dump / "data/prompts/step0/rank0", dump / "data/prompts/step0/rank-1") and "rank-1"
    ),
    "a rank in other numerals": lambda dump, _: str(
        _copied(dump / "data/prompts/step0/rank0", dump / "data/prompts/step0/rank١") and "rank١"
    ),
    "a rank beyond all": lambda dump, _: str(
        _copied(dump / "data/prompts/step0/rank0", dump / f"data/prompts/step0/rank{10**100}") and "rank1000"
    ),
    "values above the steps": lambda dump, _: _copied(_values(dump), dump / "data/stray.npy"),
    "values below the micro-steps": lambda dump, _: _copied(_values(dump), _values(dump).parent / "deeper/loss.npy"),
    "values that are missing": lambda dump, _: str(_values(dump).unlink() or "loss.json"),
    "a tag that leads out": lambda dump, _: str(
        _copied(dump / "data/prompts", dump / "data/..prompts") and "..prompts"
    ),
    "a pickle beside the values": lambda dump, _: _written(
        _values(dump).parent / "loss.pkl", pickle.dumps(_witness(dump))
    ),
    "a linked description": lambda dump, outside: _link(
        _values(dump).with_suffix(".json"), outside.folder / "secret.json"
    ),
    "a file whose name is not UTF-8": lambda dump, _: str(
        shutil.copy(_values(dump), os.fsencode(_values(dump).parent) + b"/loss.\xff.npy") and "loss.\\udcff.npy"
    ),
    "a tag whose name is not UTF-8": lambda dump, _: str(
        shutil.copytree(os.fsencode(dump / "data/loss"), os.fsencode(dump) + b"/data/t\xff") and "t\\udcff"
    ),
}


@pytest.mark.parametrize("name", TREES)
def test_trees(assert_found: AssertFound, tree: Kind, both: bool, name: str) -> None:
    assert_found(tree, TREES[name], both, out=True)


@pytest.mark.parametrize(
    "place",
    ["../loss.npy", "..npy", ".npy", "loss..npy", ".loss.npy"],
    ids=["without a micro-step", "two dots", "no name", "a dot more", "a dot before"],
)
def test_two_files_in_one_place_are_both_compared(run: Run, tree: Kind, place: str) -> None:
    """Another file that counts as ``loss`` at the same place must not hide it, nor be hidden."""
    a, b = tree("a"), tree("b")
    folder = "data/loss/step0/rank0/micro_step0"
    target = (b / folder / place).resolve()
    np.save(target.with_name("x.npy"), np.float32(77))
    target.with_name("x.npy").rename(target)
    assert run("compare", a, b).status in (1, 2)
    assert run("compare", b, a).status in (1, 2)
    shutil.copy(target, (a / folder / place).resolve())
    same = run("compare", a, b).status
    np.save(b / folder / "loss.npy", np.float32(78))
    assert run("compare", a, b).status in (1, 2)
    shutil.copy(b / folder / "loss.npy", a / folder / "loss.npy")
    assert run("compare", a, b).status == same
    (b / folder / place).resolve().write_bytes(_saved(np.float32(79)))
    assert run("compare", a, b).status in (1, 2)


# ---- names ----

EVIL_NAMES = (
    '=HYPERLINK("http://x")',
    "+1",
    "-1+1",
    "@SUM(A1)",
    "\t=1+1",
    "\r=1+1",
    "a\x1b[2Jb",
    "a\x07b",
    "a\nb",
    "a\x7fb",
    "a\u2028b",
    "a\uffffb",
    "a\ud800b",
    "<script>alert(1)</script>",
    "{{ 7 * 7 }}",
    "__proto__",
    "x" * 40_000,
)


def _assert_no_formula(folder: Path) -> list[str]:
    """Every text of every table below a folder; none of them is a formula."""
    texts: list[str] = []
    for path in folder.rglob("*.xlsx"):
        for sheet in openpyxl.load_workbook(path).worksheets:
            for cell in (cell for row in sheet.iter_rows() for cell in row):
                assert cell.data_type != "f", f"{path}: {cell.coordinate} is the formula {cell.value}"
                texts += [cell.value] if isinstance(cell.value, str) else []
    return texts


@pytest.mark.parametrize("name", EVIL_NAMES, ids=lambda name: ascii(name)[:20])
def test_a_name_inside_a_value(run: Run, make_dump: MakeDump, tmp_path: Path, name: str) -> None:
    a = make_dump("a", [("loss", {name: torch.ones(2)})])
    b = make_dump("b", [("loss", {name: torch.ones(2)})])
    c = make_dump("c", [("loss", {name: torch.ones(2) * 2})])
    assert run("compare", a, b, "--out", tmp_path / "same").status == 0
    found = run("compare", a, c, "--out", tmp_path / "out")
    assert found.status == 1
    assert "\x1b" not in found.stderr and "\x07" not in found.stderr
    texts = _assert_no_formula(tmp_path / "out")
    if name.isprintable() and len(name) < 30_000:
        assert texts.count(name) == 1
    page = (tmp_path / "out/report.html").read_text("utf-8")
    assert "<script>alert" not in page
    json.loads((tmp_path / "out/verdict.json").read_text("utf-8"))


@pytest.mark.parametrize(
    "tag", ["=1+1", "+1", "-1", "@SUM(A1)", "'=1", "=cmd'!A1", "summary", "%s%n", "{{ 7 }}", "..."]
)
def test_a_tag(run: Run, kind: Kind, tmp_path: Path, tag: str) -> None:
    a, b = kind("a"), kind("b")
    indexed = (a / "index").exists()
    for dump, value in ((a, 1.0), (b, 2.0)):
        shutil.rmtree(dump)
        file = dump / f"data/{tag}/step0/rank0/micro_step0/{tag}.npy"
        file.parent.mkdir(parents=True)
        np.save(file, np.float32(value))
        if indexed:
            _index_by_hand(dump, tag, file)
    found = run("compare", a, b, "--out", tmp_path / "out")
    if tag == "...":
        assert found.status == 2
        return
    assert found.status == 1
    texts = _assert_no_formula(tmp_path / "out")
    assert tag in texts


def _index_by_hand(dump: Path, tag: str, file: Path) -> None:
    """An index of one record, and its manifest."""
    line = _canonical(
        {
            **{"call": 0, "digest": xxh3_128_hexdigest(file.read_bytes()), "dtype": "float32", "masked": None},
            **{"file": file.relative_to(dump).as_posix(), "micro_step": 0, "path": "", "rank": 0, "shape": []},
            **{"stage": None, "step": 0, "tag": tag},
        }
    )
    manifest = {
        **{"format": 1, "digest": "xxh3-128", "run": "x", "ranks": [0], "records": {"0": 1}, "values": 1},
        **{"index_digests": {"0": xxh3_128_hexdigest(line)}, "value_bytes": file.stat().st_size},
        **{"steps_finished": 1, "complete": True, "errors": []},
    }
    (dump / "index").mkdir()
    _index(dump).write_bytes(line)
    (dump / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("name", ['=HYPERLINK("x")', "a\x1b[2Jb", "a\nb", "<script>alert(1)</script>", "+1"], ids=ascii)
def test_a_file_name_in_a_tree(run: Run, tree: Kind, tmp_path: Path, name: str) -> None:
    name = name.replace("/", "")
    a, b = tree("a"), tree("b")
    for dump, value in ((a, 1.0), (b, 2.0)):
        np.save(_values(dump).parent / f"loss.{name}.npy", np.float32(value))
    found = run("compare", a, b, "--out", tmp_path / "out")
    assert found.status == 1
    assert "\x1b" not in found.stderr
    _assert_no_formula(tmp_path / "out")
    (_values(b).parent / f"loss.{name}.npy").write_bytes(b"")
    found = run("compare", a, b)
    assert found.status == 2
    assert "\x1b" not in found.stderr


@pytest.mark.parametrize("name", [b"du\xffmp", "дамп".encode(), b"a\nb", b"a\x1b[2Jb"], ids=ascii)
def test_a_dump_folder_of_any_name(run: Run, kind: Kind, tmp_path: Path, name: bytes) -> None:
    a, b = kind("a"), kind("b")
    strange = tmp_path / os.fsdecode(name)
    b.rename(strange)
    assert run("compare", a, strange, "--out", tmp_path / "same").status == 0
    file = _values(strange)
    file.write_bytes(file.read_bytes()[:-1])
    found = run("compare", a, strange, "--out", tmp_path / os.fsdecode(b"out" + name))
    assert found.status == 2
    assert "\x1b" not in found.stderr


# ---- the other files of a dump, and the layers ----

BESIDE: dict[str, Callable[[Path, Outside], object]] = {
    "deep": lambda path, _: path.write_bytes(b"[" * 100_000),
    "deep and whole": lambda path, _: path.write_bytes(b'{"a":' * 900 + b"1" + b"}" * 900),
    "not UTF-8": lambda path, _: path.write_bytes(b'{"a": "\xff"}'),
    "surrogates": lambda path, _: path.write_bytes(b'{"a": "\\ud800", "\\ud800": 1}'),
    "a link to a secret": lambda path, outside: path.symlink_to(outside.folder / "secret.json"),
    "a link to zeros": lambda path, _: path.symlink_to("/dev/zero"),
    "a pipe": lambda path, _: os.mkfifo(path),
    "a folder": lambda path, _: path.mkdir(),
    "ten gigabytes": lambda path, _: _sparse(path),
    "another type": lambda path, _: path.write_bytes(b"3"),
}


@pytest.mark.parametrize(("kind", "both"), PAIRS, indirect=True)
@pytest.mark.parametrize("name", BESIDE)
@pytest.mark.parametrize("file", ["environment.json", "configurations.json"])
def test_files_that_are_not_compared(assert_found: AssertFound, kind: Kind, both: bool, file: str, name: str) -> None:
    def damage(dump: Path, outside: Outside) -> str:
        BESIDE[name](dump / file, outside)
        return file

    assert_found(kind, damage, both, may=(0, 2), out=True, memory=2 * GIB)


def _window(dump: Path) -> Path:
    return dump / "actor_update/step0/rank0"


def _tensor(dump: Path) -> Path:
    return _window(dump) / "dump_tensor_data" / str(TENSOR["data_name"])


def _layers(**changes: Any) -> Damage:
    """Changes the content of the one module."""

    def damage(dump: Path, _: Outside) -> str:
        file = _window(dump) / "dump.json"
        document = json.loads(file.read_text())
        document["data"][MODULE] = {**document["data"][MODULE], **changes}
        file.write_text(json.dumps(document))
        return "rank0"

    return damage


def _layer_file(name: str, content: bytes) -> Damage:
    return lambda dump, _: str(_written(_window(dump) / name, content) and "rank0")


LAYERS: dict[str, Damage] = {
    **{
        f"{file} {what}": (lambda dump, outside, file=file, damage=damage: damage(_window(dump) / file, outside))  # type: ignore[misc]
        for file in ("dump.json", "construct.json")
        for what, damage in {
            "deep": lambda path, _: _written(path, b"[" * 100_000),
            "empty": lambda path, _: _written(path, b""),
            "not UTF-8": lambda path, _: _written(path, b"\xff"),
            "a link": lambda path, outside: _moved_away(path, outside),
            "a pipe": lambda path, _: _fifo(path),
            "a folder": lambda path, _: str(_folder(path) and "json"),
            "ten gigabytes": lambda path, _: _sparse(path),
        }.items()
    },
    "data of lists": _layer_file("dump.json", json.dumps({"task": "tensor", "data": {MODULE: []}}).encode()),
    "data of an unknown module": _layer_file("dump.json", json.dumps({"task": "tensor", "data": {"x": {}}}).encode()),
    "a call beyond all": _layer_file(
        "dump.json", json.dumps({"task": "tensor", "data": {f"Module.fc.Linear.forward.{'1' * 5000}": {}}}).encode()
    ),
    "an empty parent": _layer_file("construct.json", json.dumps({MODULE: []}).encode()),
    "a parent of lists": _layer_file("construct.json", json.dumps({MODULE: [[]]}).encode()),
    "parameters of text": _layers(parameters="x"),
    "a shape that is a number": _layers(output=[{**TENSOR, "data_name": None, "shape": 3}]),
    "a shape that is nothing": _layers(output=[{**TENSOR, "data_name": None, "shape": None}]),
    "a name that leads out": _layers(output=[{**TENSOR, "data_name": "../../../../../outside/secret.npy"}]),
    "an absolute name": lambda dump, outside: str(
        _layers(output=[{**TENSOR, "data_name": "/etc/passwd"}])(dump, outside) and "/etc/passwd"
    ),
    "a name with a zero": _layers(output=[{**TENSOR, "data_name": "a\0b"}]),
    "a name that is a number": _layers(output=[{**TENSOR, "data_name": 3}]),
    "a deep value": _layers(output=json.loads("[" * 900 + "]" * 900)),
    "window.json deep": _layer_file("window.json", b"[" * 100_000),
    "window.json a pipe": lambda dump, _: str(os.mkfifo(_window(dump) / "window.json") or "window.json"),
    "a tensor that is a pickle": lambda dump, _: _written(_tensor(dump), pickle.dumps(_witness(dump))),
    "a tensor that is cut off": lambda dump, _: _written(_tensor(dump), _tensor(dump).read_bytes()[:-100]),
    "a tensor that is a pipe": lambda dump, _: _fifo(_tensor(dump)),
    "a tensor that is a link": lambda dump, outside: _moved_away(_tensor(dump), outside),
    "a tensor that is missing": lambda dump, _: str(_tensor(dump).unlink() or "forward.0.pt"),
    "a linked window": lambda dump, outside: _moved_away(_window(dump), outside),
    "a linked step": lambda dump, outside: _moved_away(dump / "actor_update/step0", outside),
    "a linked stage": lambda dump, outside: _moved_away(dump / "actor_update", outside),
    "a rank twice": lambda dump, _: str(shutil.copytree(_window(dump), _window(dump).parent / "rank00") and "two"),
    "a window in no place": lambda dump, _: str(shutil.copytree(_window(dump), dump / "actor_update/x") and "x"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(assert_found: AssertFound, layered: Kind, both: bool, name: str) -> None:
    harmless = name in (
        "a parent of lists",
        "a deep value",
        "window.json a pipe",
    )  # nothing of it is compared, or alike
    may = ((2,) if both else (1, 2)) + ((0,) if harmless else ())
    assert_found(layered, LAYERS[name], both, may=may, memory=8 * GIB)


# ---- permissions ----


@pytest.fixture
def nobodys(kind: Kind) -> Iterator[Callable[[str], Path]]:
    """Makes dumps in a folder that everybody reaches."""
    with tempfile.TemporaryDirectory(prefix="firstdiff-test-") as base:
        os.chmod(base, 0o755)

        def make(name: str) -> Path:
            made = shutil.move(kind(name), Path(base, name))
            for path in [made, *made.rglob("*")]:
                path.chmod(0o755 if path.is_dir() else 0o644)
            return Path(made)

        yield make
        for path in Path(base).rglob("*"):
            with suppress(OSError):
                path.chmod(0o755)


LOCKED: dict[str, Callable[[Path], list[Path]]] = {
    "values": lambda dump: [_values(dump)],
    "the folder of values": lambda dump: [_values(dump).parent],
    "a rank": lambda dump: [_values(dump).parent.parent],
    "a tag": lambda dump: [dump / "data/loss"],
    "data": lambda dump: [dump / "data"],
    "everything": lambda dump: [dump],
    "the index": lambda dump: [dump / "index/rank0.jsonl"],
    "the index's folder": lambda dump: [dump / "index"],
    "the manifest": lambda dump: [dump / "manifest.json"],
}


@pytest.mark.parametrize(
    ("kind", "name", "mode"),
    [
        *((kind, name, 0o000) for kind in ("ours", "tree") for name in list(LOCKED)[:6]),
        *(("ours", name, 0o000) for name in list(LOCKED)[6:]),
        *(("tree", name, mode) for name in list(LOCKED)[1:5] for mode in (0o444, 0o311)),
        *(("ours", "the index's folder", mode) for mode in (0o444, 0o311)),
    ],
    indirect=["kind"],
)
def test_permissions(run: Run, nobodys: Callable[[str], Path], both: bool, name: str, mode: int) -> None:
    a, b = nobodys("a"), nobodys("b")
    user = NOBODY if os.geteuid() == 0 else None
    assert run("compare", a, b, user=user).status == 0
    locked = [path for dump in ((a, b) if both else (b,)) for path in LOCKED[name](dump)]
    for path in locked:
        path.chmod(mode)
    try:
        found = run("compare", a, b, user=user)
    finally:
        for path in locked:
            path.chmod(0o755)
    # what cannot be listed is unknown, which is no difference; a folder that cannot be entered is bad usage
    assert found.status == (64 if name == "everything" else 2), found.stdout[-2000:]
    _assert_named(locked[0].name, found)


# ---- msprobe's tables are made of hostile dumps too ----


@pytest.mark.parametrize(
    "name", ["objects", "a pickle", "a terabyte", "a link to a secret", "linked data", "data to the root"]
)
def test_msprobe_sees_nothing_hostile(assert_found: AssertFound, tree: Kind, name: str) -> None:
    def damage(dump: Path, outside: Outside) -> str:
        if name in VALUES:
            return _replaced(dump, VALUES[name](_values(dump)))
        return FILES[name](dump, outside)

    assert_found(tree, damage, True, out=True, msprobe=True, memory=64 * GIB, seconds=120)


def test_msprobe_makes_no_formula(run: Run, tree: Kind, tmp_path: Path) -> None:
    a, b = tree("a"), tree("b")
    for dump, value in ((a, 1.0), (b, 2.0)):
        for tag in ("=1+1", "@SUM(A1)", "loss"):
            folder = dump / f"data/{tag}/step0/rank0/micro_step0"
            folder.mkdir(parents=True, exist_ok=True)
            np.save(folder / f"{tag}.npy", np.float32(value))
            np.save(folder / f"{tag}.=1+1.npy", np.float32(value))
    found = run("compare", a, b, "--out", tmp_path / "out", msprobe=True, memory=64 * GIB)
    assert found.status == 1
    tables = found.document["tables"]
    assert len(tables["made"]) + len(tables["not_made"]) >= len(os.listdir(a / "data")), "each tag's, or why not"
    assert any(path.endswith(("=1+1.xlsx", "loss.xlsx")) for path in tables["made"]) or tables["not_made"]
    _assert_no_formula(tmp_path / "out")


# ---- a million files ----


def _fill(folder: Path, count: int, ending: str = "npy", each: int = 1000) -> None:
    """Many files of nothing, in folders of some."""
    for first in range(0, count, each):
        inner = folder / f"step{first // each}/rank0/micro_step0"
        inner.mkdir(parents=True, exist_ok=True)
        where = os.open(inner, os.O_RDONLY)
        for number in range(first, min(count, first + each)):
            os.close(os.open(f"x.{number}.{ending}", os.O_CREAT | os.O_WRONLY, dir_fd=where))
        os.close(where)


MANY: dict[str, Callable[[Path, int], None]] = {
    "values in some folders": lambda dump, count: _fill(dump / "data/x", count),
    "values in one folder": lambda dump, count: _fill(dump / "data/x", count, each=count),
    "descriptions without values": lambda dump, count: _fill(dump / "data/x", count, "json"),
    "what is no record": lambda dump, count: _fill(dump / "data/x", count, "txt"),
}


@pytest.mark.parametrize(
    ("kind", "both", "name", "count"),
    [
        ("ours", "both", "values in some folders", 2_000),
        ("ours", "one", "descriptions without values", 2_000),
        ("tree", "both", "values in some folders", 2_000),
        ("tree", "one", "values in one folder", 2_000),
        ("tree", "both", "descriptions without values", 2_000),
        ("tree", "one", "what is no record", 2_000),
        *(
            pytest.param(*case, 1_000_000, marks=pytest.mark.slow)
            for case in (
                ("ours", "one", "values in some folders"),
                ("tree", "both", "values in some folders"),
                ("tree", "one", "descriptions without values"),
            )
        ),
    ],
    indirect=["kind", "both"],
)
def test_many_files(run: Run, kind: Kind, both: bool, name: str, count: int) -> None:
    a, b = kind("a"), kind("b")
    indexed = (a / "index").exists()
    for dump in (a, b) if both else (b,):
        MANY[name](dump, count)
    try:
        found = run("compare", a, b, memory=2 * GIB, seconds=600)
    finally:
        for dump in (a, b):
            shutil.rmtree(dump)
    assert found.peak < GIB
    assert len(found.stdout) < 10 << 20, "what is found is counted, not listed without end"
    if indexed and "values in" not in name:
        assert found.status == 0, "only what its index names belongs to a dump, beside values"
    elif found.status == 1:
        assert not both and not indexed, "values that only one tree has"
        assert found.document["key_data"]["extra"] == count
    else:
        assert found.status == 2
        _assert_named("/data/x", found)


@pytest.mark.parametrize("count", [500, pytest.param(50_000, marks=pytest.mark.slow)])
def test_many_steps_of_one_file(run: Run, tree: Kind, both: bool, count: int) -> None:
    a, b = tree("a"), tree("b")
    for dump in (a, b) if both else (b,):
        _fill(dump / "data/x", count, each=1)
    try:
        found = run("compare", a, b, memory=2 * GIB, seconds=300)
    finally:
        for dump in (a, b):
            shutil.rmtree(dump)
    assert found.status == 2 if both else found.status in (1, 2)
    assert found.peak < GIB


@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_descriptions_beside_other_values(run: Run, tree: Kind, count: int) -> None:
    """Each is looked for among the values: not in time that grows with the square of their number."""
    a, b = tree("a"), tree("b")
    for dump in (a, b):
        _fill(dump / "data/x", count, each=count)
        folder = dump / "data/x/step0/rank0/micro_step0"
        for number in range(count):
            os.close(os.open(folder / f"y.{number}.json", os.O_CREAT | os.O_WRONLY))
    try:
        found = run("compare", a, b, memory=2 * GIB, seconds=300)
    finally:
        for dump in (a, b):
            shutil.rmtree(dump)
    assert found.status == 2
    assert found.peak < GIB
