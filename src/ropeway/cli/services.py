"""The use cases of one tenant of an open store, as the commands hold them."""

from __future__ import annotations

from datetime import datetime
from functools import cached_property

from ropeway.engines.protocol import Engine
from ropeway.service.actions import Actions
from ropeway.service.dead import DeadJobs
from ropeway.service.events import Events
from ropeway.service.fleet import Fleet
from ropeway.service.jobs import Jobs
from ropeway.service.keys import Keys
from ropeway.service.names import Names
from ropeway.service.queues import Queues
from ropeway.service.schedules import Schedules
from ropeway.service.tenants import Tenants


class Services:
    def __init__(self, engine: Engine, tenant: str) -> None:
        self.engine = engine
        self.tenant = tenant

    async def now(self) -> datetime:
        """The store's clock: ages are told by it."""
        return await self.engine.now()

    @cached_property
    def jobs(self) -> Jobs:
        return Jobs(self.engine, tenant=self.tenant)

    @cached_property
    def events(self) -> Events:
        return Events(self.engine, tenant=self.tenant)

    @cached_property
    def queues(self) -> Queues:
        return Queues(self.engine, tenant=self.tenant)

    @cached_property
    def dead(self) -> DeadJobs:
        return DeadJobs(self.engine, tenant=self.tenant)

    @cached_property
    def schedules(self) -> Schedules:
        return Schedules(self.engine, tenant=self.tenant)

    @cached_property
    def fleet(self) -> Fleet:
        return Fleet(self.engine, tenant=self.tenant)

    @cached_property
    def tenants(self) -> Tenants:
        return Tenants(self.engine)

    def keys(self, environment: str) -> Keys:
        """`environment` is the label in the text of keys that are made."""
        return Keys(self.engine, tenant=self.tenant, environment=environment)

    @cached_property
    def actions(self) -> Actions:
        return Actions(self.engine, tenant=self.tenant)

    @cached_property
    def names(self) -> Names:
        return Names(self.engine, tenant=self.tenant)
