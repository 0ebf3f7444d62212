"""What every test shares: the profiles of Hypothesis, and a price store of its own (the developer's contracts are nobody's
test data).

The default run is the same every time: the property tests draw their examples from a fixed seed and remember nothing. The slow
group (``pytest -m slow``) has the property tests too, with the profile ``search``: new examples in every run, and more of
them. ``HYPOTHESIS_PROFILE`` chooses another profile. No clock is in a verdict: deadlines and the health check of slow
generation are timed assertions.
"""

import gc
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from tests.answers.avx512 import without_avx512
from tests.parser_memo import keep_signatures
from tests.shares import in_shares
from tests.skips import pytest_make_collect_report, pytest_runtest_makereport

import gpuwise
from gpuwise.cli import YOUNG_OBJECTS
from gpuwise.workload.capture import heap

__all__ = ["pytest_make_collect_report", "pytest_runtest_makereport"]  # a skip for a broken import fails
HERE = Path(__file__).parent
os.environ.update(without_avx512())  # before NumPy is imported; workers and processes of tests inherit it
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeat", _UNTIMED, max_examples=12, derandomize=True, database=None)
settings.register_profile("search", _UNTIMED, max_examples=300, print_blob=True)


def _searches(config: pytest.Config) -> bool:
    return config.option.markexpr.strip() == "slow"


