"""The harness's own parts: histories, the proxy, the command."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from chaos import history
from chaos.command import main
from chaos.experiments import EXPERIMENTS
from chaos.facts import gather
from chaos.proxy import FaultProxy, Trouble
from chaos.stage import ENGINES
from ropeway.runtime.ids import token

# ── histories ──


def test_what_was_written_is_read_by_time_and_half_a_line_is_left_out(tmp_path: Path) -> None:
    clock = iter([2.0, 1.0, 3.0]).__next__
    first = history.Recorder(tmp_path, "a", clock=clock, pid=1)
    second = history.Recorder(tmp_path, "b", clock=clock, pid=2)
    first.write("start", "ok", job="x", attempt=1)
    second.write("start", "ok", job="y", attempt=1)
    number = first.invoke("settle", items=[])
    first.close()
    second.close()
    with (tmp_path / "b.2.jsonl").open("ab") as file:
        file.write(b'{"t": 9.0, "op": "st')
    lines = history.read(tmp_path)
    assert [(line["t"], line["process"], line["op"]) for line in lines] == [
        (1.0, "b", "start"),
        (2.0, "a", "start"),
        (3.0, "a", "settle"),
    ]
    assert lines[-1]["n"] == number == 1


def test_a_call_whose_process_died_is_a_call_that_nobody_knows_of() -> None:
    asked = {"t": 1.0, "process": "p", "pid": 7, "op": "enqueue", "phase": "invoke", "n": 1}
    jobs = [{"key": "k", "type": "chaos.ok", "max_attempts": 5, "delay": None}]
    facts = gather([{**asked, "jobs": jobs}], {"jobs": [], "events": []})
    (enqueue,) = facts.enqueues
    assert (enqueue.phase, enqueue.id, enqueue.key) == ("info", None, "k")


def test_a_token_is_told_apart_and_not_told() -> None:
    one, other = token(), token()
    assert history.token_hash(one) != history.token_hash(other)
    assert one.hex not in history.token_hash(one)


# ── the proxy ──


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1_000):
        writer.write(data)
        await writer.drain()
    writer.close()


async def _talk(trouble: Trouble | None, say: bytes) -> bytes | str:
    """What comes back through a proxy with that trouble, within half a second of saying it."""
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    kinds = [] if trouble is None else [trouble]
    async with server, FaultProxy(port, random.Random(1), share=1.0, kinds=kinds) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        try:
            writer.write(say)
            async with asyncio.timeout(0.5):
                return await reader.readexactly(len(say))
        except TimeoutError:
            return "silence"
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            return f"cut after {len(getattr(error, 'partial', b''))}"
        finally:
            writer.close()


@pytest.mark.parametrize(
    ("trouble", "outcome"),
    [
        (None, b"hello"),
        (Trouble(after=0), "cut after 0"),
        (Trouble(after=5), b"hello"),
        (Trouble(swallow=True), "silence"),
        (Trouble(delay=10.0), "silence"),
        (Trouble(drip=10.0), "silence"),
    ],
)
async def test_a_connection_gets_into_the_trouble_that_was_asked_for(
    trouble: Trouble | None, outcome: bytes | str
) -> None:
    assert await _talk(trouble, b"hello") == outcome


async def test_cut_breaks_what_is_open() -> None:
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    async with server, FaultProxy(server.sockets[0].getsockname()[1], random.Random(1)) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        assert proxy.cut() == 1
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()


# ── the command ──


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "E99"], "no experiment is called E99"),
        (["run", "E01", "--engine", "redis"], "no engine is called redis"),
        (["run", "E04", "--engine", "sqlite"], "E04 is for postgres"),
    ],
)
def test_what_cannot_be_run_is_said_in_one_line(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    output = capsys.readouterr().err
    assert told in output
    assert len(output.splitlines()) == 1


def test_the_list_names_every_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(EXPERIMENTS)


def test_every_experiment_is_for_engines_that_there_are() -> None:
    for experiment in EXPERIMENTS.values():
        assert set(experiment.engines) <= set(ENGINES)
        assert experiment.small.jobs <= experiment.full.jobs
