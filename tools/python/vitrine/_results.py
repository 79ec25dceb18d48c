# SPDX-License-Identifier: Apache-2.0
"""What the program's commands return: their JSON, shown as the report shows it."""

from __future__ import annotations

import pathlib
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from . import _display
from ._program import Process, Values, arguments, command_line, parse

if TYPE_CHECKING:
    import pandas


class Result(Values):
    """The JSON of a command, with the command line and a page of the report's charts.

    >>> vitrine.plan(model="lenet5", devices="cpu:0").command
    'vitrine plan --model lenet5 --devices cpu:0'
    """

    kind = ""  # of the page's record
    charts: tuple[tuple[str, str], ...] = ()  # their names in charts.js, and their headings
    columns: tuple[str, ...] = ()

    def __init__(self, data: Mapping[str, Any], command: str, report: str | None = None) -> None:
        super().__init__(data)
        self.command, self.report = command, report  # the page, if it has been written

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.command}: {', '.join(f'{key} {self[key]}' for key in self.columns)}>"

    def _repr_html_(self) -> str:
        if self.report:
            return _display.frame(pathlib.Path(self.report).read_text(encoding="utf-8"))
        return (_display.frame(_display.page(self.command, self.kind, self, self.charts)) if self.charts
                else _display.table(self.rows()))

    def rows(self) -> list[Mapping[str, Any]]:
        """What to_pandas() makes a table of."""
        return [self]

    def to_pandas(self) -> pandas.DataFrame:
        """A table, with names of nested values joined by dots. Needs pandas."""
        import pandas

        return pandas.json_normalize(self.rows())


class Plan(Result):
    """What a run needs, in bytes. `fits` says whether it has it, and `remedies` what would make it fit.

    >>> plan = vitrine.plan(model="lenet5", devices="cuda:0-1", batch_size=64, device_memory="24GiB")
    >>> plan.fits, plan.peak == plan.devices[0].peak_bytes
    (True, True)
    """

    kind, charts, columns = "plan", (("peaks", "Peak memory"),), ("fits", "remedies")

    @property
    def peak(self) -> int:
        """Bytes of the device that needs most."""
        return max(int(device["peak_bytes"]) for device in self["devices"])

    def rows(self) -> list[Mapping[str, Any]]:
        return [{"device": device["device"], "peak_bytes": device["peak_bytes"], **device["peak_bytes_by_category"],
                 "capacity_bytes": device["capacity_bytes"], "fits": device["fits"]} for device in self["devices"]]


class Comparison(Result):
    """Schemes side by side: `modes` by name, and `refused` with those that do not fit. Speeds are samples a second.

    >>> both = vitrine.compare(model="lenet5", devices="cpu:0-1", batch_size=8, modes=["dp", "ddp"], steps=2, rounds=1)
    >>> [row["mode"] for row in both.rows()]
    ['dp', 'ddp']
    """

    kind, columns = "comparison", ("speed",)
    charts = (("speed", "Speed"), ("peaks", "Peak memory"), ("times", "Time of the measured steps"))

    def rows(self) -> list[Mapping[str, Any]]:
        return [{"mode": name, "precision": mode["precision"], "samples_per_second": mode["samples_per_second"],
                 "max_gradient_difference": mode["max_gradient_difference"],
                 "peak_bytes": {device["device"]: device["peak_bytes"] for device in mode["devices"]}}
                for name, mode in self["modes"].items()]


class Training(Result):
    """A run of training, when it has ended: `rows()` are its steps.

    >>> run = vitrine.train(model="lenet5", data="synthetic:16", devices="cpu:0", batch_size=8, steps=2, no_eval=True)
    >>> [row["step"] for row in run.result.rows()]
    [1, 2]
    """

    kind, columns = "run", ("interrupted", "state_hash")
    charts = (("learning", "Learning"), ("peaks", "Peak memory"), ("times", "Time of the measured steps"))

    def rows(self) -> list[Mapping[str, Any]]:
        return [{"step": self["first_step"] + i + 1, "loss": loss} for i, loss in enumerate(self["step_losses"])]


