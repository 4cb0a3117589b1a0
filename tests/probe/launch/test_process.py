"""``run_process`` with real children: their output, their end, and the end of all that they started."""

from __future__ import annotations

import _thread
import itertools
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from probe.errors import TrainerError
from probe.launch import process


@pytest.fixture
def short_grace(monkeypatch):
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.5)


class TestOutput:
    def test_it_goes_to_the_log_whole_and_to_the_caller_line_by_line(self, watch, tmp_path):
        assert watch("echo out; echo err >&2; echo; printf 'no end'") == ["out", "err", "", "no end"]
        assert (tmp_path / "trainer.log").read_bytes() == b"out\nerr\n\nno end"

    def test_lines_arrive_while_the_child_runs(self, watch):
        seen = []
        watch("echo one; sleep 0.6; echo two", on_line=lambda line: seen.append((line, time.monotonic())))
        assert [line for line, _ in seen] == ["one", "two"]
        assert seen[1][1] - seen[0][1] > 0.3

    def test_they_arrive_in_the_caller_s_thread(self, watch):
        threads = set()
        watch("echo one; echo two", on_line=lambda line: threads.add(threading.current_thread()))
        assert threads == {threading.current_thread()}

    def test_the_last_words_of_a_child_are_not_lost(self, watch):
        lines = watch([sys.executable, "-S", "-c", "for i in range(20000): print(i)"])
        assert lines == [str(number) for number in range(20000)]

    def test_bytes_that_are_no_text_become_replacement_characters(self, watch, tmp_path):
        assert watch(r"printf 'a\377b\n\303\244\n'") == ["a\ufffdb", "ä"]
        assert (tmp_path / "trainer.log").read_bytes() == b"a\xffb\n\xc3\xa4\n"

    def test_a_character_cut_in_two_by_the_pipe_is_whole(self, watch):
        assert watch(r"printf '\303'; sleep 0.3; printf '\244\n'") == ["ä"]

    def test_windows_line_ends_are_taken_off(self, watch):
        assert watch(r"printf 'a\r\nb\n'") == ["a", "b"]

    def test_one_endless_line_needs_neither_endless_time_nor_memory(self, watch_elsewhere, tmp_path):
        child = "import os\nfor _ in range(128): os.write(1, b'x' * (1 << 20))"
        said, memory = watch_elsewhere(child, timeout=25)
        assert said == "ended well"
        assert (tmp_path / "trainer.log").stat().st_size == 128 << 20
        assert memory < 160

    def test_gigantic_output_does_not_stay_in_memory(self, watch_elsewhere, tmp_path):
        child = "import os\nfor _ in range(256): os.write(1, (b'x' * 1023 + b'\\n') * 1024)"
        said, memory = watch_elsewhere(child, timeout=25)
        assert said == "ended well"
        assert (tmp_path / "trainer.log").stat().st_size == 256 << 20
        assert memory < 160

    def test_a_child_without_output_ends_well(self, watch, tmp_path):
        assert watch("true") == []
        assert (tmp_path / "trainer.log").read_bytes() == b""

    def test_a_child_that_closes_its_output_is_waited_for(self, watch, tmp_path):
        watch("exec >&- 2>&-; sleep 0.5; touch done")
        assert (tmp_path / "done").exists()


class TestSurroundings:
    def test_the_child_gets_this_folder_this_environment_and_no_input(self, watch, tmp_path):
        (tmp_path / "inner").mkdir()
        lines = watch("pwd; env; cat", cwd=tmp_path / "inner", env={"PATH": os.environ["PATH"], "MINE": "1"})
        assert lines[0] == str((tmp_path / "inner").resolve())
        assert "MINE=1" in lines
        assert not [line for line in lines if line.startswith("HOME=")]

    def test_the_child_has_a_process_group_of_its_own(self, watch):
        (line,) = watch([sys.executable, "-S", "-c", "import os; print(os.getpid(), os.getpgrp(), os.getsid(0))"])
        pid, group, session = map(int, line.split())
        assert pid == group == session != os.getpgrp()


