# SPDX-License-Identifier: Apache-2.0
"""Nine runs of one training in folders of their own, continued where they stopped."""

import fcntl
import itertools
import json
import os
import pathlib
import re
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from . import _display
from ._program import FLAGS, Error, UsageError, Values, call, parse, text_of
from ._results import Result, Run

CHARTS = (("curves", "Learning"), ("speed", "Speed"), ("peaks", "Peak memory"), ("times", "Time of the measured steps"))
REMEDY = "remove the run's folder to make the run again"
DEFAULTS = {"model": "alexnet", "epochs": 20, "lr": 1e-4, "lr_schedule": "plateau", "lr_patience": 3, "keep_last": 2}
# Set for each run.
OWN = ("mode", "precision", "loss_scale", "steps", "log", "tensorboard", "checkpoint_dir", "resume", "report")
MEASURED = ("diverged", "devices", "phases", "waits", "config")
LOCAL = ("workers", "keep_last", "keep_best", "timeout", "log_every", "check_order")  # another value changes no result
CONDITIONS = {"classes": 1000, "normalize": "none", "shuffle": False, "lr_metric": "last-batch",
              "lr_schedule": "plateau"}
# Of one RTX 2060: accuracy and minutes.
PUBLISHED = {"single fp32": (0.8191, 22), "single fp16:none": (0.8403, 21), "single fp16:dynamic": (None, 27),
             "dp fp32": (0.8216, None), "dp fp16:none": (0.8188, None), "dp fp16:dynamic": (0.8409, None),
             "ddp fp32": (0.8224, None), "ddp fp16:none": (0.8162, None), "ddp fp16:dynamic": (0.8252, None)}
PUBLISHED_CONDITIONS = [
    "1000 outputs for 10 classes: 990 of them have no sample. Good practice: one output for each class.",
    "Pixels are not normalized. Good practice: subtract the mean and divide by the deviation of the training set.",
    "Samples are not shuffled: every epoch has the same batches. Good practice: a new order in each epoch.",
    "The schedule watches the loss of an epoch's last batch, mostly noise. Good practice: the loss on held-out data.",
    "World size 1: the times of dp and ddp show the schemes' cost, no speed-up. Good practice: several devices.",
    "One run for each figure: differences within the spread of seeds mean nothing. Good practice: seeds=3."]


