"""Packed dumps: the same files and findings as before, whole after a crash, and safe to read from anywhere."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import zstandard

from probe.comparison import compare_dumps
from probe.errors import DumpError
from probe.store import packing, unpacking
from probe.store.packing import pack, unpack, unpacked
from probe.store.reader import read_dump

MakeDump = Callable[..., Path]
Files = dict[str, bytes]


def _files(folder: Path) -> Files:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def dump(make_dump: MakeDump) -> Path:
    saves = [("loss", torch.arange(4.0) + step, {"step": step, "stage": "actor_update"}) for step in range(3)]
    folder = make_dump("dump", [*saves, ("t" * 150, torch.ones(2, dtype=torch.bfloat16), {"step": 2})])
    (folder / "environment.json").write_text("{}")
    (folder / "configurations.json").write_text("{}")
    return folder


@pytest.fixture
def pair(make_dump: MakeDump) -> tuple[Path, Path]:
    """Two dumps that differ at step 1."""

    def saves(step_1: float) -> list[tuple[Any, ...]]:
        return [
            ("prompts", torch.arange(6).reshape(2, 3)),
            ("loss", torch.full((4,), step_1), {"step": 1, "stage": "actor_update"}),
            ("weights", {"w": torch.ones(2) * step_1}, {"step": 1}),
        ]

    return make_dump("a", saves(0.5)), make_dump("b", saves(0.75))


def _findings(a: Path, b: Path) -> dict[str, Any]:
    document = compare_dumps(a, b, None)
    document["cost"]["seconds"] = 0
    return document


def test_a_packed_dump_holds_the_same_files(dump: Path, tmp_path: Path) -> None:
    before = _files(dump)
    packed = pack(dump)

    assert packed is not None and packed.before == sum(map(len, before.values()))
    assert sorted(os.listdir(dump)) == ["configurations.json", "environment.json", "manifest.json", "packed.tar.zst"]
    unpack(dump, tmp_path / "back")
    assert _files(tmp_path / "back") == before
    assert pack(dump) is None, "it is packed already"


def test_tar_and_zstd_read_it(dump: Path, tmp_path: Path) -> None:
    before = _files(dump)
    pack(dump)
    plain = zstandard.ZstdDecompressor().decompressobj().decompress((dump / "packed.tar.zst").read_bytes())
    with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
        archive.extractall(tmp_path / "by tar", filter="data")
    assert _files(tmp_path / "by tar") == before


@pytest.mark.parametrize("which", [(True, True), (True, False), (False, True)])
def test_a_comparison_finds_the_same(pair: tuple[Path, Path], which: tuple[bool, bool]) -> None:
    before = _findings(*pair)
    assert before["verdict"] == "divergent" and before["growth"][0]["max_absolute"] == 0.25
    for dump, packs in zip(pair, which, strict=True):
        if packs:
            pack(dump)
    assert _findings(*pair) == before


@pytest.fixture
def layer_pair(layer_runs: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Two layer dumps by real msprobe that differ."""
    one, two = (Path(shutil.copytree(layer_runs / name, tmp_path / name)) for name in ("base", "output"))
    return one, two


def test_layers_are_the_same(layer_pair: tuple[Path, Path]) -> None:
    before = _findings(*layer_pair)
    assert before["layers"]["different"]
    for dump in layer_pair:
        pack(dump)
    assert _findings(*layer_pair) == before


@pytest.mark.slow
def test_official_tables_are_the_same(layer_pair: tuple[Path, Path], tmp_path: Path) -> None:
    before = compare_dumps(*layer_pair, tmp_path / "before")
    for dump in layer_pair:
        pack(dump)
    after = compare_dumps(*layer_pair, tmp_path / "after")

    made = [[Path(path).name.rpartition("_")[0] for path in found["tables"]["made"]] for found in (before, after)]
    assert made[0] == made[1] != []
    assert before["tables"]["not_made"] == after["tables"]["not_made"]


def test_what_single_save_wrote_is_packed_too(single_save_tree: Path, tmp_path: Path) -> None:
    a, b = (Path(shutil.copytree(single_save_tree, tmp_path / name)) for name in "ab")
    before = _findings(a, b)
    assert before["key_data"]["compared"] > 0
    pack(b)
    after = _findings(a, b)
    assert after == before