class TestFailure:
    def test_an_exit_status_is_an_error_with_the_end_of_the_log(self, watch):
        with pytest.raises(TrainerError, match="failed with exit status 3") as caught:
            watch("for i in $(seq 100); do echo line $i; done; printf 'last words'; exit 3")
        assert caught.value.exit_code_of_child == 3
        lines = caught.value.log_tail.splitlines()
        assert (lines[-1], lines[-2], len(lines)) == ("last words", "line 100", process.TAIL_LINES)

    @pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (11, "SIGSEGV"), (6, "SIGABRT")])
    def test_a_signal_is_named(self, number, name, watch):
        with pytest.raises(TrainerError, match=f"was ended by {name}") as caught:
            watch(f"echo words; kill -{number} $$")
        assert caught.value.exit_code_of_child == -number
        assert caught.value.log_tail == "words"

    @pytest.mark.parametrize("command", [["no-such-program-anywhere"], ["/no/such/program"]])
    def test_a_program_that_is_not_there_is_named(self, command, watch):
        with pytest.raises(TrainerError, match=f"could not be started.*{command[0]}") as caught:
            watch(command)
        assert caught.value.exit_code_of_child is None

    def test_a_file_that_is_no_program_is_named(self, watch, tmp_path):
        (tmp_path / "data.txt").write_text("data")
        with pytest.raises(TrainerError, match="could not be started: Permission denied.*data.txt"):
            watch([str(tmp_path / "data.txt")])

    def test_a_working_folder_that_is_not_there_is_named(self, watch, tmp_path):
        with pytest.raises(TrainerError, match="could not be started.*nowhere"):
            watch("true", cwd=tmp_path / "nowhere")


class TestDeadlines:
    def test_a_child_that_runs_too_long_is_ended(self, watch, tmp_path, gone):
        start = time.monotonic()
        with pytest.raises(TrainerError, match=r"longer than 0.5 s \(trainer.time_limit\)") as caught:
            watch("echo $$ > pid; echo words; exec sleep 60", time_limit=0.5)
        assert time.monotonic() - start < 5
        assert caught.value.log_tail == "words"
        assert gone(int((tmp_path / "pid").read_text()))

    def test_one_that_never_stops_talking_is_ended_too(self, watch_elsewhere):
        child = "import os\nwhile True: os.write(1, b'x' * 999 + b'\\n')"
        said, _ = watch_elsewhere(child, "time_limit=1", on_line="lambda line: time.sleep(0.001)")
        assert said == "the trainer ran longer than 1 s (trainer.time_limit)"

    def test_one_that_says_nothing_for_too_long_is_ended(self, watch, gone, tmp_path):
        with pytest.raises(TrainerError, match=r"no progress for 0.5 s \(trainer.stall_seconds\)") as caught:
            watch("echo $$ > pid; echo words; exec sleep 60", stall_seconds=0.5)
        assert caught.value.log_tail == "words"
        assert gone(int((tmp_path / "pid").read_text()))

    def test_one_that_talks_is_not_stalled(self, watch):
        assert len(watch("for i in 1 2 3 4 5; do printf .; sleep 0.3; done", stall_seconds=1)) == 1

    def test_one_that_shows_other_signs_of_life_is_not_stalled(self, watch):
        watch("sleep 1.5", stall_seconds=0.6, signs_of_life=itertools.count().__next__)

    def test_signs_of_life_that_stay_the_same_are_none(self, watch):
        with pytest.raises(TrainerError, match="no progress"):
            watch("exec sleep 60", stall_seconds=0.5, signs_of_life=lambda: 7)

    def test_a_quick_child_meets_no_deadline(self, watch):
        assert watch("echo done", time_limit=30, stall_seconds=30) == ["done"]


LEAVE_ONE_BEHIND = "sleep 60 >/dev/null 2>&1 & echo $! > pid; "
LEAVE_ONE_BEHIND_WITH_THE_OUTPUT = "sleep 60 & echo $! > pid; "


