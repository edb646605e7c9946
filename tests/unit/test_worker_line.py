"""Messages between the worker's processes."""

from __future__ import annotations

import asyncio
import socket
from uuid import uuid4

from ropeway.worker.channel import Quiet, Recheck, Revoked, Stop, ToChild
from ropeway.worker.line import Line, framed, receive_blocking


async def test_messages_arrive_whole_and_in_order() -> None:
    ours, theirs = socket.socketpair()
    here, there = await Line.over(ours, ToChild), await Line.over(theirs, ToChild)
    sent = [Quiet(True), Recheck(), Revoked([uuid4() for _ in range(20_000)]), Stop(None), Stop(2.5)]
    for message in sent:
        here.send(message)
    assert [await there.receive() for _ in sent] == sent
    here.close()
    there.close()


async def test_an_end_that_is_gone_is_noticed_by_receive_and_harms_nobody_else() -> None:
    ours, theirs = socket.socketpair()
    here = await Line.over(ours, ToChild)
    theirs.close()
    assert await here.receive() is None
    here.send(Quiet(True))
    await here.drained()
    here.close()
    here.send(Quiet(True))


async def test_a_message_that_was_cut_off_is_none() -> None:
    ours, theirs = socket.socketpair()
    here = await Line.over(ours, ToChild)
    theirs.sendall(framed(Stop(1.0))[:-1])
    theirs.close()
    assert await here.receive() is None
    here.close()


async def test_the_first_message_before_there_is_a_loop() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(framed(Stop(1.0)) + framed(Quiet(True)))
        assert await asyncio.to_thread(receive_blocking, theirs, ToChild) == Stop(1.0)
        assert await asyncio.to_thread(receive_blocking, theirs, ToChild) == Quiet(True)
        ours.shutdown(socket.SHUT_WR)
        assert await asyncio.to_thread(receive_blocking, theirs, ToChild) is None


async def test_an_end_that_is_gone_is_known_before_the_loop_turns() -> None:
    ours, theirs = socket.socketpair()
    here = await Line.over(ours, ToChild)
    assert not here.hung_up()
    theirs.sendall(framed(Quiet(True)))
    assert not here.hung_up(), "a message is no farewell"
    theirs.close()
    assert here.hung_up()
    assert await here.receive() == Quiet(True)
    assert await here.receive() is None
    assert here.hung_up()
    here.close()
    assert here.hung_up()
