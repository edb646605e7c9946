"""Requests made from the OpenAPI document, good and bad, with each scope and with no key (E38).

No 5xx, no answer that the document does not have, no reply that breaks its schema, no invalid request accepted,
and nothing at all without a key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events, from_schema

from ropeway.core.access import Scope
from tests.api.corpus import ALL_SCOPES
from tests.api.served import Served, server, sqlite_url
from tests.api.test_tenants_matrix import PUBLIC

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

#: What is asked of every answer. `positive_data_acceptance` is not among them: a valid request may be refused for
#: the state of things (409) or for what it names (404).
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "missing_required_header",
    "unsupported_method",
    "allow_header_conformance",
    "ignored_auth",
)
NOT_ASKED = ("positive_data_acceptance", "use_after_free", "ensure_resource_availability")
REFUSED = ["400", "401", "403", "404", "405", "409", "413", "415", "422", "429", "431"]


class Fuzzed(NamedTuple):
    """What came of it: how many requests, their statuses, what was wrong."""

    statuses: Counter[tuple[str, int]]
    failures: list[str]

    @property
    def requests(self) -> int:
        return sum(self.statuses.values())


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    with server(sqlite_url(folder), folder, "--no-upkeep", env={"ROPEWAY_COMPAT": "1"}) as running:
        yield running


def fuzz(served: Served, token: str | None, *, examples: int, phases: tuple[str, ...], seed: int = 7) -> Fuzzed:
    base = f"http://127.0.0.1:{served.port}"
    config: dict[str, Any] = {
        "base-url": base,
        "workers": 1,
        "output": {"sanitization": {"enabled": False}},
        "seed": seed,
        "request-timeout": 45,
        "max-stream-events": 3,
        "continue-on-failure": True,
        "headers": {} if token is None else {"Authorization": f"Bearer {token}"},
        "generation": {"max-examples": examples, "deterministic": True, "no-shrink": True},
        "phases": {
            name: {"enabled": name in phases} for name in ("examples", "coverage", "fuzzing", "stateful")
        },
        "checks": {
            **{name: {"enabled": True} for name in CHECKS},
            **{name: {"enabled": False} for name in NOT_ASKED},
            "negative_data_rejection": {"expected-statuses": REFUSED},
        },
        # Batches of workers are total: what is wrong with one item is that item's answer.
        "operations": [
            {"include-path-regex": "^/v1/leases/", "checks": {"negative_data_rejection": {"enabled": False}}}
        ],
    }  # fmt: skip
    schema = schemathesis.openapi.from_url(f"{base}/openapi.json", config=SchemathesisConfig.from_dict(config))
    # Streams of jobs only end when the job does.
    schema = schema.exclude(path_regex="/stream$")
    statuses: Counter[tuple[str, int]] = Counter()
    failures: dict[str, str] = {}
    for event in from_schema(schema).execute():
        if isinstance(event, events.NonFatalError | events.FatalError):
            failures.setdefault(str(event), str(event))
        if not isinstance(event, events.ScenarioFinished):
            continue
        for id, interaction in event.recorder.interactions.items():
            if interaction.response is not None:
                operation = event.recorder.cases[id].value.operation.label
                statuses[operation, interaction.response.status_code] += 1
        _collect(event.recorder, failures)
    return Fuzzed(statuses, list(failures.values()))


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Nobody waits for a job, and where there is a choice between a stream and a page it is the page."""
    path, body = case.operation.path, case.body
    if path == "/v1/events":
        case.headers["Accept"] = "application/json"
    if isinstance(body, dict) and (path == "/v1/wait" or "wait" in body):
        wait = body.get("wait", 30)
        if isinstance(wait, int | float) and wait > 0.01:
            case.body = {**body, "wait": 0.01}


def _collect(recorder: Any, failures: dict[str, str]) -> None:
    """One of each kind, with the request that shows it."""
    for id, checks in recorder.checks.items():
        for check in checks:
            if check.failure_info is None:
                continue
            case = recorder.cases[id].value
            failure = check.failure_info.failure
            if "in header" in failure.message and _is_fine(recorder.interactions[id].request.headers):
                continue
            response = recorder.interactions[id].response
            told = "" if response is None else f"{response.status_code} {response.content[:400]!r}"
            key = f"{case.operation.label} {check.name} {failure.title}"
            failures.setdefault(
                key, f"{key}\n  {failure.message[:600]}\n  {case.as_curl_command()[:900]}\n  answered {told}"
            )


def _is_fine(headers: Mapping[str, list[str]]) -> bool:
    """Whether the key that went over the wire is a good one after all: clients take white space off its ends."""
    keys = [value for name, values in headers.items() if name.lower() == "idempotency-key" for value in values]
    return bool(keys) and all(key.isprintable() and 1 <= len(key.encode()) <= 512 for key in keys)


def report(fuzzed: Fuzzed) -> str:
    return f"{fuzzed.requests} requests\n\n" + "\n\n".join(fuzzed.failures)


def accepted_without_a_key(statuses: Mapping[tuple[str, int], int]) -> list[tuple[str, int]]:
    public = {f"{method} {path}" for method, path in PUBLIC}
    return [(operation, status) for operation, status in statuses if status < 400 and operation not in public]


@pytest.mark.slow
def test_requests_made_from_the_document_find_nothing(served: Served) -> None:
    token = served.key(*ALL_SCOPES, tenant="fuzz-all")
    fuzzed = fuzz(served, token, examples=3, phases=("examples", "fuzzing"))
    assert not fuzzed.failures, report(fuzzed)
    assert fuzzed.requests > 50


def test_without_a_key_nothing_is_accepted(served: Served) -> None:
    fuzzed = fuzz(served, None, examples=1, phases=("fuzzing",))
    assert not fuzzed.failures, report(fuzzed)
    assert not accepted_without_a_key(fuzzed.statuses)


# To make a request up takes twelve milliseconds, more than all else together. These 345 for each operation take
# about four minutes of two idle cores; keys of one scope are refused most of what they ask for and ask for less.


@pytest.mark.slow
@pytest.mark.limit(1_800)
@pytest.mark.parametrize("seed", [7, 8, 9, 10])
def test_many_requests_made_from_the_document_find_nothing(served: Served, seed: int) -> None:
    token = served.key(*ALL_SCOPES, tenant=f"fuzz-many-{seed}")
    phases = ("examples", "coverage", "fuzzing", "stateful") if seed == 7 else ("fuzzing",)
    fuzzed = fuzz(served, token, examples=60, phases=phases, seed=seed)
    assert not fuzzed.failures, report(fuzzed)
    accepted = {operation for operation, status in fuzzed.statuses if status < 400}
    assert len(accepted) > 30, "the document's links lead nowhere"


@pytest.mark.slow
@pytest.mark.limit(1_800)
@pytest.mark.parametrize("scope", Scope)
def test_nor_do_many_with_each_scope(served: Served, scope: Scope) -> None:
    token = served.key(scope, tenant=f"fuzz-{scope.name.lower().replace('_', '-')}")
    fuzzed = fuzz(served, token, examples=15, phases=("fuzzing",), seed=11)
    assert not fuzzed.failures, report(fuzzed)


@pytest.mark.slow
@pytest.mark.limit(1_800)
def test_many_without_a_key_are_all_refused(served: Served) -> None:
    fuzzed = fuzz(served, None, examples=15, phases=("coverage", "fuzzing"), seed=12)
    assert not fuzzed.failures, report(fuzzed)
    assert not accepted_without_a_key(fuzzed.statuses)