class PlannedRun:
    """A configuration with a seed, in a folder: result.json, log.jsonl, checkpoints/ and tensorboard/."""

    def __init__(self, out: pathlib.Path, mode: str, precision: str, seed: int, first: int, several: bool,
                 flags: dict[str, Any]) -> None:
        self.configuration = f"{mode} {precision}"
        self.name = self.configuration + (f" seed {seed}" if several else "")
        self.folder = out / (f"{mode}-{precision}".replace(":", "-") + ("" if seed == first else f"-seed{seed}"))
        name, _, scale = precision.partition(":")
        self.flags = {**flags, "seed": seed, "mode": "ddp" if mode == "single" else mode, "precision": name,
                      "loss_scale": scale or None}
        if mode == "single":  # the first device, with what the flags give to all CPU devices
            devices = devices_in(flags["devices"])
            self.flags["devices"] = devices[0]
            for key in ("threads_per_device", "device_memory"):
                if len(devices) > 1 and key in flags and devices[0].startswith("cpu"):
                    each = text_of(flags[key]).split(",")[0]
                    number = each.rstrip("KMGTiB")
                    self.flags[key] = f"{float(number) * len(devices):.0f}{each[len(number):]}"
        given = {key: value for key, value in self.flags.items() if value is not None and key not in LOCAL}
        self.settings = {key: text_of(value) for key, value in given.items()}
        self.values = Values(name=self.name, mode=mode, precision=precision, seed=seed, folder=str(self.folder),
                             state="interrupted", failure=None, diverged=None, epochs=[], devices=[], phases=[])

    def stored(self) -> Values | None:
        """What result.json says. throws  Error if it is damaged, UsageError if the run there has other settings"""
        path = self.folder / "result.json"
        if not path.exists():
            return None
        try:
            result = parse(path.read_text(encoding="utf-8"))
            before, done = dict(result["settings"]), result["state"] != "interrupted"
            result.update({key: result["result"][key] for key in MEASURED} if done else {})
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise Error(f"{path}: it is damaged ({type(error).__name__}: {str(error)[:100]}); {REMEDY}") from None
        for key in sorted({*before, *self.settings}):
            now, then = (settings.get(key, "not set") for settings in (self.settings, before))
            if now != then:
                raise UsageError(f"out: the run in {self.folder} has another configuration: {key} is {now}, there "
                                 f"{then}; use its settings, or choose another folder")
        return result if done else None

    def store(self, state: str, result: Any = None) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"settings": self.settings, "state": state, "result": result}, indent=1)
        temporary = self.folder / "result.json.tmp"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(self.folder / "result.json")

    def make(self, interrupted: bool, numbers: Iterator[str]) -> None:
        """Trains what is left, unless interrupted, and fills `values`. throws  Error, KeyboardInterrupt"""
        values, stored = self.values, self.stored()
        if stored is None and not interrupted:
            print(f"{self.name} ({next(numbers)})", file=sys.stderr)
            self.store("interrupted")
            run = Run({**self.flags, "checkpoint_dir": self.folder / "checkpoints", "resume": "auto",
                       "log": self.folder / "log.jsonl", "tensorboard": self.folder / "tensorboard"})
            try:
                result = run.result
            except Error as error:
                if not error.result or not error.result["diverged"]:
                    raise
                result = error.result
            except KeyboardInterrupt:
                self.read_log()
                raise
            state = "diverged" if result["diverged"] else "interrupted" if result["interrupted"] else "complete"
            self.store(state, result)
            stored = self.stored()
        if stored:
            values.update({key: stored[key] for key in ("state", *MEASURED)})
        if not values.phases:  # no step was left to train
            for device in values.devices:
                device.update(peak_bytes=None, peak_bytes_by_category=None, lower_bound_bytes=None, outside_bytes=None)
        self.read_log()
        if values.state == "complete" and len(values.epochs) != self.flags["epochs"]:
            raise Error(f"{self.folder}/log.jsonl: it has {len(values.epochs)} of {self.flags['epochs']} epochs; "
                        f"{REMEDY}")

    def read_log(self) -> None:
        path, epochs, scales = self.folder / "log.jsonl", {}, {}
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        # A killed process may leave half a line.
        for number, line in enumerate(line for line in lines if line.endswith("\n")):
            try:
                row = parse(line)
                if row["kind"] == "epoch":  # the row of an interrupted epoch is replaced by that of the whole epoch
                    epochs[row["epoch"]] = row
                elif row["kind"] == "step" and row["loss_scale"]:
                    scales[row["step"]] = row["loss_scale"]
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise Error(f"{path}, line {number + 1}: it is damaged ({type(error).__name__}); {REMEDY}") from None
        keys = {name: name for name in ("epoch", "test_loss", "test_accuracy", "samples", "samples_per_second")}
        keys |= {"loss": "train_loss", "step": "steps", "train_seconds": "seconds"}
        rows = [Values({name: epochs[epoch][key] for key, name in keys.items()}) for epoch in sorted(epochs)]
        for row, before in reversed([*zip(rows[1:], rows)]):
            row["steps"] -= before["steps"]
        ordered = [scales[step] for step in sorted(scales)]  # a scale falls only after a step that was skipped
        rates = [row["samples_per_second"] for row in rows]
        self.values.update(epochs=rows, seconds=sum(row["seconds"] for row in rows) if rows else None,
                           samples_per_second=statistics.median(rates) if rates else None,
                           samples_per_second_of_rounds=rates,
                           test_accuracy=rows[-1]["test_accuracy"] if rows else None,
                           skipped_steps=sum(after < before for before, after in zip(ordered, ordered[1:])))


