"""What is written is read back exactly, by us and by msprobe, and what SingleSave wrote is read too."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from xxhash import xxh3_128_hexdigest

from probe.collect.values import Snapshot
from probe.compare import compare_key_data
from probe.errors import DumpError, RecordError
from probe.store import layout
from probe.store.digest import digest
from probe.store.numeric import Numbers, statistics
from probe.store.reader import read_dump, read_values

MakeDump = Callable[..., Path]

LOSS = "data/loss/step0/rank0/micro_step0"


class TestRoundTrip:
    @pytest.mark.parametrize(
        "value",
        [
            torch.tensor(1.5),
            torch.arange(6).reshape(2, 3),
            torch.tensor([1.0, float("nan"), float("inf"), -0.0], dtype=torch.float64),
            torch.tensor([True, False]),
            torch.zeros(0, 3),
            torch.tensor([1 + 2j]),
            np.arange(3, dtype=np.uint16),
            3,
            -2.5,
            True,
        ],
        ids=repr,
    )
    def test_values_are_kept_exactly(self, make_dump: MakeDump, value: Any) -> None:
        folder = make_dump("a", [("loss", value)])
        (record,) = read_dump(folder).records[0]
        expected = np.asarray(value)
        stored = read_values(folder, record)
        assert record.shape == stored.shape == expected.shape
        assert record.digest == Snapshot.take(value).digest
        assert stored.tobytes() == expected.tobytes()

    def test_bfloat16_keeps_its_name_and_numbers(self, make_dump: MakeDump) -> None:
        value = torch.tensor([1.0, 3.140625], dtype=torch.bfloat16)
        folder = make_dump("a", [("loss", value)])
        (record,) = read_dump(folder).records[0]
        assert record.dtype == "bfloat16"
        assert read_values(folder, record).tolist() == value.tolist()

    def test_every_field_of_a_record(self, make_dump: MakeDump) -> None:
        mask = torch.tensor([1, 0])
        where = {"step": 2, "rank": 1, "micro_step": 3, "stage": "actor_update", "mask": mask}
        folder = make_dump("a", [("log_prob", {"new": torch.ones(2)}, where)])
        (record,) = read_dump(folder).records[1]
        assert (record.step, record.rank, record.micro_step, record.path, record.call) == (2, 1, 3, "new", 0)
        assert (record.stage, record.dtype, record.shape) == ("actor_update", "float32", (2,))
        inside = np.array([1, 0], np.float32).tobytes() + bytes([1, 0])
        assert record.masked == digest("float32", (2,), inside)
        assert record.file == "data/log_prob/step2/rank1/micro_step3/log_prob.npy"

    def test_text_is_kept(self, make_dump: MakeDump) -> None:
        folder = make_dump("a", [("prompts", "3+4= 数")])
        (record,) = read_dump(folder).records[0]
        assert record.dtype == "str"
        assert bytes(read_values(folder, record)).decode() == "3+4= 数"

    def test_order_is_that_of_saving(self, make_dump: MakeDump) -> None:
        folder = make_dump("a", [("z", 1), ("a", 2), ("z", 3), ("m", 4, {"step": 1})])
        assert [(r.tag, r.call) for r in read_dump(folder).records[0]] == [("z", 0), ("a", 0), ("z", 1), ("m", 0)]

    def test_ranks_have_an_index_each(self, make_dump: MakeDump) -> None:
        folder = make_dump("a", [("loss", 1, {"rank": 1}), ("loss", 2), ("loss", 3, {"rank": 10})])
        dump = read_dump(folder)
        assert sorted(dump.records) == [0, 1, 10]
        assert sorted(os.listdir(folder / "index")) == ["rank0.jsonl", "rank1.jsonl", "rank10.jsonl"]
        assert dump.problems == []

    def test_digests_alone_keep_statistics_and_no_values(self, make_dump: MakeDump) -> None:
        folder = make_dump("a", [("loss", torch.ones(2))], keep_values=False)
        (record,) = read_dump(folder).records[0]
        assert record.file is None
        assert record.digest == Snapshot.take(torch.ones(2)).digest
        assert os.listdir(folder / LOSS) == ["loss.json"]
        with pytest.raises(DumpError, match="loss has no stored values"):
            read_values(folder, record)

    def test_weights_are_digests_described_in_one_file(self, make_dump: MakeDump) -> None:
        folder = make_dump("a", [("weights", {"actor": {"w": torch.ones(2)}})])
        (record,) = read_dump(folder).records[0]
        assert (record.path, record.file) == ("actor.w", None)
        described = json.loads((folder / "data/weights/step0/rank0/micro_step0/weights.json").read_text())
        assert described["data"]["actor.w"] == {"dtype": "float32", "shape": [2], "digest": record.digest}


class TestFiles:
    def test_a_tag_saved_again_is_numbered(self, make_dump: MakeDump) -> None:
        folder = make_dump("a", [("loss", 1.0), ("loss", 2.0), ("loss", {"x": 3.0, "y": [4.0, 5.0]})])
        names = [f"loss{number}.{ending}" for number in ("", ".1", ".2", ".3", ".4") for ending in ("json", "npy")]
        assert sorted(os.listdir(folder / LOSS)) == sorted(names)
        stored = [float(np.load(folder / LOSS / name)) for name in names if name.endswith("npy")]
        assert stored == [1.0, 2.0, 3.0, 4.0, 5.0]
        paths = [json.loads((folder / LOSS / name).read_text())["data"]["path"] for name in names if "json" in name]
        assert paths == ["", "", "x", "y.0", "y.1"]

    def test_numbers_begin_anew_at_every_place(self, make_dump: MakeDump) -> None:
        places: list[dict[str, int]] = [{}, {"micro_step": 1}, {"rank": 1}, {"step": 1}]
        folder = make_dump("a", [("loss", 1.0, place) for place in places])
        files = [record.file for records in read_dump(folder).records.values() for record in records]
        assert len(set(files)) == 4
        assert all(file is not None and file.endswith("/loss.npy") for file in files)

    def test_statistics_are_the_seeds(self, make_dump: MakeDump) -> None:
        folder = make_dump("a", [("loss", torch.tensor([[3.0, -4.0]]))])
        data = json.loads((folder / LOSS / "loss.json").read_text())["data"]
        assert {key: data[key] for key in ("max", "min", "mean", "norm", "shape")} == {
            "max": 3.0,
            "min": -4.0,
            "mean": -0.5,
            "norm": 5.0,
            "shape": [1, 2],
        }

    def test_statistics_are_strict_json(self) -> None:
        found = statistics(Numbers(np.array([np.nan, np.inf], dtype=np.float32)))
        assert found == {"max": "nan", "min": "nan", "mean": "nan", "norm": "nan", "shape": [2]}
        assert json.dumps(found, allow_nan=False)

    def test_statistics_of_nothing_are_null(self) -> None:
        assert statistics(Numbers(np.zeros((0, 2)))) == {
            "max": None,
            "min": None,
            "mean": None,
            "norm": None,
            "shape": [0, 2],
        }

    def test_statistics_do_not_wrap_or_overflow(self) -> None:
        found = statistics(Numbers(np.array([200, 100], dtype=np.uint8)))
        assert (found["mean"], found["norm"]) == (150.0, pytest.approx(223.6068))
        halves = statistics(Numbers(np.array([60000, 60000], dtype=np.float16)))
        assert halves["norm"] == pytest.approx(84852.8, rel=1e-3)

    def test_no_half_file_is_left(self, make_dump: MakeDump) -> None:
        folder = make_dump("a", [("loss", torch.ones(3)), ("weights", {"w": 1.0})])
        assert [path for path in folder.rglob("*") if "partial" in path.name] == []

    def test_the_manifest_says_what_there_is(self, make_dump: MakeDump) -> None:
        folder = make_dump("a", [("loss", 1.0), ("loss", 2.0, {"step": 2, "rank": 3})])
        digests = {str(rank): xxh3_128_hexdigest((folder / f"index/rank{rank}.jsonl").read_bytes()) for rank in (0, 3)}
        assert json.loads((folder / "manifest.json").read_text()) == {
            "format": 1,
            "digest": "xxh3-128",
            "run": "a",
            "ranks": [0, 3],
            "records": {"0": 1, "3": 1},
            "index_digests": digests,
            "values": 2,
            "value_bytes": sum(file.stat().st_size for file in folder.rglob("*.npy")),
            "files": [],
            "steps_finished": 3,
            "complete": True,
            "errors": [],
        }


class TestClaim:
    def test_makes_a_new_folder(self, tmp_path: Path) -> None:
        layout.claim(tmp_path / "deep" / "dump")
        assert (tmp_path / "deep" / "dump").is_dir()

    def test_takes_an_empty_one(self, tmp_path: Path) -> None:
        layout.claim(tmp_path)

    def test_never_takes_one_that_holds_files(self, tmp_path: Path) -> None:
        (tmp_path / ".hidden").touch()
        with pytest.raises(DumpError, match=f"{tmp_path}: the dump folder is not empty"):
            layout.claim(tmp_path)
        assert os.listdir(tmp_path) == [".hidden"]

    def test_says_when_it_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(DumpError, match="cannot be made"):
            layout.claim(tmp_path / "file" / "dump")


class TestTags:
    @pytest.mark.parametrize("tag", ["loss", "old_log_prob", "a b", "loss.1", "奖励", "x" * 150, "a-b+c=d,e(f)"])
    def test_that_name_a_folder_are_taken(self, make_dump: MakeDump, tag: str) -> None:
        assert layout.check_tag(tag) == tag
        (record,) = read_dump(make_dump("a", [(tag, 1.0)])).records[0]
        assert record.tag == tag

    @pytest.mark.parametrize(
        "tag", ["", ".", "..", "a/b", "/etc", "a\\b", "a\0b", "a\nb", "x" * 300, " a", "a.", 3, None]
    )
    def test_that_do_not_are_refused(self, tag: object) -> None:
        with pytest.raises(RecordError, match="is not a valid folder name"):
            layout.check_tag(tag)


class TestSingleSaveTree:
    @pytest.fixture
    def tree(self, single_save_tree: Path, tmp_path: Path) -> Path:
        return Path(shutil.copytree(single_save_tree, tmp_path / "tree"))

    def test_is_scanned(self, tree: Path) -> None:
        dump = read_dump(tree)
        assert dump.problems == []
        assert dump.digest_algorithm is None
        assert [(r.step, r.tag, r.micro_step, r.path) for r in dump.records[0] if r.step == 0] == [
            (0, "prompts", 0, ""),
            (0, "responses", 0, "log_probs"),
            (0, "responses", 0, "tokens"),
            (0, "advantages", 0, "0"),
            (0, "advantages", 0, "1"),
            (0, "loss", 0, ""),
            (0, "loss", 1, ""),
        ]
        assert {record.step for record in dump.records[0]} == {0, 1}

    def test_has_values_and_the_stages_of_its_tags(self, tree: Path) -> None:
        dump = read_dump(tree)
        prompts = dump.records[0][0]
        assert (prompts.dtype, prompts.shape, prompts.digest) == ("", (), None)  # it says nothing of what there was
        assert read_values(tree, prompts).tolist() == [[0, 1, 2], [3, 4, 5]]
        stages = {record.tag: record.stage for record in dump.records[0]}
        assert stages["responses"] == "actor_generate_sequences"
        assert stages["advantages"] is None

    def test_says_what_it_cannot_read(self, tree: Path) -> None:
        file = tree / "data/loss/step0/rank0/micro_step1/loss.npy"
        file.write_bytes(file.read_bytes()[:-1])
        comparison = compare_key_data(read_dump(tree), read_dump(tree))
        (entry,) = comparison.entries
        assert (comparison.verdict, entry.status) == ("inconclusive", "unreadable")
        assert str(file) in str(entry.problem)

    def test_says_what_lies_in_the_wrong_place(self, tree: Path) -> None:
        (tree / "data/loss/step0/rank0").rename(tree / "data/loss/step0/proc77")
        problems = read_dump(tree).problems
        assert len(problems) == 2
        assert all("not in a step and rank folder" in problem for problem in problems)

    def test_says_that_values_are_missing_where_only_statistics_are(self, tree: Path) -> None:
        (tree / "data/prompts/step1/rank0/micro_step0/prompts.npy").unlink()
        assert any("prompts" in problem for problem in read_dump(tree).problems)

    def test_never_follows_links_out(self, tree: Path, tmp_path: Path) -> None:
        np.save(tmp_path / "secret.npy", np.ones(2))
        place = tree / "data/loss/step9/rank0"
        place.mkdir(parents=True)
        (place / "loss.npy").symlink_to(tmp_path / "secret.npy")
        dump = read_dump(tree)
        assert any("a link is not followed" in problem for problem in dump.problems)
        assert compare_key_data(dump, dump).counts["unreadable"] == 1

    def test_an_empty_folder_is_no_dump(self, tmp_path: Path) -> None:
        with pytest.raises(DumpError, match="holds no dump"):
            read_dump(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="msprobe's wheels are for Linux")
def test_msprobes_comparator_reads_our_dumps(
    make_dump: MakeDump, run_python: Callable[..., str], tmp_path: Path
) -> None:
    saves = [
        ("prompts", torch.arange(6).reshape(2, 3)),
        ("loss", torch.tensor(0.5), {"micro_step": 1}),
        ("responses", {"tokens": torch.ones(2, 2), "mask": torch.tensor([True, False])}, {"step": 1}),
    ]
    other = [saves[0], ("loss", torch.tensor(0.75), {"micro_step": 1}), saves[2]]
    a, b = make_dump("a", saves), make_dump("b", other)
    code = "import sys; from msprobe.core import SingleComparator; SingleComparator.compare(*sys.argv[1:4])"
    run_python(code, a, b, tmp_path / "tables")
    import pandas as pd

    tables = {file.stem: pd.read_excel(file) for file in (tmp_path / "tables").glob("*.xlsx")}
    assert sorted(tables) == ["loss", "prompts", "responses"]
    assert [len(tables[tag]) for tag in sorted(tables)] == [1, 1, 2]
    text = tables["loss"].to_string()
    assert "0.25" in text
