# SPDX-License-Identifier: Apache-2.0
"""Plan, compare and train with Vitrine from Python.

Arguments are the flags of the program, with underscores. Results are the JSON that it prints (docs/json.md), whose keys
are attributes. Sizes are in bytes and times in seconds, unless a key says otherwise. Errors are exceptions with the
program's sentence.
"""

from collections.abc import Mapping
from typing import Any

from ._engine import Engine, Memory, Step
from ._export import export
from ._program import Device, Error, Process, UsageError, Values, arguments, call, of_command
from ._reproduce import Reproduction, reproduce
from ._results import Collectives, Comparison, Lesson, Plan, Result, Run, Training, Verification
from ._snapshot import Explanation, explain, memory_viz

__all__ = [
    "Collectives", "Comparison", "Device", "Engine", "Error", "Explanation", "Lesson", "Memory", "Plan", "Reproduction",
    "Result", "Run", "Step", "Training", "UsageError", "Values", "Verification", "collectives", "compare", "explain",
    "export", "lesson", "memory_viz", "plan", "reproduce", "train", "verify"]


@of_command("plan")
def plan(**flags: Any) -> Plan:
    """Computes the memory of a run, without running it, also for devices that this machine does not have.

    A plan that does not fit is a value: `fits` is False, and `remedies` says what would fit.

    >>> p = vitrine.plan(model="wide-head", devices="cuda:0-3", device_memory="4GiB", batch_size=32, mode="dp",
    ...                  no_eval=True)
    >>> p.fits, p.peak, p.devices[1].peak_bytes, p.devices[0].by_category["optimizer"]
    (True, 1687106560, 536205056, 166261760)

    throws  UsageError, Error
    """
    return Plan(*call("plan", flags), report=flags.get("report"))


@of_command("compare")
def compare(**flags: Any) -> Comparison:
    """Runs the same steps under each scheme, side by side.

    >>> c = vitrine.compare(model="mlp", data="synthetic:64", devices="cpu:0-1", modes=["dp", "ddp"], steps=2, rounds=1)
    >>> list(c.modes), c.modes.ddp.max_gradient_difference < 1e-5
    (['dp', 'ddp'], True)

    throws  UsageError, Error
    """
    return Comparison(*call("compare", flags), report=flags.get("report"))


@of_command("train")
def train(**flags: Any) -> Run:
    """Starts a training run, and returns it: iterate over it for its steps.

    >>> run = vitrine.train(model="mlp", data="synthetic:256", devices="cpu:0-1", steps=3)
    >>> [step.step for step in run], len(run.result.step_losses)
    ([1, 2, 3], 3)

    KeyboardInterrupt stops it after the current step, with a checkpoint if it has a `checkpoint_dir`.
    throws  UsageError, Error, from the iteration or `result`
    """
    return Run(flags)


@of_command("collectives")
def collectives(*names: str, **flags: Any) -> Collectives:
    """Times collectives, all of them or those named, and checks their results.

    >>> r = vitrine.collectives("all_reduce", devices="cpu:0-1", minbytes="4K", maxbytes="4K", iters=2)
    >>> r.results[0].size, r.wrong
    (4096, 0)

    throws  UsageError, Error
    """
    return Collectives(*call("collectives", {"name": list(names), **flags}))


@of_command("verify")
def verify(a: str | Mapping[str, Any], b: str | Mapping[str, Any], **flags: Any) -> Verification:
    """Finds the first step and tensor in which two runs differ.

    a, b  a run each: arguments of train() as a dict, the same as a text, a command that trains, or a file of hashes

    >>> run = {"model": "mlp", "data": "synthetic:64", "steps": 2, "exact": True}
    >>> vitrine.verify({**run, "devices": "cpu:0"}, {**run, "devices": "cpu:0-1"}).equal
    True

    throws  UsageError, Error
    """
    return Verification(*call("verify", {"a": a, "b": b, **flags}))


@of_command("lesson")
def lesson(number: int | None = None, **flags: Any) -> Lesson:
    """Shows a lesson on data-parallel training, and runs its command; without a number, the list of lessons.

    >>> "Why does GPU 0 fill first?" in str(vitrine.lesson(1))
    True

    throws  UsageError, Error
    """
    process = Process(arguments("lesson", {"number": number, **flags}), prints_json=False)
    if process.wait() != 0:
        process.fail()
    return Lesson(process.printed)
