"""`ropeway keys create|list|rotate|revoke`."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ropeway.cli import acting, output, values
from ropeway.cli.options import DEFAULT, Json, Url, use
from ropeway.cli.output import Column
from ropeway.core.access import Scope
from ropeway.core.errors import FieldError, NotFound

if TYPE_CHECKING:
    from ropeway.cli.services import Services
    from ropeway.core.access import ApiKey

app = typer.Typer(help="Make, list, exchange and revoke the keys of the HTTP API.", no_args_is_help=True)

#: Not shown anywhere but in the key's text.
ENVIRONMENT = "live"


def _complete_scope(incomplete: str) -> list[str]:
    return [scope.value for scope in Scope if scope.value.startswith(incomplete)]


Tenant = Annotated[str, typer.Option("--tenant", metavar="ID", help="Whose keys.", show_default=False)]
KeyId = Annotated[
    str, typer.Argument(metavar="ID", help="The key's id, as the list shows it.", show_default=False)
]
ExpiresIn = Annotated[
    str | None, typer.Option("--expires-in", metavar="TIME", help="It ends after so long, such as 30d.")
]
ExpiresAt = Annotated[
    str | None, typer.Option("--expires-at", metavar="WHEN", help="It ends then, such as 2027-01-31T00:00:00Z.")
]
Label = Annotated[
    str, typer.Option("--environment", metavar="LABEL", help="A word in the key's text, for people.")
]


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the key is for.", show_default=False)],
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            "-s",
            help=f"What it may do: {' '.join(Scope)}; repeat, or use commas. [default: enqueue]",
            autocompletion=_complete_scope,
        ),
    ] = None,
    expires_in: ExpiresIn = None,
    expires_at: ExpiresAt = None,
    environment: Label = ENVIRONMENT,
    url: Url = None,
    tenant: Tenant = DEFAULT,
    as_json: Json = False,
) -> None:
    """Make a key and print its token, this once: only a digest of it is stored."""
    scopes = _scopes(scope or [Scope.ENQUEUE.value])

    async def work(services: Services) -> None:
        ends = await _end(services, expires_in, expires_at)
        try:
            key, token = await services.keys(environment).create(name, scopes, ends)
        except NotFound:
            # With the tenant that was probably meant.
            await services.tenants.get(tenant)
            raise
        await acting.note(services, "key.create", key.id)
        _hand_out(key, token, await services.now(), as_json=as_json)

    use(url, tenant, work, makes_store=True)


@app.command("list")
def list_keys(url: Url = None, tenant: Tenant = DEFAULT, as_json: Json = False) -> None:
    """List keys, newest first, also those that are no longer good. Tokens cannot be shown again."""

    async def work(services: Services) -> None:
        await services.tenants.get(tenant)
        found = await services.keys(ENVIRONMENT).all()
        if as_json:
            from ropeway.wire.objects import key_object

            output.say_json({"keys": [key_object(key) for key in found]})
        elif not found:
            output.note("No keys. `ropeway keys create NAME` makes one.")
        else:
            now = await services.now()
            output.show_table(_COLUMNS, [_row(key, now) for key in found])

    use(url, tenant, work)


_COLUMNS = (
    Column("ID"),
    Column("NAME", flex=True, least=8),
    Column("SCOPES", flex=True, least=8),
    Column("CREATED"),
    Column("USED"),
    Column("ENDS"),
)


def _row(key: ApiKey, now: datetime) -> list[Any]:
    scopes = output.joined(sorted(key.scopes))
    times = [output.ago(key.created_at, now), output.ago(key.last_used_at, now)]
    return [key.id, key.name, scopes, *times, _ends(key, now)]


def _ends(key: ApiKey, now: datetime) -> Any:
    if key.revoked_at is not None:
        return output.coloured(f"revoked {output.ago(key.revoked_at, now)}", "dim")
    if key.expires_at is None:
        return "never"
    ends = output.ago(key.expires_at, now)
    return ends if key.good(now) else output.coloured(f"expired {ends}", "dim")


@app.command("rotate")
def rotate(
    id: KeyId,
    overlap: Annotated[
        str, typer.Option("--overlap", metavar="TIME", help="How long the old key stays good beside the new one.")
    ] = "24h",
    expires_in: ExpiresIn = None,
    expires_at: ExpiresAt = None,
    environment: Label = ENVIRONMENT,
    url: Url = None,
    tenant: Tenant = DEFAULT,
    as_json: Json = False,
) -> None:
    """Make a successor of the same name and scopes and print its token; the old key ends after the overlap."""
    seconds = values.seconds(overlap, "--overlap")

    async def work(services: Services) -> None:
        ends = await _end(services, expires_in, expires_at)
        key, token = await services.keys(environment).rotate(id, seconds, expires_at=ends)
        await acting.note(services, "key.rotate", id)
        _hand_out(key, token, await services.now(), as_json=as_json)
        if not as_json:
            after = f"in {output.span(seconds)}" if seconds else "now, everywhere within seconds"
            output.note(f"The old key {id} ends {after}.")

    use(url, tenant, work)


@app.command("revoke")
def revoke(id: KeyId, url: Url = None, tenant: Tenant = DEFAULT, as_json: Json = False) -> None:
    """Let a key be good no more: every server refuses it within five seconds."""

    async def work(services: Services) -> None:
        key = await services.keys(ENVIRONMENT).revoke(id)
        await acting.note(services, "key.revoke", key.id)
        if as_json:
            from ropeway.wire.objects import key_object

            output.say_json(key_object(key))
        else:
            output.say(f"revoked {key.id} ({key.name})")

    use(url, tenant, work)


def _hand_out(key: ApiKey, token: str, now: datetime, *, as_json: bool) -> None:
    if as_json:
        from ropeway.wire.objects import key_object

        output.say_json({**key_object(key), "token": token})
        return
    # The token alone is the answer, so that it can be put into a file or a variable.
    output.say(token)
    may = output.joined(sorted(key.scopes))
    ends = "never ends" if key.expires_at is None else f"ends {output.both(key.expires_at, now)}"
    output.note(f"Key {key.id} ({key.name}) of tenant {key.tenant}: {may}; it {ends}.")
    output.note(
        "Its token is shown only now. Keep it where you keep secrets; send it as `Authorization: Bearer ...`."
    )


async def _end(services: Services, expires_in: str | None, expires_at: str | None) -> datetime | None:
    if expires_in is not None and expires_at is not None:
        raise FieldError("give --expires-in or --expires-at, not both", code="conflicting_fields")
    if expires_at is not None:
        return values.instant(expires_at, "--expires-at")
    if expires_in is None:
        return None
    try:
        return await services.now() + timedelta(seconds=values.seconds(expires_in, "--expires-in"))
    except OverflowError:
        raise FieldError(f"--expires-in: {expires_in} is too long") from None


def _scopes(words: list[str]) -> frozenset[Scope]:
    named = [word.strip() for text in words for word in text.split(",") if word.strip()]
    return frozenset(_scope(word) for word in named)


def _scope(word: str) -> Scope:
    try:
        return Scope(word)
    except ValueError:
        from ropeway.service.names import did_you_mean

        hint = did_you_mean(word, Scope) or f"one of {', '.join(Scope)}"
        raise FieldError(f"unknown scope {word[:64]!r}", hint=hint) from None
