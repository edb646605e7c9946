"""The conformance suite: every promise of the engine protocol, as tests that any engine's author can run.

In a test module of the engine:

    from ropeway.testing.conformance import *

    @pytest.fixture
    def harness():
        return MyHarness()      # see ropeway.testing.conformance.subject

The tests are coroutines; `tests/conftest.py` of Ropeway shows the few lines that run them.
"""

from ropeway.testing.conformance.attending import TestAttendance
from ropeway.testing.conformance.auditing import TestActions
from ropeway.testing.conformance.capabilities import (
    TestDeclarations,
    TestHandlersTransaction,
    TestShared,
    TestTransactionalCompletion,
    TestTransactionalEnqueue,
)
from ropeway.testing.conformance.events import TestHistory, TestLog, TestTail
from ropeway.testing.conformance.grants import TestEndOfAnOwner, TestHeartbeats, TestOwners, TestRescue
from ropeway.testing.conformance.inspecting import TestCounts, TestFind, TestGet, TestPages, TestProgress
from ropeway.testing.conformance.leasing import TestCounters, TestDueTimes, TestLeaseCalls
from ropeway.testing.conformance.limiting import TestBuckets, TestKeptOut
from ropeway.testing.conformance.lines import TestLines
from ropeway.testing.conformance.operating import (
    TestCancel,
    TestDelete,
    TestForeignIds,
    TestPause,
    TestRedrive,
    TestReschedule,
)
from ropeway.testing.conformance.order import (
    TestAgeing,
    TestPlace,
    TestPlaceInLine,
    TestPriority,
    TestSeveralQueues,
)
from ropeway.testing.conformance.queues import TestQueueSettings, TestRates
from ropeway.testing.conformance.races import (
    TestAccessRaces,
    TestClaimRaces,
    TestKeyRaces,
    TestLineRaces,
    TestOperatorRaces,
    TestSettlingRaces,
    TestUpkeepRaces,
)
from ropeway.testing.conformance.remembering import TestDepths, TestObserving, TestRemembering
from ropeway.testing.conformance.retention import TestExpire, TestPrune, TestPrunedEvents, TestPrunedKeys
from ropeway.testing.conformance.schedules import (
    TestChangesOfTheClock,
    TestFiring,
    TestKeptSchedules,
    TestMissedInstants,
    TestUnreadableSchedules,
)
from ropeway.testing.conformance.settling import (
    TestFailure,
    TestFence,
    TestOneLife,
    TestSnoozeAndRelease,
    TestSuccess,
)
from ropeway.testing.conformance.signals import TestSignals
from ropeway.testing.conformance.submitting import (
    TestBatches,
    TestIdempotencyKeys,
    TestTimes,
    TestUniqueJobs,
    TestWhatIsKept,
)
from ropeway.testing.conformance.table import TestTable
from ropeway.testing.conformance.tenancy import TestKeys, TestRotation, TestSecret, TestTenants, TestWithoutTenancy

__all__ = [
    "TestAccessRaces",
    "TestActions",
    "TestAgeing",
    "TestAttendance",
    "TestBatches",
    "TestBuckets",
    "TestCancel",
    "TestChangesOfTheClock",
    "TestClaimRaces",
    "TestCounters",
    "TestCounts",
    "TestDeclarations",
    "TestDelete",
    "TestDepths",
    "TestDueTimes",
    "TestEndOfAnOwner",
    "TestExpire",
    "TestFailure",
    "TestFence",
    "TestFind",
    "TestFiring",
    "TestForeignIds",
    "TestGet",
    "TestHandlersTransaction",
    "TestHeartbeats",
    "TestHistory",
    "TestIdempotencyKeys",
    "TestKeptOut",
    "TestKeptSchedules",
    "TestKeyRaces",
    "TestKeys",
    "TestLeaseCalls",
    "TestLineRaces",
    "TestLines",
    "TestLog",
    "TestMissedInstants",
    "TestObserving",
    "TestOneLife",
    "TestOperatorRaces",
    "TestOwners",
    "TestPages",
    "TestPause",
    "TestPlace",
    "TestPlaceInLine",
    "TestPriority",
    "TestProgress",
    "TestPrune",
    "TestPrunedEvents",
    "TestPrunedKeys",
    "TestQueueSettings",
    "TestRates",
    "TestRedrive",
    "TestRemembering",
    "TestReschedule",
    "TestRescue",
    "TestRotation",
    "TestSecret",
    "TestSettlingRaces",
    "TestSeveralQueues",
    "TestShared",
    "TestSignals",
    "TestSnoozeAndRelease",
    "TestSuccess",
    "TestTable",
    "TestTail",
    "TestTenants",
    "TestTimes",
    "TestTransactionalCompletion",
    "TestTransactionalEnqueue",
    "TestUniqueJobs",
    "TestUnreadableSchedules",
    "TestUpkeepRaces",
    "TestWhatIsKept",
    "TestWithoutTenancy",
]
