# pyright: basic
"""Streams and events of the pretended device: which stream operations go to is kept, nothing waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuwise.workload.capture.device.state import DeviceState


def make_streams(acc: DeviceState) -> dict[str, Any]:
    """``Stream``, ``Event`` and the functions of ``torch.cuda`` that use them."""
    counter = [0]

    class Stream:
        """A queue of the pretended device; ``stream_id`` 0 is the default one."""

        def __init__(self, device: Any = None, priority: int = 0, stream_id: int | None = None, **_: Any) -> None:
            if stream_id is None:
                counter[0] += 1
                stream_id = counter[0]
            self.stream_id, self.priority, self.device_type = stream_id, priority, 1
            self.device = acc.device_of("cuda" if device is None else device)
            self.device_index = self.device.index
            self._before: list[Any] = []

        @property
        def cuda_stream(self) -> int:
            return self.stream_id

        native_handle = cuda_stream

        def __enter__(self) -> Any:
            self._before.append(current[0])
            set_stream(self)
            return self

        def __exit__(self, *_: object) -> None:
            set_stream(self._before.pop())

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Stream) and other.stream_id == self.stream_id

        def __hash__(self) -> int:
            return self.stream_id

        def is_capturing(self) -> bool:
            return False

        def wait_stream(self, stream: Any) -> None: ...

        def wait_event(self, event: Any) -> None: ...

        def record_event(self, event: Any = None) -> Any:
            return event if event is not None else Event()

        def query(self) -> bool:
            return True

        def synchronize(self) -> None:
            acc.sync("a stream is waited for (Stream.synchronize)")

    class Event:
        """A mark in a stream; always reached."""

        def __init__(self, *_: Any, **__: Any) -> None:
            self.cuda_event = self.event_id = 0
            self.device = acc.device_of("cuda")

        def record(self, stream: Any = None) -> None: ...

        def wait(self, stream: Any = None) -> None: ...

        def query(self) -> bool:
            return True

        def elapsed_time(self, end: Any) -> float:
            return 1.0

        def synchronize(self) -> None:
            acc.sync("an event is waited for (Event.synchronize)")

    default = Stream(stream_id=0)
    current: list[Any] = [default]

    def set_stream(stream: Any) -> None:
        if stream is not None:
            current[0] = stream
            acc.current_stream = getattr(stream, "stream_id", 0)

    class StreamContext:
        def __init__(self, stream: Any) -> None:
            self.stream = stream

        def __enter__(self) -> Any:
            self._before = current[0]
            set_stream(self.stream)
            return self.stream

        def __exit__(self, *_: object) -> None:
            set_stream(self._before)

    class CUDAGraph:
        """Capturing into a graph runs the operations as they are; each replay is the same operations again, issued at once."""

        def __init__(self, *_: Any, **__: Any) -> None:
            self._begin = self._end = 0

        def capture_begin(self, *_: Any, **__: Any) -> None:
            self._begin = self._end = acc.observer.position()

        def capture_end(self) -> None:
            self._end = acc.observer.position()

        def replay(self) -> None:
            acc.observer.replayed(self._begin, self._end)

        def reset(self) -> None:
            self._begin = self._end = 0

        def pool(self) -> tuple[int, int]:
            return (0, 0)

    class graph:
        def __init__(self, cuda_graph: Any, *_: Any, **__: Any) -> None:
            self._graph = cuda_graph

        def __enter__(self) -> None:
            self._graph.capture_begin()

        def __exit__(self, *_: object) -> None:
            self._graph.capture_end()

    def make_graphed_callables(callables: Any, *_: Any, **__: Any) -> Any:
        acc.finding(
            "cuda-graph", "make_graphed_callables: its operations are timed as if issued one by one", "the host needs less time"
        )
        return callables

    return {
        "Stream": Stream,
        "Event": Event,
        "ExternalStream": Stream,
        "StreamContext": StreamContext,
        "stream": StreamContext,
        "set_stream": set_stream,
        "current_stream": lambda device=None: current[0],
        "default_stream": lambda device=None: default,
        "CUDAGraph": CUDAGraph,
        "graph": graph,
        "make_graphed_callables": make_graphed_callables,
        "graph_pool_handle": lambda: (0, 0),
    }
