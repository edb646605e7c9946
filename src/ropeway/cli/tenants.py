"""`ropeway tenants create|list|show|set`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ropeway.cli import acting, output
from ropeway.cli.options import DEFAULT, Json, Url, use
from ropeway.cli.output import Column
from ropeway.core.access import Limits
from ropeway.core.errors import FieldError

if TYPE_CHECKING:
    from datetime import datetime

    from ropeway.cli.services import Services
    from ropeway.core.access import Tenant

app = typer.Typer(help="Whose jobs are whose: make, list and change tenants.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(metavar="ID", help="The tenant's id.", show_default=False)]
Email = Annotated[str | None, typer.Option("--email", help="Whom to write to; empty takes it away.")]
Rate = Annotated[
    str | None, typer.Option("--rate", metavar="N", help="Requests and new jobs per second; or default.")
]
Burst = Annotated[str | None, typer.Option("--burst", metavar="N", help="How many of them at once; or default.")]
MaxQueued = Annotated[
    str | None, typer.Option("--max-queued", metavar="N", help="Jobs that have not ended; or default.")
]
MaxPayload = Annotated[
    str | None, typer.Option("--max-payload-bytes", metavar="N", help="Bytes of one payload; or default.")
]
MaxLeases = Annotated[
    str | None, typer.Option("--max-leases", metavar="N", help="Jobs leased at once; or default.")
]


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What people call it.", show_default=False)],
    id: Annotated[
        str | None, typer.Option("--id", help="What its jobs are kept under, for ever; made from the name.")
    ] = None,
    email: Email = None,
    rate: Rate = None,
    burst: Burst = None,
    max_queued: MaxQueued = None,
    max_payload_bytes: MaxPayload = None,
    max_leases: MaxLeases = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Make a tenant. What is not limited here is limited by the server's settings."""
    changes = _limits(rate, burst, max_queued, max_payload_bytes, max_leases)

    async def work(services: Services) -> None:
        limits = services.tenants.merged(Limits(), **changes)
        made = await services.tenants.create(name, id=id, email=email or None, limits=limits)
        await acting.note(services, "tenant.create", made.id)
        if as_json:
            _say_json(made)
        else:
            output.say(made.id)
            output.note(f"A key for it: ropeway keys create NAME --tenant {made.id}")

    use(url, DEFAULT, work, makes_store=True)


@app.command("list")
def list_tenants(url: Url = None, as_json: Json = False) -> None:
    """List tenants by id."""

    async def work(services: Services) -> None:
        found = await services.tenants.all()
        if as_json:
            from ropeway.wire.objects import tenant_object

            output.say_json({"tenants": [tenant_object(tenant) for tenant in found]})
        else:
            now = await services.now()
            output.show_table(_COLUMNS, [_row(tenant, now) for tenant in found])

    use(url, DEFAULT, work)


_COLUMNS = (
    Column("ID", flex=True, least=8),
    Column("NAME", flex=True, least=8),
    Column("ACTIVE"),
    Column("LIMITS", flex=True, least=8),
    Column("CREATED"),
    Column("SEEN"),
)


def _row(tenant: Tenant, now: datetime) -> list[Any]:
    active = "yes" if tenant.is_active else output.coloured("no", "yellow")
    limits = output.joined(f"{name} {_number(value)}" for name, value in _set_limits(tenant.limits))
    seen = output.ago(tenant.last_seen_at, now)
    return [tenant.id, tenant.name, active, limits, output.ago(tenant.created_at, now), seen]


@app.command("show")
def show(id: Id, url: Url = None, as_json: Json = False) -> None:
    """Show a tenant and what it may use."""

    async def work(services: Services) -> None:
        tenant = await services.tenants.get(id)
        if as_json:
            _say_json(tenant)
        else:
            _show(tenant, await services.now())

    use(url, DEFAULT, work)


def _show(tenant: Tenant, now: datetime) -> None:
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row("id", tenant.id)
    grid.add_row("name", output.cell(tenant.name))
    grid.add_row("email", output.cell(tenant.email or "-"))
    grid.add_row("status", "active" if tenant.is_active else output.coloured("not active: refused", "yellow"))
    grid.add_row("created", output.both(tenant.created_at, now))
    grid.add_row("last seen", output.both(tenant.last_seen_at, now))
    given = dict(_set_limits(tenant.limits))
    for field, words in _LIMITS.items():
        told = f"{_number(given[field])} {words}" if field in given else f"the server's default {words}"
        grid.add_row(field.replace("_", " "), told)
    output.console().print(grid)


_LIMITS = {
    "rate_per_second": "requests and new jobs per second",
    "burst": "of them at once",
    "max_queued": "jobs that have not ended",
    "max_payload_bytes": "bytes of one payload",
    "max_leases": "jobs leased at once",
}


@app.command("set")
def change(
    id: Id,
    name: Annotated[str | None, typer.Option("--name", help="What people call it.")] = None,
    email: Email = None,
    active: Annotated[
        bool | None,
        typer.Option("--active/--inactive", help="Whether its keys are good; its jobs stay either way."),
    ] = None,
    rate: Rate = None,
    burst: Burst = None,
    max_queued: MaxQueued = None,
    max_payload_bytes: MaxPayload = None,
    max_leases: MaxLeases = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Change a tenant; every server follows within five seconds. Not given: as it was."""
    changes = _limits(rate, burst, max_queued, max_payload_bytes, max_leases)
    if not changes and name is None and email is None and active is None:
        raise FieldError("nothing to change", hint="--name, --email, --inactive, --rate, --max-queued ...")

    async def work(services: Services) -> None:
        limits = None
        if changes:
            limits = services.tenants.merged((await services.tenants.get(id)).limits, **changes)
        changed = await services.tenants.change(id, name=name, email=email, is_active=active, limits=limits)
        await acting.note(services, "tenant.change", changed.id)
        if as_json:
            _say_json(changed)
        else:
            output.say(f"changed {changed.id}")

    use(url, DEFAULT, work)


def _say_json(tenant: Tenant) -> None:
    from ropeway.wire.objects import tenant_object

    output.say_json(tenant_object(tenant))


def _set_limits(limits: Limits) -> list[tuple[str, float]]:
    return [(field, getattr(limits, field)) for field in _LIMITS if getattr(limits, field) is not None]


def _number(value: float) -> str:
    return f"{value:,.6g}" if isinstance(value, float) else f"{value:,}"


def _limits(
    rate: str | None,
    burst: str | None,
    max_queued: str | None,
    max_payload_bytes: str | None,
    max_leases: str | None,
) -> dict[str, float | int | None]:
    """What was given, by the names of the limits; `default` is None."""
    words = {
        "burst": ("--burst", burst),
        "max_queued": ("--max-queued", max_queued),
        "max_payload_bytes": ("--max-payload-bytes", max_payload_bytes),
        "max_leases": ("--max-leases", max_leases),
    }
    found: dict[str, float | int | None] = {
        field: _whole(word, option) for field, (option, word) in words.items() if word is not None
    }
    if rate is not None:
        found["rate_per_second"] = _rate(rate)
    return found


def _whole(text: str, option: str) -> int | None:
    if text == "default":
        return None
    digits = text.replace(",", "").replace("_", "")
    if not digits.isascii() or not digits.isdigit():
        raise FieldError(f"{option}: {text!r} is not a whole number", hint="such as 10000, or default")
    return int(digits)


def _rate(text: str) -> float | None:
    if text == "default":
        return None
    try:
        return float(text.replace(",", "").replace("_", ""))
    except ValueError:
        raise FieldError(f"--rate: {text!r} is not a number", hint="such as 100 or 0.5, or default") from None