def test_sentences_name_the_dump_that_people_know(pair: tuple[Path, Path]) -> None:
    a, b = pair
    next((a / "data/loss").rglob("*.npy")).write_bytes(b"no numbers")
    next((a / "data/prompts").rglob("*.npy")).unlink()
    before = _findings(a, b)
    pack(a)
    after = _findings(a, b)
    assert after == before
    assert f"{a}/data/prompts" in str(after["not_compared"])


def test_a_packed_dump_is_read_as_long_as_it_is_used(dump: Path) -> None:
    whole = read_dump(dump).records
    pack(dump)
    found = read_dump(dump)
    scratch = found.folder
    assert found.complete and found.records == whole
    assert scratch.is_dir() and scratch != dump
    del found
    assert not scratch.exists()


CRASHES = {
    "while it is written": "os.fsync = die",
    "before it is renamed": "os.replace = die",
    "when it is renamed": "rename = os.replace\nos.replace = lambda *names: (rename(*names), die())",
    "when some originals are gone": "left = iter(range(3))\nremove = os.unlink\n"
    "os.unlink = lambda name: remove(name) if next(left, None) is not None else die()",
}


@pytest.mark.parametrize("point", CRASHES)
def test_a_crash_leaves_a_dump_that_can_be_read(dump: Path, root: Path, point: str) -> None:
    records, before = read_dump(dump).records, _files(dump)
    code = f"""
import os, sys
from pathlib import Path
from probe.store.packing import pack
die = lambda *_: os._exit(9)
{CRASHES[point]}
pack(Path(sys.argv[1]))
"""
    killed = subprocess.run(
        [sys.executable, "-c", code, dump], env={**os.environ, "PYTHONPATH": str(root)}, check=False
    )
    assert killed.returncode == 9

    assert read_dump(dump).records == records
    pack(dump)
    assert sorted(os.listdir(dump)) == ["configurations.json", "environment.json", "manifest.json", "packed.tar.zst"]
    with unpacked(dump) as copy:
        assert _files(copy) == before


