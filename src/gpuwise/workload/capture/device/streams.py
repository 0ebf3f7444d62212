# pyright: basic
"""Streams and events of the simulated device: the stream of each operation is recorded, nothing waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuwise.workload.capture.device.state import DeviceState


class _Current:
    """The stream that operations go to, and how many were made."""

    def __init__(self, acc: DeviceState) -> None:
        self._acc, self.made = acc, 0
        self.stream: Any = None

    def set(self, stream: Any) -> None:
        if stream is not None:
            self.stream = stream
            self._acc.current_stream = getattr(stream, "stream_id", 0)


def make_streams(acc: DeviceState) -> dict[str, Any]:
    """``Stream``, ``Event``, CUDA graphs and the functions of ``torch.cuda`` that use them."""
    current, event = _Current(acc), _event_class(acc)
    stream, context = _stream_class(acc, current, event), _context_class(current)
    current.stream = default = stream(stream_id=0)
    return {
        "Stream": stream,
        "Event": event,
        "ExternalStream": stream,
        "StreamContext": context,
        "stream": context,
        "set_stream": current.set,
        "current_stream": lambda device=None: current.stream,
        "default_stream": lambda device=None: default,
        **_graphs(acc),
    }


def _stream_class(acc: DeviceState, current: _Current, event_class: Any) -> Any:
    class Stream:
        """A queue of the pretended device; ``stream_id`` 0 is the default one."""

        def __init__(self, device: Any = None, priority: int = 0, stream_id: int | None = None, **_: Any) -> None:
            if stream_id is None:
                current.made += 1
                stream_id = current.made
            self.stream_id, self.priority, self.device_type = stream_id, priority, 1
            self.device = acc.device_of("cuda" if device is None else device)
            self.device_index = self.device.index
            self._before: list[Any] = []

        @property
        def cuda_stream(self) -> int:
            return self.stream_id

        native_handle = cuda_stream

        def __enter__(self) -> Any:
            self._before.append(current.stream)
            current.set(self)
            return self

        def __exit__(self, *_: object) -> None:
            current.set(self._before.pop())

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Stream) and other.stream_id == self.stream_id

        def __hash__(self) -> int:
            return self.stream_id

        def is_capturing(self) -> bool:
            return False

        def wait_stream(self, stream: Any) -> None: ...

        def wait_event(self, event: Any) -> None: ...

        def record_event(self, event: Any = None) -> Any:
            return event if event is not None else event_class()

        def query(self) -> bool:
            return True

        def synchronize(self) -> None:
            acc.sync("a stream is waited for (Stream.synchronize)")

    return Stream


def _event_class(acc: DeviceState) -> Any:
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

    return Event


def _context_class(current: _Current) -> Any:
    class StreamContext:
        def __init__(self, stream: Any) -> None:
            self.stream = stream

        def __enter__(self) -> Any:
            self._before = current.stream
            current.set(self.stream)
            return self.stream

        def __exit__(self, *_: object) -> None:
            current.set(self._before)

    return StreamContext


def _graphs(acc: DeviceState) -> dict[str, Any]:
    """CUDA graphs: capture, replay, and graphed callables."""

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
        "CUDAGraph": CUDAGraph,
        "graph": graph,
        "make_graphed_callables": make_graphed_callables,
        "graph_pool_handle": lambda: (0, 0),
    }
