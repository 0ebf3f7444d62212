"""``python -m gpuwise.train.ranks.child SETTINGS``: one rank, started by torchrun."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gpuwise.errors import GpuwiseError, InputError
from gpuwise.text import message_line
from gpuwise.train.hook.journal import Writer
from gpuwise.train.ranks.launch import LOST, REFUSED, WATCHED, DividesItselfError
from gpuwise.train.ranks.settings import RankSettings, read_settings
from gpuwise.workload.capture.errors import last_user_place

if TYPE_CHECKING:
    from gpuwise.train.ranks.beat import Beat


def main(arguments: list[str]) -> int:
    """Train as the settings say. Returns the exit code."""
    import torch.distributed as dist

    settings = read_settings(Path(arguments[0]))
    rank = int(os.environ.get("RANK", "0"))
    if settings.own:
        # group and device are the script's, by torchrun's variables
        code = train(settings, rank, "own")
        # what watches the script may hold its group, whose threads torch ends with abort() once Python is gone
        for thread in threading.enumerate():
            if not thread.daemon and thread is not threading.current_thread():
                thread.join()
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
        _leave(code)
    if settings.whole:
        from gpuwise.train.ranks.script.run import own_device_only

        own_device_only()
    device_type = open_device()
    dist.init_process_group("cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo")
    code = train(settings, rank, device_type)
    if code and not settings.whole:
        # closing the group would wait for exchanges with a rank that may have exited, and torchrun for this one before a restart
        _leave(code)
    dist.destroy_process_group()
    return code


def _leave(code: int) -> NoReturn:
    """End this process at once: nothing is closed but what was printed."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def open_device() -> str:
    """Make this rank's GPU the current one; the processor without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    return "cuda"


def train(settings: RankSettings, rank: int, device_type: str) -> int:
    """Train on a rank whose process group is open."""
    from gpuwise.train.ranks.beat import Beat

    out = Path(settings.out)
    out.mkdir(parents=True, exist_ok=True)  # where torchrun was started by hand
    beat = Beat(out, rank)
    beat.at(0, 0, "start")
    journal = Writer(out / f"rank-{rank}.jsonl")
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    begin: dict[str, Any] = {"rank": rank, "pid": os.getpid(), "attempt": attempt, "device": device_type}
    journal.event("begin", **begin)
    try:
        if settings.whole:
            from gpuwise.train.ranks.script.run import train_script

            return train_script(settings, rank, journal, beat, device_type)
        return _train_task(settings, journal, beat, device_type)
    except GpuwiseError as error:
        refuse(out, error)
        journal.event("end", reason="error", code=2, error=error.message)
        return 2
    except SystemExit as leaving:
        if settings.whole:
            raise
        # the same on the next attempt
        text = f"exit({leaving.code!r}) on rank {rank} {last_user_place(leaving)}"
        refuse(out, GpuwiseError(message_line(text), hint="raise an error instead, with the reason"))
        journal.event("end", reason="error", code=1, error=text[:500])
        return 1
    except Exception as error:  # noqa: BLE001 - of the person's code, of the machine, or of another rank that is gone
        text = f"{type(error).__name__}: {error}"
        journal.event("end", reason="error", code=1, error=text[:500])
        if is_lost(error):
            sys.stderr.write(f"gpuwise: rank {rank} lost another rank: {message_line(text)[:200]}\n")
            return 1
        traceback.print_exc()
        if not isinstance(error, OSError):
            # the same on the next attempt
            refuse(out, GpuwiseError(message_line(f"{text} {last_user_place(error)}"), hint="its traceback is above"))
        return 1
    finally:
        beat.close()
        journal.close()


def _train_task(settings: RankSettings, journal: Writer, beat: Beat, device_type: str) -> int:
    from gpuwise.train.levers.items import seed
    from gpuwise.train.ranks.loop import Requests, Training, check_agreement, facts_of
    from gpuwise.train.ranks.task import load_task

    requests = Requests()
    requests.listen()
    seed(settings.seed)
    task = load_task(settings.target, settings.settings, settings.layout, device_type)
    check_agreement(facts_of(task, settings))
    training = Training(settings, task, journal, device_type=device_type, requests=requests, beat=beat)
    try:
        training.resume()
        ended = training.run()
    finally:
        training.close()
    journal.event("end", reason=ended, step=training.step, code=0)
    return 0


def is_lost(error: Exception) -> bool:
    """Whether an exchange failed because of another rank; a pipeline's stages say so in the cause of their own error."""
    import torch.distributed as dist

    one: BaseException | None = error
    while one is not None:
        if isinstance(one, dist.DistError) or (isinstance(one, RuntimeError) and any(w in str(one) for w in LOST)):
            return True
        one = one.__cause__
    return False


def refuse(out: Path, error: GpuwiseError) -> None:
    """Say what is wrong with the training itself: the first rank to find it does."""
    import json

    told, partial = True, out / f"{REFUSED}.{os.getpid()}"
    try:
        kinds = {"input": isinstance(error, InputError), "itself": isinstance(error, DividesItselfError)}
        document = {"error": error.message, "hint": error.hint, **kinds}
        partial.write_text(json.dumps(document), encoding="utf-8")
        if not (out / REFUSED).exists():
            partial.replace(out / REFUSED)
    except OSError:
        # a full disk: the empty file shows that there was an error
        told = False
        with suppress(OSError):
            (out / REFUSED).touch()
    with suppress(OSError):
        partial.unlink(missing_ok=True)
    if not (told and os.environ.get(WATCHED)):
        sys.stderr.write(f"gpuwise: {error.message}\n" + (f"hint: {error.hint}\n" if error.hint else ""))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
