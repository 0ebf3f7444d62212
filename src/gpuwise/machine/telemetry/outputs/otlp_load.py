"""A measured load as OpenTelemetry metrics: the client's, by the conventions for generative AI, and what was predicted.

Names, bounds and attributes: https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/, and of chunks
https://github.com/open-telemetry/semantic-conventions-genai.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from gpuwise.machine.telemetry.outputs.otlp_points import Metric, Points
from gpuwise.serve.measure.comparison import Figure
from gpuwise.serve.measure.measured import LoadResult
from gpuwise.serve.measure.run import NOT_SENT

SECONDS = tuple(0.01 * 2**i for i in range(14))
TOKENS = tuple(4.0**i for i in range(14))
"""The bounds that the conventions ask for."""
REQUESTS = Metric("gpuwise.capacity.requests", "counter", "{request}", "Requests sent; error.type: of those that failed.")
DURATION = Metric("gen_ai.client.operation.duration", "histogram", "s", "From sending a request to its last token.", SECONDS)
FIRST = Metric(
    "gen_ai.client.operation.time_to_first_chunk", "histogram", "s", "From sending a request to its first token.", SECONDS
)
EACH = Metric(
    "gen_ai.client.operation.time_per_output_chunk", "histogram", "s", "Between two events of an answer with text.", SECONDS
)
USAGE = Metric("gen_ai.client.token.usage", "histogram", "{token}", "Tokens of a request, as the server counts them.", TOKENS)
PREDICTED = Metric("gpuwise.capacity.latency.predicted", "gauge", "s", "Predicted latency, from when a request was due.")
MEASURED = Metric("gpuwise.capacity.latency.measured", "gauge", "s", "Measured latency, from when a request was due.")
LIMIT = Metric("gpuwise.capacity.latency.target", "gauge", "s", "Target of a latency.")


def document(load: LoadResult, rows: Sequence[Figure], engine: str, now_s: float) -> dict[str, Any]:
    """The load as ``MetricsData`` of the protocol. ``engine``: the one that the prediction is of; ``now_s``: seconds since
    1970."""
    m = load.measurement
    server = urlsplit(m.url)
    about: dict[str, str | int | None] = {
        "gen_ai.operation.name": "chat" if "chat" in m.path else "text_completion",
        "gen_ai.provider.name": engine,
        "gen_ai.request.model": m.model,
        "server.address": server.hostname,
        "server.port": server.port,
    }
    points, began_s = Points(now_s), now_s - m.seconds
    sent = [(a, a.sent_s) for a in m.answers if a.sent_s is not None and a.failure != NOT_SENT]
    for failure, n in Counter(a.failure for a, _ in sent).items():
        error = {} if failure is None else {"error.type": failure.replace(" ", "_")}
        points.add(REQUESTS, about | error, n, began_s)
    whole = [a.finish_s - at_s for a, at_s in sent if a.failure is None and a.finish_s is not None]
    points.distribute(DURATION, about, whole, began_s)
    points.distribute(FIRST, about, [a.token_s[0] - at_s for a, at_s in sent if a.token_s], began_s)
    points.distribute(EACH, about, load.itl_s.tolist(), began_s)
    for kind in ("input", "output"):
        counts = [a.prompt_tokens if kind == "input" else a.output_tokens for a in load.whole]
        points.distribute(USAGE, about | {"gen_ai.token.type": kind}, [float(n) for n in counts if n is not None], began_s)
    for row in rows:
        named = about | {"gpuwise.latency": row.key}
        for metric, value in ((MEASURED, row.measured_s), (PREDICTED, row.predicted_s), (LIMIT, row.limit_s)):
            points.add(metric, named, value)
    return points.document({})
