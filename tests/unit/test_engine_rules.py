"""The settings reach the engine."""

from __future__ import annotations

import pytest

from ropeway.engines.open import engine_rules
from ropeway.engines.protocol import EngineRules
from ropeway.settings import Settings, default_of

#: Where an engine's rule and its setting have other names.
NAMES = {"idempotency_window": "idempotency_ttl"}
#: Made of several settings, or of none.
APART = {"decisions", "ageing_lookup_seconds"}

RULES = [rule for rule in EngineRules.__struct_fields__ if rule not in APART]


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_its_setting(rule: str) -> None:
    name = NAMES.get(rule, rule)
    usual = default_of(name)
    assert isinstance(usual, int | float)
    other = type(usual)(2 * usual)
    assert getattr(engine_rules(Settings(**{name: other})), rule) == other


def test_an_engine_without_settings_has_the_same_defaults() -> None:
    assert engine_rules(Settings()) == EngineRules()
