"""Lines that a type checker must refuse, with the codes after `wrong:`. Checked by mypy, never run."""

from __future__ import annotations

from ropeway import Client, Job, JobContext, Ropeway

app = Ropeway("memory://")


@app.task
async def welcome(user_id: int, name: str = "you") -> str:
    return f"{name} {user_id}"


@app.task(queue="mail")
def render(page: str) -> bytes:
    return page.encode()


@app.task
async def with_context(ctx: JobContext, number: int) -> int:
    return number


@app.task
def with_job(job: Job, number: int) -> int:
    return number


@app.task(queue=3)  # wrong: call-overload, untyped-decorator
def misqueued() -> None: ...


@app.task(priority="urgent")  # wrong: call-overload, untyped-decorator
def misprioritised() -> None: ...


@app.task(que="mail")  # wrong: call-overload, untyped-decorator
def misspelt() -> None: ...


async def async_program(ctx: JobContext, job: Job) -> None:
    await welcome.aenqueue(user_id="7")  # wrong: arg-type
    await welcome.aenqueue("7")  # wrong: arg-type
    await welcome.aenqueue()  # wrong: call-arg
    await welcome.aenqueue(7, nmae="a")  # wrong: call-arg
    await welcome.options(delay=3).aenqueue("7")  # wrong: arg-type
    await welcome.options(dely=3).aenqueue(7)  # wrong: call-arg
    welcome.call("7")  # wrong: arg-type
    text: int = await (await welcome.aenqueue(7)).result()  # wrong: assignment
    assert text
    await with_context.aenqueue(ctx, 3)  # wrong: arg-type, call-arg
    await with_context(3)  # wrong: arg-type, call-arg
    await with_job.aenqueue(job, 3)  # wrong: arg-type, call-arg


def sync_program() -> None:
    render.enqueue(3)  # wrong: arg-type
    render.enqueue()  # wrong: call-arg
    render(3)  # wrong: arg-type
    number: int = render.enqueue("a").result()  # wrong: assignment
    assert number


def over_http(client: Client) -> None:
    client.enqueue()  # wrong: call-arg
    client.enqueue("t", colour=1)  # wrong: call-arg
    client.lease("q", 5)  # wrong: arg-type
    client.ack("x")  # wrong: arg-type
    client.get_status(3)  # wrong: arg-type
