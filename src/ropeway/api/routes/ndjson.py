"""A batch of any size: one job per line, stored a thousand lines at a time, each thousand whole or not at all."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping
from typing import IO

import msgspec

from ropeway.api.reading import Fields
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

#: Lines that are stored together, and the longest one.
LINES = 1_000
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
        async for number, batch in _batches(call):
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


async def _batches(call: Call) -> AsyncIterator[tuple[int, list[NewJob]]]:
    """The jobs, a thousand at a time, with the number of the first line of each thousand."""
    batch: list[NewJob] = []
    number = 0
    async for line in _lines(call.chunks()):
        if line.strip():
            batch.append(_job(line, number))
            number += 1
            if len(batch) == LINES:
                yield number - LINES, batch
                batch = []
    if batch:
        yield number - len(batch), batch


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line
        if len(rest) > LONGEST_LINE + 1:
            # It is refused when it is looked at; more of it need not be read for that.
            break
    yield rest


def _job(line: bytes, number: int) -> NewJob:
    try:
        return new_job(_fields.read(line.rstrip(b"\r")), line)
    except InputError as error:
        error.index = number
        raise


async def _stored(call: Call, batch: list[NewJob], first: int) -> list[Enqueued]:
    deps = call.deps
    try:
        await _paid(call, len(batch))
        async with deps.admission.admitted(call.principal, batch):
            answers = await deps.engine.enqueue(batch, tenant=call.tenant)
    except RopewayError as error:
        error.index = first + (error.index or 0)
        raise
    count_stored(call.tenant, batch, answers)
    deps.streams.poke()
    return answers


async def _paid(call: Call, number: int) -> None:
    """Take a batch's share of the tenant's rate, waiting for it if that is not long."""
    while True:
        try:
            await call.deps.admission.request(call.principal, float(number))
        except RateLimited as error:
            if error.retry_in is None or error.retry_in > LONGEST_WAIT or call.deps.stopping.is_set():
                raise
            await asyncio.sleep(error.retry_in)
        else:
            return


def _line(answer: Enqueued, durability: Mapping[str, str]) -> bytes:
    id = str(answer.id)
    status = PRUNED if answer.state is None else answer.state.value
    told = {"id": id, "run_id": id, "status": status, "deduplicated": answer.deduplicated, **durability}
    return _encode(told) + b"\n"


async def _sent(answers: IO[bytes]) -> AsyncIterator[bytes]:
    with answers:
        while chunk := answers.read(_CHUNK):
            yield chunk
