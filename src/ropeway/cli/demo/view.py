"""The demo's screen: a table that moves on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

import msgspec

from ropeway.cli import output, show
from ropeway.cli.output import Column
from ropeway.core.states import State

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

    from ropeway.cli.demo.acts import Shown
    from ropeway.cli.demo.stage import Stage
    from ropeway.core.events import Event
    from ropeway.core.job import Job, Progress

_BAR = 20
_TITLE = 29


class View(Protocol):
    """Entered when the demo begins; `update` is called after each look with what is new."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def update(self, news: Iterable[tuple[Event, str]]) -> None: ...


def view_of(stage: Stage, headline: str) -> View:
    console = output.console()
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveView(stage, headline, console)
    return PlainView(stage, headline)


class PlainView:
    """One line per event, and the table at the end: for pipes, files and logs."""

    def __init__(self, stage: Stage, headline: str) -> None:
        self._stage = stage
        self._headline = headline
        self._began = stage.now

    def __enter__(self) -> Self:
        output.say(self._headline)
        output.say("")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            output.say("")
            rows = [[*_words(shown), _note(shown, self._stage.now)] for shown in self._stage.shown.values()]
            output.show_table(
                (Column("JOB"), Column("STATUS"), Column("RUNS", right=True), Column("", flex=True)), rows
            )

    def update(self, news: Iterable[tuple[Event, str]]) -> None:
        for event, title in news:
            since = (event.at - self._began).total_seconds()
            name = event.event.value.removeprefix("job.")
            output.say(
                output.plain(f"{since:6.2f} s  {name:<10} {title:<{_TITLE}}  {show.event_note(event)}".rstrip())
            )


class LiveView:
    """A table of the acts with the newest events beneath, drawn anew after each look."""

    def __init__(self, stage: Stage, headline: str, console: Console) -> None:
        from rich.live import Live

        self._stage = stage
        self._headline = headline
        self._console = console
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def update(self, news: Iterable[tuple[Event, str]]) -> None:
        from rich.console import Group
        from rich.text import Text

        table = self._table()
        # The table's head and the blank lines; the rest of the screen is for events.
        room = self._console.height - len(self._stage.shown) - 5
        parts: list[RenderableType] = [Text(self._headline, "bold"), "", table]
        if room > 0:
            parts += ["", *(self._event(event, title) for event, title in list(self._stage.recent)[-room:])]
        self._live.update(Group(*parts), refresh=True)

    def _table(self) -> Table:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("JOB", no_wrap=True)
        table.add_column("STATUS", no_wrap=True, min_width=9)
        table.add_column("RUNS", justify="right", no_wrap=True, min_width=4)
        table.add_column("", no_wrap=True, overflow="ellipsis", ratio=1)
        for shown in self._stage.shown.values():
            table.add_row(*_words(shown), self._last_cell(shown))
        return table

    def _last_cell(self, shown: Shown) -> RenderableType:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        job = shown.job
        progress = None if job is None else job.progress
        if job is None or job.state is not State.RUNNING or progress is None or not progress.total:
            return output.cell(_note(shown, self._stage.now))
        cell = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=progress.total, completed=progress.done or 0, width=_BAR)
        cell.add_row(bar, output.cell(_counted(progress)))
        return cell

    def _event(self, event: Event, title: str) -> RenderableType:
        from rich.text import Text

        line = Text(no_wrap=True, overflow="ellipsis")
        line.append(f"{event.at:%H:%M:%S} ", "dim")
        line.append(f"{event.event.value.removeprefix('job.'):<10}", output.colour_of(event.state))
        line.append(f" {title:<{_TITLE}}  ", "dim")
        line.append_text(output.cell(show.event_note(event)))
        return line


def _words(shown: Shown) -> list[str | Text]:
    """The act, where its job is, and how often that was run."""
    from rich.text import Text

    title = Text(shown.act.title, "bold red" if shown.wrong else "")
    if shown.job is None:
        return [title, output.coloured("scheduled" if shown.act.fired else "-", "magenta"), "0"]
    return [title, output.status_text(shown.job.state), str(shown.job.attempt)]


def _note(shown: Shown, now: datetime) -> str:
    if shown.wrong is not None:
        return f"NOT AS PROMISED: {shown.wrong}"
    if shown.act.fired is not None:
        return f"its schedule has made {output.one_of(shown.fires, 'job')}"
    return "" if shown.job is None else _about(shown.job, now)


def _counted(progress: Progress) -> str:
    told = f"{output.number(progress.done or 0)} of {output.number(progress.total or 0)}"
    return f"{told} {progress.message}" if progress.message else told


def _about(job: Job, now: datetime) -> str:
    """What there is to say about a job in its state."""
    error = "" if job.last_error is None else f"{job.last_error.type}: {job.last_error.message}"
    ahead = max(0.0, (job.run_at - now).total_seconds())
    if job.state is State.SCHEDULED:
        return f"starts in {ahead:.1f} s"
    if job.state is State.RETRYING:
        return f"again in {ahead:.1f} s after {error}"
    if job.state is State.RUNNING:
        return "" if job.progress is None else show.progress_text(job.progress)
    if job.state is State.DEAD:
        return f"{job.dead_reason}: {error}"
    if job.state is State.CANCELLED:
        return str(job.cancel_reason)
    if job.state is State.SUCCEEDED and job.result is not None:
        return msgspec.json.format(job.result, indent=0).decode()
    return ""