def devices_in(text: object) -> list[str]:
    """"cpu:0-1" as its devices. The program refuses what is none."""
    devices = []
    for item in text_of(text).split(","):
        several = re.fullmatch(r"(\w+:)(\d+)-(\d+)", item)
        devices += [f"{several[1]}{i}" for i in range(int(several[2]), int(several[3]) + 1)] if several else [item]
    return devices


def spread(values: Sequence[float]) -> Values | None:
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Values(mean=statistics.fmean(values), least=min(values), most=max(values),
                  deviation=deviation) if values else None


class Reproduction(Result):
    """`runs`, each with its state (complete, diverged, failed or interrupted), epochs and memory; and `configurations`,
    their means over the seeds. runs.json in the folder has the same, and report.html the curves of all runs."""

    columns = ("interrupted",)

    def rows(self) -> list[Mapping[str, Any]]:
        keys = ("name", "state", "test_accuracy", "seconds", "samples_per_second", "skipped_steps")
        return [{**{key: run.get(key) for key in keys},
                 **{f"peak_bytes.{device['device']}": device["peak_bytes"] for device in run["devices"]},
                 "problem": run["failure"] or run["diverged"]} for run in self["runs"]]

    def write_page(self, path: pathlib.Path) -> None:
        published = [{"name": row["name"], **row["published"]} for row in self["configurations"] if "published" in row]
        notes = [*self["departures"], *self["published_conditions"]]
        text = _display.table(self.rows()) + _display.table(published) + "".join(map(_display.preformatted, notes))
        measured = {run["name"]: run for run in self["runs"] if run["epochs"] and run["phases"]}
        charts = CHARTS if measured else ()
        page = _display.page(self.command, "comparison", {"modes": measured}, charts, text)
        path.write_text(page, encoding="utf-8", errors="replace")  # a folder's name may be no text


