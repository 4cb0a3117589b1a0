"""What every test shares: a Prefect server of the session's own, and the ``firstdiff`` command as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what it puts into the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["FIRSTDIFF_LANG"] = "en"  # whatever the locale of whoever runs the tests
ROOT = Path(__file__).resolve().parent.parent
QUIET_PREFECT = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_V2_ENABLED": "false",
}


@dataclass(frozen=True)
class Finished:
    """A command that ended."""

    status: int
    stdout: str
    stderr: str

    @property
    def document(self) -> Any:
        """Standard output as the one JSON document that it must be."""
        return json.loads(self.stdout)

    @property
    def last_line(self) -> str:
        return self.stderr.strip().splitlines()[-1]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def prefect_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prefect")


@pytest.fixture(scope="session")
def prefect_api(prefect_home: Path) -> Iterator[str]:
    """The API address of a Prefect server on 127.0.0.1 that ends with the session."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {**os.environ, **QUIET_PREFECT, "PREFECT_HOME": str(prefect_home)}
    env.pop("PREFECT_API_URL", None)
    log = (prefect_home / "server.log").open("wb")
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        url = f"http://127.0.0.1:{port}/api"
        _wait_until_healthy(url, server, prefect_home / "server.log")
        yield url
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
        log.close()


def _wait_until_healthy(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.3)
    pytest.fail(f"the Prefect server did not start:\n{log.read_text(errors='replace')[-2000:]}")


@pytest.fixture
def firstdiff(tmp_path: Path) -> Callable[..., Finished]:
    """Runs ``firstdiff ARGUMENTS`` in an empty folder; keyword arguments are environment variables."""

    def run(*arguments: str | Path, cwd: Path = tmp_path, timeout: float = 600, **variables: str) -> Finished:
        env = {**os.environ, **QUIET_PREFECT, **variables}
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli", *map(str, arguments)],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Finished(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture(scope="session")
def tiny_qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a Qwen2 of two small layers and a tokenizer of a few words, made from their configurations."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed

    folder = tmp_path_factory.mktemp("model") / "tiny"
    words = ["[PAD]", "[EOS]", "[UNK]", *"0123456789+=", "add"]
    tokens = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokens.pre_tokenizer = WhitespaceSplit()
    named = {"pad_token": "[PAD]", "eos_token": "[EOS]", "unk_token": "[UNK]"}
    PreTrainedTokenizerFast(tokenizer_object=tokens, **named).save_pretrained(folder)
    set_seed(1)
    config = Qwen2Config(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def check(firstdiff: Callable[..., Finished], prefect_api: str) -> Callable[..., Finished]:
    """Runs ``firstdiff check ARGUMENTS --json`` against the session's server."""

    def run(*arguments: str | Path, **variables: str) -> Finished:
        return firstdiff("check", *arguments, "--json", PREFECT_API_URL=prefect_api, **variables)

    return run
