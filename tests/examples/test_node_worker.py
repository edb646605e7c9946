"""examples/node/worker.mjs does what a worker has to do."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.examples.kit import ROOT, WorkerTests

#: The shell worker shows the same things sooner.
pytestmark = pytest.mark.slow

WORKER = ROOT / "examples" / "node" / "worker.mjs"

HANDLERS = f"""
import {{ existsSync, writeFileSync }} from 'node:fs';
import {{ setTimeout as sleep }} from 'node:timers/promises';
import {{ Reject }} from {str(WORKER)!r};

export default {{
  async greet(payload) {{
    if (!payload.name) throw new Reject('nobody to greet');
    return {{ hello: payload.name }};
  }},
  async fail() {{
    throw new Error('as asked');
  }},
  async hold(payload, ctx) {{
    writeFileSync(`${{payload.file}}.held`, '');
    while (!existsSync(payload.file)) await sleep(20, undefined, {{ signal: ctx.signal }});
    return true;
  }},
}};
"""


@pytest.mark.limit(180)
class TestNodeWorker(WorkerTests):
    @pytest.fixture
    def command(self, tmp_path: Path, node: str) -> Sequence[str]:
        handlers = tmp_path / "handlers.mjs"
        handlers.write_text(HANDLERS)
        return [node, str(WORKER), str(handlers)]


def test_the_handlers_that_come_with_it_can_be_imported(node: str) -> None:
    handlers = WORKER.with_name("handlers.mjs")
    script = f"import handlers from {str(handlers)!r}; console.log(Object.keys(handlers).join())"
    done = subprocess.run(
        [node, "--input-type=module", "-e", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "email.send,sleep,fail\n"
