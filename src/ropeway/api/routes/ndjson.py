"""A batch of any size: one job per line, stored a thousand lines at a time, each thousand whole or not at all.

Long lines are stored sooner, before they fill the memory. Whether the key is still good is asked each time.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import IO

import msgspec

from ropeway.api.budget import Held
from ropeway.api.reading import BATCH_BYTES, Fields
from ropeway.api.routing import Call, Reply, Stream
from ropeway.core.errors import InputError, PayloadError, RateLimited, RopewayError
from ropeway.core.job import NewJob
from ropeway.core.payload import MAX_PAYLOAD_BYTES
from ropeway.core.states import PRUNED
from ropeway.engines.protocol import Enqueued
from ropeway.service.counting import count_stored
from ropeway.wire import problems
from ropeway.wire.convert import new_job
from ropeway.wire.requests import EnqueueBody

MEDIA_TYPE = "application/x-ndjson"

#: Lines that are stored together, unless they have so many bytes before; and the longest one.
LINES = 1_000
BYTES = BATCH_BYTES
LONGEST_LINE = MAX_PAYLOAD_BYTES

#: Bytes of answers that are kept in memory; more go to a file until the last line was read. They are not sent
#: before: most clients read nothing until they have sent everything, and both sides would wait for each other.
KEPT_IN_MEMORY = 4 * 1_048_576

#: Seconds for which a batch that is too fast is held back instead of refused.
LONGEST_WAIT = 5.0

_CHUNK = 65_536
_encode = msgspec.json.Encoder().encode
_fields = Fields(EnqueueBody, LONGEST_LINE)


async def enqueue_lines(call: Call) -> Reply | Stream:
    """An answer per line, in order. It stops at the first bad one; a last line `{"error": problem}` says which.

    When nothing at all was stored, that problem is the answer itself.
    """
    answers: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=KEPT_IN_MEMORY)  # noqa: SIM115 - closed by _sent
    stored = 0
    durability = {"durability": "relaxed"} if call.deps.engine.durability == "relaxed" else {}
    try:
        with call.deps.bodies.held(call.tenant) as held:
            async for number, batch in _batches(call, held):
                for one in await _stored(call, batch, number):
                    answers.write(_line(one, durability))
                stored += len(batch)
    except RopewayError as error:
        if stored == 0:
            answers.close()
            raise
        answers.write(_encode({"error": problems.problem_of(error, call.request_id)}) + b"\n")
    except BaseException:
        answers.close()
        raise
    if stored == 0:
        answers.close()
        raise PayloadError("there is no line with a job in it", code="malformed_json", hint="one job per line")
    answers.seek(0)
    return Stream(_sent(answers), media_type=MEDIA_TYPE)


async def _batches(call: Call, held: Held) -> AsyncIterator[tuple[int, list[NewJob]]]:
    """The jobs, as many at a time as are stored together, with the number of the first line of each time."""
    batch: list[NewJob] = []
    size = number = 0
    async for line in _lines(call.chunks()):
        if not line.strip():
            continue
        if batch and size + len(line) > BYTES:
            yield number - len(batch), batch
            batch, size = [], 0
            held.release()
        held.take(len(line))
        batch.append(await call.deps.heavy.by_size(len(line), _job, line, number))
        size += len(line)
        number += 1
        if len(batch) == LINES:
            yield number - LINES, batch
            batch, size = [], 0
            held.release()
    if batch:
        yield number - len(batch), batch


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    #: Pieces of a line whose end has not come.
    pieces: list[bytes] = []
    length = 0
    async for chunk in chunks:
        first, *others = chunk.split(b"\n")
        pieces.append(first)
        length += len(first)
        if others:
            yield b"".join(pieces)
            *whole, rest = others
            for line in whole:
                yield line
            pieces, length = [rest], len(rest)
        if length > LONGEST_LINE + 1:
            # It is refused when it is looked at; more of it need not be read for that.
            break
    yield b"".join(pieces)


def _job(line: bytes, number: int) -> NewJob:
    try:
        return new_job(_fields.read(line.rstrip(b"\r")), line)
    except InputError as error:
        error.index = number
        raise


async def _stored(call: Call, batch: list[NewJob], first: int) -> Sequence[Enqueued]:
    deps = call.deps
    try:
        if first:
            await call.confirm()
        # Of the first ones, one was paid for with the request.
        await _paid(call, len(batch) if first else len(batch) - 1)
        async with deps.admission.admitted(call.principal, batch):
            answers = await deps.engine.enqueue(batch, tenant=call.tenant)
    except RopewayError as error:
        error.index = first + (error.index or 0)
        raise
    count_stored(call.tenant, batch, answers)
    deps.streams.poke()
    return answers


async def _paid(call: Call, number: int) -> None:
    """Take a batch's share of the tenant's rate, waiting for it if that is not long.

    It is taken in parts that the rate can give at once: a tenant may have a burst below what is stored together.
    """
    admission, principal = call.deps.admission, call.principal
    part = number
    while number > 0:
        rate = admission.state(principal)
        part = min(part, number, number if rate is None else max(1, rate.limit))
        try:
            await admission.request(principal, float(part))
        except RateLimited as error:
            wait = error.retry_in
            if wait is None or call.deps.stopping.is_set() or (wait > LONGEST_WAIT and part == 1):
                raise
            if wait > LONGEST_WAIT:
                part = (part + 1) // 2
            else:
                await asyncio.sleep(wait)
        else:
            number -= part


def _line(answer: Enqueued, durability: Mapping[str, str]) -> bytes:
    id = str(answer.id)
    status = PRUNED if answer.state is None else answer.state.value
    told = {"id": id, "run_id": id, "status": status, "deduplicated": answer.deduplicated, **durability}
    return _encode(told) + b"\n"


async def _sent(answers: IO[bytes]) -> AsyncIterator[bytes]:
    with answers:
        while chunk := answers.read(_CHUNK):
            yield chunk
