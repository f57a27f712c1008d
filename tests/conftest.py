"""Makes ``support`` importable from every test module, and lets no skip pass CI unseen."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

# A wall-clock limit per example fails on a busy machine, and says nothing about the code.
settings.register_profile("project", deadline=None)
settings.load_profile("project")

# Reasons for which a test may be skipped in CI: data that not every machine may have.
ALLOWED_IN_CI = ("VRH_REALDATA is unset",)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """With CI set, a skip for any other reason fails the run."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") and reporter is not None:
        surprises = [
            f"{report.nodeid}: {report.longrepr}"
            for report in reporter.stats.get("skipped", [])
            if not any(reason in str(report.longrepr) for reason in ALLOWED_IN_CI)
        ]
        if surprises:
            reporter.write_line("\nSkipped, which CI does not allow:", red=True)
            for line in surprises:
                reporter.write_line(f"  {line}", red=True)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
    return (yield)