class TestTheEndOfAll:
    @pytest.mark.parametrize("leave", [LEAVE_ONE_BEHIND, LEAVE_ONE_BEHIND_WITH_THE_OUTPUT], ids=["silent", "with-pipe"])
    def test_what_a_child_that_ended_well_left_behind_is_ended(self, leave, watch, tmp_path, gone):
        start = time.monotonic()
        assert watch(leave + "echo done") == ["done"]
        assert gone(int((tmp_path / "pid").read_text()))
        assert time.monotonic() - start < 5

    def test_also_when_it_never_stops_talking(self, watch_elsewhere):
        child = "import os\nif os.fork() == 0:\n    while True: os.write(1, b'x' * 999 + b'\\n')\n"
        said, _ = watch_elsewhere(child, on_line="lambda line: time.sleep(0.001)")
        assert said == "ended well"

    @pytest.mark.parametrize("end", ["exit 3", "kill -9 $$", "sleep 60"])
    def test_what_a_failed_child_left_behind_is_ended(self, end, watch, tmp_path, gone):
        with pytest.raises(TrainerError):
            watch(LEAVE_ONE_BEHIND_WITH_THE_OUTPUT + end, time_limit=1)
        assert gone(int((tmp_path / "pid").read_text()))

    def test_one_that_ignores_sigterm_is_killed_after_the_grace_period(self, watch, tmp_path, gone, short_grace):
        script = "trap '' TERM; echo $$ > pid; (while :; do sleep 0.1; done) & while :; do sleep 0.1; done"
        start = time.monotonic()
        with pytest.raises(TrainerError, match="time_limit"):
            watch(script, time_limit=0.5)
        assert 1 <= time.monotonic() - start < 5
        assert gone(int((tmp_path / "pid").read_text()))

    def test_one_that_tidies_up_on_sigterm_has_the_time_to(self, watch, tmp_path):
        with pytest.raises(TrainerError, match="time_limit"):
            watch("trap 'sleep 0.5; echo tidy; exit' TERM; while :; do sleep 0.1; done", time_limit=0.5)
        assert "tidy" in (tmp_path / "trainer.log").read_text()

    def test_an_interrupt_of_the_caller_ends_child_and_grandchild(self, watch, tmp_path, gone):
        threading.Timer(1, _thread.interrupt_main).start()
        with pytest.raises(KeyboardInterrupt):
            watch(LEAVE_ONE_BEHIND_WITH_THE_OUTPUT + "echo $$ > child; sleep 60")
        assert gone(int((tmp_path / "pid").read_text()))
        assert gone(int((tmp_path / "child").read_text()))

    def test_an_error_of_the_caller_ends_child_and_grandchild(self, watch, tmp_path, gone):
        def fail(line):
            raise LookupError(line)

        with pytest.raises(LookupError, match="hello"):
            watch(LEAVE_ONE_BEHIND + "echo hello; sleep 60", on_line=fail)
        assert gone(int((tmp_path / "pid").read_text()))

    def test_a_log_that_cannot_be_written_ends_the_child(self, watch, tmp_path, gone):
        with pytest.raises(OSError, match="nowhere"):
            watch("echo $$ > pid; exec sleep 60", log_file=tmp_path / "nowhere/trainer.log")
        if (tmp_path / "pid").exists():
            assert gone(int((tmp_path / "pid").read_text()))

    def test_nothing_stays_open(self, watch):
        before = set(os.listdir("/proc/self/fd"))
        watch("echo done")
        with pytest.raises(TrainerError):
            watch("exit 3")
        assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="only Linux shows a process's environment")
def test_what_left_the_group_is_ended_too_where_it_is_marked(watch, tmp_path, gone):
    script = "setsid sh -c 'echo $$ > far.pid; exec sleep 600' & while [ ! -s far.pid ]; do sleep 0.05; done"
    watch(script, env={**os.environ, "MARK": str(tmp_path)}, mark="MARK")
    assert gone(int((tmp_path / "far.pid").read_text()))