def test_a_full_disk_leaves_the_dump_as_it_was(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    before, limits = _files(dump), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
    try:
        with pytest.raises(DumpError, match="cannot be compressed"):
            pack(dump)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert _files(dump) == before


def test_what_would_unpack_to_far_more_is_not_packed(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "ALWAYS", 0)
    monkeypatch.setattr(unpacking, "MOST_TIMES", 1)
    before = _files(dump)
    assert pack(dump) is None
    assert _files(dump) == before


def test_a_dump_with_a_link_is_not_packed(dump: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (dump / "data/link").symlink_to(tmp_path / "secret")
    with pytest.raises(DumpError, match="no plain file"):
        pack(dump)
    assert not (dump / "packed.tar.zst").exists()


def test_a_file_beside_a_packed_dump_that_is_not_in_it_is_named(dump: Path) -> None:
    pack(dump)
    (dump / "data").mkdir()
    (dump / "data/more.npy").write_bytes(b"")
    with pytest.raises(DumpError, match="more.npy"):
        read_dump(dump)


# ---- archives from anybody ----


def _archive(*members: tuple[str, bytes] | tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                entry = tarfile.TarInfo(member[0])
                entry.size = len(member[1])
                archive.addfile(entry, io.BytesIO(member[1]))
    return buffer.getvalue()


def _entry(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, link
    return entry


def _packed(plain: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(plain)


GOOD = _archive(("data/x.npy", b"x" * 3000), ("data/y.npy", os.urandom(3000)))
_LONG = _entry("x", tarfile.XHDTYPE)
_LONG.size = 1 << 40
_HUGE = _entry("data/x", tarfile.REGTYPE)
_HUGE.size = 1 << 50

HOSTILE: dict[str, bytes | Callable[[], bytes]] = {
    **{
        f"a name {name[:30]!r}": _packed(_archive((name, b"x")))
        for name in (
            *("../x", "/etc/x", "data/../../x", "./data/x", "data//x", "data/.", "..", "data\\..\\x", "packed.tar.zst"),
            *("/".join("d" * 80), "d/" * 3000 + "x", "data/" + "n" * 300),
        )
    },
    "a link": _packed(_archive(_entry("data/x", tarfile.SYMTYPE, "/etc/passwd"))),
    "a link and a file in it": _packed(_archive(_entry("data", tarfile.SYMTYPE, "/tmp"), ("data/x", b"x"))),
    "a hard link": _packed(_archive(_entry("data/x", tarfile.LNKTYPE, "/etc/passwd"))),
    "a device": _packed(_archive(_entry("data/x", tarfile.CHRTYPE))),
    "a pipe": _packed(_archive(_entry("data/x", tarfile.FIFOTYPE))),
    "a folder": _packed(_archive(_entry("data", tarfile.DIRTYPE))),
    "a sparse file": _packed(_archive(_entry("data/x", tarfile.GNUTYPE_SPARSE))),
    "a file twice": _packed(_archive(("data/x", b"1"), ("data/x", b"2"))),
    "a file in a file": _packed(_archive(("data", b"1"), ("data/x", b"2"))),
    "more than it has": _packed(_archive(_HUGE)),
    "a header without end": lambda: _packed(_LONG.tobuf() + bytes(1 << 22)),
    "zeros without end": lambda: _packed(bytes(200 << 20)),
    "a file of zeros": lambda: _packed(_archive(("data/x", bytes(200 << 20)))),
    "a window of a gigabyte": b"\x28\xb5\x2f\xfd\x00\xa0" + b"\x01\x00\x00",
    "nothing": b"",
    "no zstd": GOOD,
    "no tar": _packed(b"no tar at all" * 1000),
    "cut off": _packed(GOOD)[:-20],
    "cut off before the checksum": _packed(GOOD)[:-4],
    "cut off in the archive": _packed(GOOD[:4000]),
    "a wrong checksum": _packed(GOOD)[:-4] + b"\1\2\3\4",
    "something after the end": _packed(GOOD) + b"more",
    "another frame": _packed(GOOD) + _packed(GOOD),
    "a damaged header": _packed(GOOD[:3584] + b"?" + GOOD[3585:]),
    "no end": _packed(GOOD[:7168]),
    "half an end": _packed(GOOD[:7680]),
    "something in the padding": _packed(GOOD + b"more"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives_are_one_finding_and_touch_nothing(tmp_path: Path, name: str) -> None:
    dump = tmp_path / "outer/dump"
    dump.mkdir(parents=True)
    content = HOSTILE[name]
    (dump / "packed.tar.zst").write_bytes(content() if callable(content) else content)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(DumpError, match=r"packed\.tar\.zst"), unpacked(dump, scratch):
        pass
    assert list(scratch.iterdir()) == [], "the scratch folder is gone"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["dump", "outer", "packed.tar.zst", "scratch"]


def test_a_good_archive_of_the_same_making_is_read(tmp_path: Path) -> None:
    (tmp_path / "packed.tar.zst").write_bytes(_packed(GOOD))
    with unpacked(tmp_path) as copy:
        assert len(_files(copy)) == 2


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_packed_file_that_is_none(dump: Path, tmp_path: Path, kind: str) -> None:
    pack(dump)
    file = dump / "packed.tar.zst"
    file.rename(tmp_path / "moved")
    if kind == "link":
        file.symlink_to(tmp_path / "moved")
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.mkdir()
    with pytest.raises(DumpError):
        read_dump(dump)


def test_no_room_is_said_before_anything_is_written(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(dump)
    monkeypatch.setattr(unpacking, "RESERVE", 1 << 60)
    with pytest.raises(DumpError, match="TMPDIR"), unpacked(dump):
        pass


def test_packing_again_is_quick_and_changes_nothing(dump: Path) -> None:
    pack(dump)
    before = (dump / packing.NAME).stat().st_mtime_ns
    assert pack(dump) is None
    assert (dump / packing.NAME).stat().st_mtime_ns == before


def test_a_packed_file_cut_off_within_a_large_file_is_one_sentence(make_dump: MakeDump) -> None:
    folder = make_dump("dump", [("loss", torch.arange(1 << 20), {"stage": "actor_update"})])
    pack(folder)
    packed = folder / "packed.tar.zst"
    packed.write_bytes(packed.read_bytes()[: packed.stat().st_size // 2])
    with pytest.raises(DumpError, match=r"packed\.tar\.zst: is cut off$"):
        compare_dumps(folder, folder, None)
