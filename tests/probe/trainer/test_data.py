"""Prompts: the same for the same seed and step, whatever was asked before."""

from __future__ import annotations

import json

import pytest

from probe.config import MegatronTraining
from probe.errors import ConfigError
from probe.trainer.data import Arithmetic, JsonLines, Question, load_questions


class TestArithmetic:
    def test_a_batch_depends_on_seed_and_step_alone(self):
        ahead = Arithmetic(1, 4)
        later = ahead.batch(5)
        assert Arithmetic(1, 4).batch(5) == later == ahead.batch(5)

    def test_seeds_and_steps_differ(self):
        batches = [tuple(Arithmetic(seed, 8).batch(step)) for seed in range(3) for step in range(3)]
        assert len(set(batches)) == 9

    def test_the_answers_are_right(self):
        questions = [question for step in range(20) for question in Arithmetic(0, 8).batch(step)]
        assert len(questions) == 160
        for question in questions:
            left, right = question.prompt.removesuffix("=").split("+")
            assert question.answer == str(int(left) + int(right))


@pytest.fixture
def lines(tmp_path):
    def write(content: str | bytes):
        file = tmp_path / "prompts.jsonl"
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file

    return write


def numbered(count: int) -> str:
    return "".join(json.dumps({"prompt": f"p{number}", "answer": number}) + "\n" for number in range(count))


class TestJsonLines:
    def test_lines_come_in_order_and_start_again(self, lines):
        questions = JsonLines(lines(numbered(3)), 2, None)
        assert [[question.prompt for question in questions.batch(step)] for step in range(3)] == [
            ["p0", "p1"],
            ["p2", "p0"],
            ["p1", "p2"],
        ]
        assert questions.batch(0)[1] == Question("p1", "1")

    def test_a_shuffled_pass_has_every_line_once_and_each_pass_another_order(self, lines):
        questions = JsonLines(lines(numbered(20)), 10, 7)
        passes = [
            [q.prompt for step in (2 * number, 2 * number + 1) for q in questions.batch(step)] for number in range(3)
        ]
        assert all(sorted(one) == sorted(f"p{number}" for number in range(20)) for one in passes)
        assert len({tuple(one) for one in passes}) == 3

    def test_the_order_depends_on_the_seed_and_the_step_alone(self, lines):
        file = lines(numbered(20))
        assert JsonLines(file, 10, 7).batch(3) == JsonLines(file, 10, 7).batch(3)
        assert JsonLines(file, 10, 7).batch(3) != JsonLines(file, 10, 8).batch(3)

    def test_empty_lines_other_keys_and_any_unicode_are_fine(self, lines):
        text = json.dumps({"prompt": "a\u2028b\u0085c", "answer": "ä", "id": 7}, ensure_ascii=False)
        assert JsonLines(lines(f"\n{text}\r\n\n"), 1, None).batch(0) == [Question("a\u2028b\u0085c", "ä")]

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            ('{"prompt": "p", "answer": "a"}\n{"prompt": "p"}\n', "line 2 is not an object with prompt and answer"),
            ('\n\n{"prompt": \n', "line 3 is not"),
            ('["p", "a"]\n', "line 1 is not"),
            ('"p"\n', "line 1 is not"),
            ("7\n", "line 1 is not"),
            ('{"prompt": null, "answer": "a"}\n', "line 1 is not"),
            ("", "holds no questions"),
            ("\n \n", "holds no questions"),
            (b"\xff\xfe", "cannot be read"),
        ],
    )
    def test_a_mistake_is_named_with_its_file_and_line(self, content, problem, lines):
        file = lines(content)
        with pytest.raises(ConfigError, match=problem) as caught:
            JsonLines(file, 1, None)
        assert (caught.value.source, caught.value.key) == (str(file), "megatron_training.data_path")

    def test_a_file_that_is_not_there_is_named(self, tmp_path):
        with pytest.raises(ConfigError, match=r"nowhere.jsonl: megatron_training.data_path: cannot be read"):
            JsonLines(tmp_path / "nowhere.jsonl", 1, None)


class TestConfiguration:
    def test_without_a_file_there_is_arithmetic_by_the_seed(self):
        made = load_questions(MegatronTraining(seed=4, global_batch_size=3))
        assert made.batch(1) == Arithmetic(4, 3).batch(1)

    def test_with_a_file_its_order_is_kept_unless_it_is_to_be_shuffled(self, lines):
        path = str(lines(numbered(20)))
        kept = load_questions(MegatronTraining(data_path=path, global_batch_size=20))
        shuffled = load_questions(MegatronTraining(data_path=path, global_batch_size=20, no_shuffle=False, seed=2))
        assert [question.answer for question in kept.batch(0)] == [str(number) for number in range(20)]
        assert shuffled.batch(0) == JsonLines(lines(numbered(20)), 20, 2).batch(0) != kept.batch(0)
