"""Job ids as people give them: whole, or the beginning that a table showed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ropeway.cli import acting, output
from ropeway.core.errors import InputError, RopewayError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from uuid import UUID

    from ropeway.cli.services import Services
    from ropeway.engines.protocol import Changed

    Verb = Callable[[Sequence[UUID]], Awaitable[list[Changed | RopewayError]]]

Id = Annotated[str, typer.Argument(metavar="ID", help="A job id; its beginning is enough.", show_default=False)]
Ids = Annotated[
    list[str], typer.Argument(metavar="ID", help="Job ids; their beginnings are enough.", show_default=False)
]


async def change_each(
    services: Services, texts: Sequence[str], verb: Verb, *, action: str
) -> list[tuple[str, Changed | RopewayError]]:
    """Use a verb on each job: what was asked for, and what became of it, in order. One failure stops no other.

    What was changed is noted as `action`.
    """
    ids: dict[str, UUID] = {}
    answers: dict[str, Changed | RopewayError] = {}
    for text in dict.fromkeys(texts):
        try:
            ids[text] = await services.jobs.starting_with(text)
        except RopewayError as error:
            if not isinstance(error, InputError) and error.code != "not_found":
                raise
            answers[text] = error
    if ids:
        changed = await verb(list(ids.values()))
        answers |= dict(zip(ids, changed, strict=True))
        done = [str(answer.id) for answer in changed if not isinstance(answer, RopewayError)]
        await acting.note(services, action, done)
    return [(text, answers[text]) for text in dict.fromkeys(texts)]


def tell_changes(answers: Sequence[tuple[str, Changed | RopewayError]], did: str, *, as_json: bool) -> None:
    """Say what became of each; exits 1 if anything was refused (2 if all of it was called wrongly)."""
    if as_json:
        output.say_json({"results": [_result(text, answer) for text, answer in answers]})
    else:
        for _, answer in answers:
            if isinstance(answer, RopewayError):
                output.complain(str(answer))
            else:
                output.say(f"{did} {answer.id} (was {answer.before.value})")
    refused = [answer for _, answer in answers if isinstance(answer, RopewayError)]
    if refused:
        raise typer.Exit(2 if all(isinstance(error, InputError) for error in refused) else 1)


def _result(text: str, answer: Changed | RopewayError) -> dict[str, Any]:
    if isinstance(answer, RopewayError):
        error = {"code": answer.code, "detail": answer.message, "hint": answer.hint}
        return {"id": text, "ok": False, "error": error}
    status = None if answer.state is None else answer.state.value
    return {"id": str(answer.id), "ok": True, "status": status, "was": answer.before.value}