def _keep_byte_code(config: pytest.Config) -> None:
    """Where Python may leave no byte code beside its sources, it goes into pytest's own cache, and is there for the next run:
    hundreds of tests start a Python, and every worker would compile what it imports and rewrite the tests' assertions again."""
    if not sys.dont_write_bytecode:
        return
    try:
        folder = str(config.cache.mkdir("byte-code"))
    except (AttributeError, OSError):  # without a cache, or where none can be written
        folder = tempfile.mkdtemp(prefix="gpuwise-byte-code-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = folder
    sys.dont_write_bytecode = False


def _compile_a_share(config: pytest.Config) -> None:
    """Where no byte code is there yet, every worker would compile the sources and rewrite the assertions of every test file, all
    in the same order; so each does its share first, and finds the others' done."""
    worker: dict[str, Any] = config.workerinput  # pyright: ignore[reportAttributeAccessIssue]
    if sys.dont_write_bytecode:
        return
    share = slice(int(worker["workerid"].removeprefix("gw")), None, worker["workercount"])
    for file in sorted(Path(gpuwise.__file__).parent.rglob("*.py"))[share]:
        SourceFileLoader(file.stem, str(file)).get_code(file.stem)
    hook: Any = config.pluginmanager.rewrite_hook
    if not hasattr(hook, "exec_module"):  # asserts are plain
        return
    asked = [Path(config.invocation_params.dir, argument.partition("::")[0]) for argument in config.args]
    files = [file for file in sorted(HERE.rglob("test_*.py")) if any(file.is_relative_to(path) for path in asked)]
    for file in files[share]:
        module = ModuleType(file.stem)
        module.__spec__ = spec_from_file_location(file.stem, file, loader=hook)
        vars(module)["__builtins__"] = {}
        with suppress(ImportError):  # without builtins its first import ends it: it is written, and not run
            hook.exec_module(module)


def _draw_no_constants_of_the_sources() -> None:
    """Hypothesis draws now and then from the constants in the modules imported so far. Which those are depends on what a worker
    ran before, so the default run would not be the same every time; and every worker would parse all of the sources for them."""
    none = getattr(providers, "_local_constants", None)
    if none is not None:
        providers._get_local_constants = lambda: none  # pyright: ignore[reportPrivateUsage]


def _one_thread_each() -> None:
    """A worker already for every processor: libraries that start a thread for each as well wait for one another, turning."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")


def pytest_configure(config: pytest.Config) -> None:
    """Load the profile before the tests are imported: a test keeps the one that is loaded where it is decorated."""
    if not hasattr(config, "workerinput"):
        _keep_byte_code(config)
        _one_thread_each()
    else:
        _compile_a_share(config)
        config.pluginmanager.register(_Shares())
    profile = os.environ.get("HYPOTHESIS_PROFILE") or ("search" if _searches(config) else "repeat")
    settings.load_profile(profile)
    if profile == "repeat":
        _draw_no_constants_of_the_sources()
    if getattr(config.option, "dist", "no") == "no":  # here tests run, not in workers
        keep_signatures()


SAMPLED = {
    "cli/test_widths.py": 4,
    "cli/test_streams.py": 3,
    "docs/test_pages.py": 3,
    "cli/test_hostile_names.py": 2,
    "report/test_browser.py": 3,
    "ui/test_browser.py": 4,
    "agreement/test_one_memory.py": 2,
    "agreement/test_one_layout.py": 2,
    "agreement/test_two_front_ends.py": 2,
    "train/levers/test_saving.py": 3,
    "train/ranks/test_equal.py": 2,
    "train/ranks/test_watched.py": 2,
    "workload/capture/record/test_front_ends.py": 2,
}
"""Files whose cases start a process, a browser or a search each, and how many cases of a test stand for one in the default run;
all of them run in the slow group."""


THOROUGH = {
    "agreement/test_one_change.py": 8,
    "agreement/test_one_layout.py": 4,
    "agreement/test_one_loop.py": 2,
    "agreement/test_one_memory.py": 2,
    "agreement/test_one_pick.py": 3,
    "agreement/test_one_probability.py": 2,
    "agreement/test_one_promise.py": 3,
    "agreement/test_one_question.py": 2,
    "agreement/test_one_serving.py": 4,
    "agreement/test_two_front_ends.py": 6,
    "agreement/test_written_attention.py": 3,
    "cli/capacity/test_command.py": 3,
    "cli/pick/test_command.py": 2,
    "cli/plan/test_command.py": 2,
    "cli/prices/test_command.py": 2,
    "cli/test_catalogue_commands.py": 2,
    "cli/test_hostile_names.py": 2,
    "cli/test_streams.py": 2,
    "cli/test_widths.py": 3,
    "docs/test_pages.py": 4,
    "export/test_command.py": 2,
    "fuzz/test_command_line.py": 3,
    "fuzz/test_named_files.py": 4,
    "lab/test_compiler.py": 3,
    "lab/test_exercises.py": 3,
    "lab/test_kernel.py": 3,
    "lab/test_multiprocessor.py": 3,
    "plan/space/test_search.py": 2,
    "plan/test_published_experts.py": 3,
    "studies/test_facts_lint.py": 3,
    "test_interface.py": 6,
    "train/hook/test_run_queue.py": 2,
    "train/levers/test_saving.py": 2,
    "train/profile/test_session.py": 2,
    "train/ranks/test_equal.py": 2,
    "train/ranks/test_many.py": 3,
    "train/ranks/test_scripts.py": 3,
    "train/ranks/test_watched.py": 2,
    "train/tune/batch/test_gate.py": 2,
    "train/tune/test_flop.py": 2,
    "ui/test_notebook.py": 2,
    "ui/test_views.py": 2,
    "workload/capture/test_probes.py": 3,
}
"""Files with sweeps, and how many of a test's cases (those that :data:`SAMPLED` leaves) stand for one in the default run; the
gate runs the others behind it (``pytest -m thorough``)."""


class _Shares:
    """Orders what is left when the markers have been looked at."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        worker: dict[str, Any] | None = getattr(config, "workerinput", None)
        if worker is not None:
            items[:] = in_shares(items, worker["workercount"], HERE)


def pytest_xdist_auto_num_workers() -> int:
    """One worker more than processors: a quarter of the tests' time is spent waiting for other processes."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sample the cases of the files in :data:`SAMPLED` and :data:`THOROUGH`, and put the property tests into the slow group
    where it runs."""
    for item in items:
        if _searches(config) and getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("slow")
    for group, stands_for in (("slow", SAMPLED), ("thorough", THOROUGH)):
        seen: Counter[str] = Counter()
        files = {HERE / name: every for name, every in stands_for.items()}
        for item in items:
            every = files.get(item.path)
            if every is None or any(item.get_closest_marker(mark) for mark in ("slow", "thorough")):
                continue
            name = item.nodeid.partition("[")[0]
            if seen[name] % every:
                item.add_marker(group)
            seen[name] += 1


def pytest_collection_finish() -> None:
    """Leave what the imports made out of every later garbage collection, each capture asks for one; and look for cycles as
    seldom as the ``gpuwise`` command does: with Python's own threshold a search or a plan spends a fifth of its time on it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
    heap.frozen_by_program = True


@pytest.fixture(scope="session")
def _home_of_the_session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gpuwise-home")


@pytest.fixture(scope="session", autouse=True)
def _no_home_of_a_developer(_home_of_the_session: Path) -> Iterator[None]:
    """``$GPUWISE_HOME`` is an empty folder, and the Hub is not asked; a test that writes there takes the fixture ``home``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUWISE_HOME", str(_home_of_the_session))
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


@pytest.fixture(autouse=True)
def _no_check_by_a_fake_driver() -> None:
    """Lightning sets it where it is imported: torch then counts the GPUs of a fake driver library that another test loaded."""
    os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty ``$GPUWISE_HOME`` for one test."""
    monkeypatch.setenv("GPUWISE_HOME", str(tmp_path))
    return tmp_path