class Collectives(Result):
    """Times of collectives, in microseconds, and their bandwidths, in GB/s.

    >>> vitrine.collectives("all_reduce", devices="cpu:0-1", minbytes="1K", maxbytes="1K").wrong
    0
    """

    columns = ("avg_busbw", "wrong")

    def rows(self) -> list[Mapping[str, Any]]:
        return list(self["results"])

    def _repr_html_(self) -> str:
        return _display.table([{"collective": row["collective"], "size": row["size"], **row["out_of_place"]}
                               for row in self["results"]])


class Verification(Result):
    """Whether two runs are equal after each step, and else the first difference.

    >>> one = {"model": "lenet5", "devices": "cpu:0", "batch_size": 8, "steps": 2, "exact": True, "no_eval": True}
    >>> vitrine.verify(one, one | {"devices": "cpu:0-1"}).equal
    True
    """

    columns = ("equal", "equal_steps", "first_difference")


class Lesson(str):
    """A lesson as text, with what its command printed.

    >>> print(vitrine.lesson().splitlines()[0])
    vitrine lesson 1  Why does GPU 0 fill first?
    """

    __repr__ = str.__str__

    def _repr_html_(self) -> str:
        return _display.preformatted(self)


class Run:
    """A training run in progress: iterate over it for its steps, each with `step` (from 1), `epoch`, `seconds`, `loss`,
    `lr` and `loss_scale`. The program hands them over about once a second, and does not wait for the reader. A run that
    writes a `log` of its own gives `step` and `loss` at its end.

    `result` waits for the end. Leaving the loop early or a `with` statement, or dropping the object, stops the run as
    Ctrl-C does.

    >>> run = vitrine.train(model="lenet5", data="synthetic:16", devices="cpu:0", batch_size=8, steps=2, no_eval=True)
    >>> [step.step for step in run]
    [1, 2]
    """

    def __init__(self, flags: dict[str, Any]) -> None:
        self._own = None if flags.get("log") else tempfile.NamedTemporaryFile(suffix=".jsonl")
        self._log = pathlib.Path(flags["log"] if self._own is None else self._own.name)
        words = arguments("train", {**flags, "log": self._log})
        self.command, self._report = command_line(arguments("train", flags)), flags.get("report")
        self._process = Process(words)
        self._result: Training | None = None

    def __iter__(self) -> Iterator[Values]:
        if self._own is None:  # the file may have the rows of earlier processes, too
            yield from map(Values, self.result.rows())
            return
        try:
            yield from (row for row in map(parse, self._lines()) if row["kind"] == "step")
        except KeyboardInterrupt:
            self._process.interrupted = True
        finally:  # the loop may be left early, also by an interrupt in its body
            self._process.interrupt()
        self.result  # throws what ended the run

    def _lines(self) -> Iterator[str]:
        with self._log.open(encoding="utf-8") as file:
            half = ""
            while True:
                running = self._process.running()  # before reading: what was written until then is read
                for line in file:
                    half += line
                    if half.endswith("\n"):
                        yield half
                        half = ""
                if not running:
                    return
                time.sleep(0.02)

    @property
    def result(self) -> Training:
        """Waits for the end. throws  Error, with the values so far as its `result`, if training diverged or failed"""
        if self._result is None:
            self._result = Training(self._process.result(failure_is_value=False), self.command, self._report)
        return self._result

    def stop(self) -> Training:
        """Stops after the current step, and saves a checkpoint if the run has a folder for it."""
        self._process.interrupt()
        return self.result

    def _repr_html_(self) -> str:
        return self.result._repr_html_()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.interrupt()
        self._process.wait()

    def __del__(self) -> None:
        if hasattr(self, "_process"):
            self.__exit__()
