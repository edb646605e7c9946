"""The model test (E36): random programs whose every visible result must be the one that the oracle works out.

    from ropeway.testing.model import model_test

    TestModel = model_test(MyHarness())     # see ropeway.testing.conformance.subject

A failure tells the shortest program that was found, one call per line. It needs Hypothesis.
"""

from ropeway.testing.model.machine import model_test, run_model
from ropeway.testing.model.program import Broken

__all__ = ["Broken", "model_test", "run_model"]
