"""Puts the acts on and watches their jobs through the engine, as any operator could."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from ropeway.cli.demo.acts import FIRES, WAIT, Act, Place, Seen, Shown
from ropeway.core.errors import RopewayError
from ropeway.core.events import Event, attempt_history
from ropeway.core.job import Job
from ropeway.core.states import TERMINAL_STATES, EventName

#: Events that are remembered for the screen.
REMEMBERED = 50


class Stage:
    """`begin` each act, then `look` again and again."""

    def __init__(self, place: Place, acts: Sequence[Act]) -> None:
        self.place = place
        self.acts = acts
        self.shown: dict[str, Shown] = {}
        #: The newest events of the demo's own jobs, and the act that each belongs to.
        self.recent: deque[tuple[Event, str]] = deque(maxlen=REMEMBERED)
        self.now: datetime
        self._position: str
        self._titles: dict[UUID, str] = {}

    async def open(self) -> None:
        self._position = await self.place.engine.tail_position()
        self.now = await self.place.engine.now()

    async def begin(self, act: Act) -> None:
        """Perform an act, maybe again: its new jobs take the place of the old ones."""
        shown = self.shown[act.title] = Shown(act)
        for handle in await act.start(self.place):
            shown.ids.append(handle.id)
            self._titles[handle.id] = act.title

    async def look(self) -> list[tuple[Event, str]]:
        """See where every job is now; what has happened since the last look."""
        engine = self.place.engine
        self.now = await engine.now()
        news = await self._news()
        for shown in self.shown.values():
            if not shown.over:
                await self._look_at(shown)
            elif shown.act.fired is not None:
                (shown.job,) = await engine.get(shown.ids[:1])
        return news

    @property
    def waiting_for(self) -> list[str]:
        """The acts whose jobs have not got where they should."""
        return [title for title, shown in self.shown.items() if not shown.over]

    @property
    def wrong(self) -> dict[str, str]:
        """What was not as promised, by act."""
        return {title: shown.wrong for title, shown in self.shown.items() if shown.wrong is not None}

    async def _news(self) -> list[tuple[Event, str]]:
        news: list[tuple[Event, str]] = []
        while True:
            page = await self.place.engine.tail(self._position)
            self._position = page.position
            ours = (event for event in page.events if event.queue in self.place.queues)
            news.extend((event, self._title_of(event)) for event in ours)
            if not page.events:
                self.recent.extend(news)
                return news

    def _title_of(self, event: Event) -> str:
        title = self._titles.get(event.job_id) or self._fired(event)
        if event.state in TERMINAL_STATES:
            self._titles.pop(event.job_id, None)
        return title

    def _fired(self, event: Event) -> str:
        """A job that we did not enqueue was made by a schedule; the newest one is shown."""
        title = next((act.title for act in self.acts if act.fired == event.type), event.type)
        self._titles[event.job_id] = title
        if (shown := self.shown.get(title)) is not None and event.event is EventName.ENQUEUED:
            shown.fires += 1
            shown.ids = [event.job_id, *shown.ids[: FIRES - 1]]
        return title

    async def _look_at(self, shown: Shown) -> None:
        if not shown.ids:
            return
        engine, act = self.place.engine, shown.act
        jobs = await engine.get(shown.ids)
        job = shown.job = jobs[0]
        if job is None:
            shown.over, shown.wrong = True, "it is gone"
        elif job.state not in TERMINAL_STATES:
            _note_progress(shown, job)
            await act.during(self.place, job)
        elif job.state is not act.ends:
            shown.over, shown.wrong = True, f"it is {job.state.value}, not {act.ends.value}"
        elif all(other is not None and other.state in TERMINAL_STATES for other in jobs):
            history = attempt_history(await engine.events_of(job.id))
            others = [other for other in jobs[1:] if other is not None]
            flaw = act.flaw(Seen(job, history, others, moved=len(shown.steps) > 1))
            if flaw != WAIT:
                shown.over, shown.wrong = True, flaw

    async def end(self) -> None:
        """Cancel what is left, in a store that others may use too."""
        left = [shown.ids for shown in self.shown.values() if not shown.over]
        for answer in await self.place.engine.cancel([id for ids in left for id in ids]):
            if isinstance(answer, RopewayError) and answer.code not in ("terminal", "not_found"):
                raise answer


def _note_progress(shown: Shown, job: Job) -> None:
    if job.progress is not None and job.progress.done is not None and job.progress.done not in shown.steps:
        shown.steps.append(job.progress.done)
