"""Which scheduler runs an engine: one class a policy, by the names of ``engines.toml``."""

from __future__ import annotations

from gpuwise.serve.simulate.budget import BudgetEngine
from gpuwise.serve.simulate.core import Engine
from gpuwise.serve.simulate.no_evict import NoEvictEngine, StaticEngine
from gpuwise.serve.simulate.prefill_first import PrefillFirstEngine, RadixEngine
from gpuwise.serve.simulate.slots import SlotsEngine

POLICIES: dict[str, type[Engine]] = {
    "budget": BudgetEngine,
    "prefill_first": PrefillFirstEngine,
    "radix": RadixEngine,
    "no_evict": NoEvictEngine,
    "max_utilisation": BudgetEngine,
    "static": StaticEngine,
    "slots": SlotsEngine,
}