def lock(folder: pathlib.Path) -> IO[str]:
    """Lets one call at a time work in a folder, until the file is closed."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        file = open(folder / ".lock", "w", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o666))
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file
    except OSError as error:
        busy = isinstance(error, BlockingIOError)
        reason = "another process works there" if busy else f"it cannot be locked ({error.strerror})"
        raise Error(f"out {folder}: {reason}") from None


def check_names(argument: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise UsageError(f"{argument}: expected {', '.join(known)}, got '{name}'")
        if list(names).count(name) > 1:
            raise UsageError(f"{argument}: {name} appears twice")


def reproduce(*, out: str | os.PathLike[str], data: str, devices: str | Sequence[str],
              modes: str | Sequence[str] = ("single", "dp", "ddp"),
              precisions: str | Sequence[str] = ("fp32", "fp16:none", "fp16:dynamic"), seeds: int = 1, seed: int = 0,
              as_published: bool = False, **flags: Any) -> Reproduction:
    """Trains one model in every mode and precision, and compares time, accuracy, speed and memory.

    The same call continues: complete and diverged runs are not repeated, an interrupted one continues from its newest
    checkpoint with the same bits, and failed ones are tried again. Defaults are those of public PyTorch scripts:
    alexnet, 20 epochs, lr 0.0001, plateau with patience 3.

    out           folder of the runs      devices  of dp and ddp; single runs on the first one
    seeds         runs of each configuration, with seed, seed + 1, ...
    as_published  the conditions of the published figures, on one device, with these figures beside the results
    flags         those of vitrine.train()

    >>> r = vitrine.reproduce(out="runs", data="synthetic:40", devices="cpu:0-1", model="mlp", image_size=8, epochs=1,
    ...                       modes=["single", "ddp"], precisions=["fp32"])
    >>> [(run.name, run.state) for run in r.runs]
    [('single fp32', 'complete'), ('ddp fp32', 'complete')]

    throws  UsageError before the first run, also for a folder whose runs have other settings; Error
    """
    folder = pathlib.Path(out)
    schemes = [mode for mode in FLAGS["train"]["mode"]["value"].split("|") if mode not in ("balanced", "auto")]
    modes, precisions = (text_of(names).split(",") for names in (modes, precisions))
    check_names("modes", modes, ["single", *schemes])
    check_names("precisions", precisions, ["fp32", "fp16", "fp16:none", "fp16:dynamic", "bf16"])
    precisions = ["fp16:dynamic" if name == "fp16" else name for name in precisions]
    if len({*precisions}) < len(precisions):
        raise UsageError("precisions: fp16 is fp16:dynamic; name it once")
    for setter, keys in (("reproduce", OWN), ("as_published", CONDITIONS if as_published else ())):
        for key in keys:
            if key in flags:
                raise UsageError(f"{setter} sets {key} for each run; leave it out")
    if as_published and len(devices_in(devices)) > 1:
        raise UsageError("as_published: the published figures are those of one device, but devices "
                         f"{text_of(devices)} has {len(devices_in(devices))}; name one")
    given: dict[str, Any] = {"data": data, "devices": devices, **DEFAULTS, **flags}
    given |= CONDITIONS if as_published else {}
    planned = [PlannedRun(folder, mode, precision, seed + i, seed, seeds > 1, given)
               for i in range(seeds) for mode in modes for precision in precisions]
    to_make = 0
    for run in planned:  # those with other settings are refused before the first one starts; damaged ones fail alone
        try:
            to_make += run.stored() is None
        except UsageError:
            raise
        except Error:
            pass
    with lock(folder):
        return make_all(folder, planned, to_make, departures_of(given) if as_published else None)


def departures_of(given: Mapping[str, Any]) -> list[str]:
    """What differs from the published conditions: settings, also those that others imply."""
    published = {**DEFAULTS, **CONDITIONS, "data": "synthetic", "devices": given["devices"]}
    ours, theirs = (call("plan", {key: value for key, value in flags.items() if key in FLAGS["plan"]})[0]["config"]
                    for flags in (given, published))
    for key in given.keys() - FLAGS["plan"].keys():
        ours[key], theirs[key] = given[key], published.get(key)
    departures = [f"{key} {value}; published: {'not set' if theirs.get(key) is None else theirs[key]}"
                  for key, value in ours.items() if key not in ("data", "devices", "threads_per_device", *LOCAL)
                  and value != theirs.get(key) and value is not None and (value or theirs.get(key))]
    if not str(given["data"]).startswith("cifar10:"):
        departures.append(f"data {given['data']}; published: CIFAR-10")
    return [*departures, f"device {text_of(given['devices'])}; published: an RTX 2060"]


def make_all(folder: pathlib.Path, planned: Sequence[PlannedRun], to_make: int,
             departures: list[str] | None) -> Reproduction:
    interrupted, numbers = False, (f"{number} of {to_make}" for number in itertools.count(1))
    for run in planned:
        try:
            run.make(interrupted, numbers)
        except KeyboardInterrupt:
            interrupted = True
        except (Error, OSError) as error:
            run.values.update(state="failed", failure=str(error).replace("--mode ", "--modes "))
        interrupted = interrupted or run.values.state == "interrupted"
    configurations = []
    for name in dict.fromkeys(run.configuration for run in planned):
        complete = [run.values for run in planned if run.configuration == name and run.values.state == "complete"]
        accuracies = [run.test_accuracy for run in complete if run.test_accuracy is not None]
        rates = [run.samples_per_second for run in complete]
        summary = Values(name=name, complete_runs=len(complete), test_accuracy=spread(accuracies),
                         seconds=spread([run.seconds for run in complete]),
                         samples_per_second=statistics.median(rates) if rates else None)
        if departures is not None:
            summary["published"] = Values(zip(("test_accuracy", "minutes"), PUBLISHED.get(name, (None, None))))
        configurations.append(summary)
    data = {"runs": [run.values for run in planned], "configurations": configurations, "departures": departures or [],
            "published_conditions": PUBLISHED_CONDITIONS if departures is not None else [], "interrupted": interrupted}
    (folder / "runs.json").write_text(json.dumps(data, indent=1), encoding="utf-8")
    result = Reproduction(data, f"reproduce {folder}", str(folder / "report.html"))
    result.write_page(folder / "report.html")
    if interrupted:
        raise KeyboardInterrupt
    return result
