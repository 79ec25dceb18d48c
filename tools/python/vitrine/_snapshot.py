# SPDX-License-Identifier: Apache-2.0
"""Snapshots of PyTorch's memory: what they hold at the peak, and what Vitrine's placement makes of the same blocks."""

from __future__ import annotations

import json
import os
import pickle
import re
from array import array
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from . import _display
from ._program import Error, Values
from ._results import Result

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

MOST_FILE_BYTES = 1 << 30
MOST_BYTES = 1 << 46  # of a block or segment, so that sums do not overflow
MOST_DEVICES = 128  # more than PyTorch has; a file may name one trace many times
MOST_PLACED = 10_000  # blocks: their placement takes the square of it in comparisons
ROUNDING = 512  # PyTorch rounds the sizes of blocks up to multiples of this
ROWS = 10
UNWINDING = re.compile(r"unwind::unwind|CapturedTraceback::gather|gather_with_cpp")


class PlainUnpickler(pickle.Unpickler):
    """Builds nothing but what pickles have opcodes for: lists, dicts, sets, numbers, bytes and text."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module}.{name}; what names classes or calls functions is never executed")


def load(path: str) -> Any:
    """The values of a pickle or a JSON file. throws  Error"""
    from ._vitrine import pickle_problem

    what = f"{path} cannot be read as a snapshot of torch.cuda.memory._dump_snapshot()"
    try:
        if os.path.getsize(path) > MOST_FILE_BYTES:
            raise Error(f"it has more than {MOST_FILE_BYTES} bytes")
        with open(path, "rb") as file:
            is_json = file.read(1) == b"{"
            problem = None if is_json else pickle_problem(path)
            if problem:
                raise Error(problem)
            file.seek(0)
            return json.load(file) if is_json else PlainUnpickler(file, encoding="latin-1").load()
    except Exception as error:
        raise Error(f"explain: {what}: {error or type(error).__name__}") from None


def fail(path: str, place: str, what: str) -> NoReturn:
    raise Error(f"explain: {path} cannot be read as a snapshot of torch.cuda.memory._dump_snapshot(): {place}: {what}")


def printable(text: object) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))[:200]


class Reader:
    """A device's blocks. Event 0 is the beginning of its trace, and entry i happens at event i + 1: blocks from before the
    trace begin at event 0, and those that are left at its end stay to the last event."""

    def __init__(self, path: str, index: int, sites: dict[str, int], seen: dict[int, int]) -> None:
        self.path, self.index, self.sites, self.seen = path, index, sites, seen
        self.bytes, self.first, self.end, self.group, self.site = (array("q") for _ in range(5))
        self.held: dict[int, int] = {}  # blocks in use, by address
        self.streams: dict[int, int] = {}
        self.entries = self.changes = 0  # of the trace; those that allocate or free
        self.reserved_at_end = self.change = self.most_change = 0

    def fail(self, place: str, what: str) -> NoReturn:
        fail(self.path, place, what)

    def integer(self, item: Mapping[str, Any], key: str, place: Callable[[], str], size: bool = False) -> int:
        value = item.get(key)
        if type(value) is not int:
            self.fail(f"{place()}.{key}", "expected an integer")
        if size and not 1 <= value <= MOST_BYTES:
            self.fail(f"{place()}.{key}", f"{value} is not a possible number of bytes")
        return value

    def call_site(self, item: Mapping[str, Any], place: Callable[[], str]) -> int:
        """The innermost frame of Python outside PyTorch; else the node of autograd; else the innermost frame that is not
        PyTorch's own recording of frames."""
        frames = item.get("frames", ())
        found = self.seen.get(id(frames))
        if found is not None:
            return found
        if not isinstance(frames, (list, tuple)):
            self.fail(f"{place()}.frames", "expected a list")
        innermost = autograd = engine = ""
        for frame in frames:
            if not isinstance(frame, dict):
                self.fail(f"{place()}.frames", "expected dicts")
            name, file, line = (frame.get(key, "") for key in ("name", "filename", "line"))
            where = f"{file}:{line}" if type(line) is int and 0 < line < 1 << 31 else f"{file}"
            site = f"{file} {name}" if line == 0 else f"{name} ({where})"  # line 0: one of Vitrine's own
            if str(file).endswith(".py") and "/torch/" not in str(file):
                innermost = site
                autograd = engine = ""
                break
            if "Backward" in str(name):
                autograd = autograd or site
            elif "autograd::" in str(name):
                engine = engine or site
            if not innermost and not UNWINDING.search(str(name)):
                innermost = site
        site = printable(autograd or engine or innermost)
        self.seen[id(frames)] = number = self.sites.setdefault(site, len(self.sites))
        return number

    def add(self, item: Mapping[str, Any], size: int, stream: int, first: int, place: Callable[[], str]) -> int:
        self.bytes.append(-(-size // ROUNDING) * ROUNDING)
        self.first.append(first)
        self.end.append(first)
        self.group.append(self.streams.setdefault(stream, len(self.streams)))
        self.site.append(self.call_site(item, place))
        return len(self.bytes) - 1

    def reserve(self, change: int) -> None:
        self.change += change
        self.most_change = max(self.most_change, self.change)

    def follow(self, trace: object) -> None:
        if not isinstance(trace, (list, tuple)):
            self.fail(f"device_traces[{self.index}]", "expected a list")
        for number, entry in enumerate(trace):
            def place(number: int = number) -> str:
                return f"device_traces[{self.index}][{number}]"

            if not isinstance(entry, dict):
                self.fail(place(), "expected a dict")
            action = entry.get("action")
            if type(action) is not str:
                self.fail(f"{place()}.action", "expected text")
            if action in ("segment_alloc", "segment_map", "segment_free", "segment_unmap"):
                size = self.integer(entry, "size", place, size=True)
                self.reserve(size if action in ("segment_alloc", "segment_map") else -size)
            elif action in ("alloc", "free_completed"):  # free_requested: a stream still uses the block
                self.changes += 1
                address, stream = self.integer(entry, "addr", place), self.integer(entry, "stream", place)
                size, now = self.integer(entry, "size", place, size=True), number + 1
                if action == "alloc":
                    if address in self.held:
                        self.fail(place(), f"allocates address {address}, which is in use")
                    self.held[address] = self.add(entry, size, stream, now, place)
                else:  # a trace is cut at its beginning: what it did not allocate comes from before
                    block = self.held.pop(address, -1)
                    self.end[self.add(entry, size, stream, 0, place) if block < 0 else block] = now
        self.entries = len(trace)

    def add_segment(self, segment: Mapping[str, Any], place: Callable[[], str]) -> None:
        self.reserved_at_end += self.integer(segment, "total_size", place, size=True)
        stream = self.integer(segment, "stream", place)
        address = self.integer(segment, "address", place) if "address" in segment else None
        blocks = segment.get("blocks")
        if not isinstance(blocks, (list, tuple)):
            self.fail(f"{place()}.blocks", "expected a list")
        for number, block in enumerate(blocks):
            def place_of_block(number: int = number) -> str:
                return f"{place()}.blocks[{number}]"

            if not isinstance(block, dict):
                self.fail(place_of_block(), "expected a dict")
            size = self.integer(block, "size", place_of_block, size=True)
            # Blocks of older versions have no address: they fill the segment.
            if "address" in block or address is None:
                address = self.integer(block, "address", place_of_block)
            if block.get("state") != "inactive" and address not in self.held:
                asked = self.integer(block, "requested_size", place_of_block, size=True) if "requested_size" in block else size
                self.held[address] = self.add(block, asked, stream, 0, place_of_block)
            address += size

    def explain(self, names: list[str]) -> Values:
        import numpy

        from ._vitrine import place

        for block in self.held.values():
            self.end[block] = self.entries + 1
        at_start = self.reserved_at_end - self.change
        if at_start < 0:
            self.fail(f"device {self.index}", "the trace and the segments contradict each other: "
                      f"{at_start} bytes reserved at its beginning")
        bytes, first, end, group = (numpy.frombuffer(column, numpy.int64) for column in (self.bytes, self.first, self.end, self.group))
        changes = numpy.zeros(self.entries + 2, numpy.int64)
        numpy.add.at(changes, first, bytes)
        numpy.add.at(changes, end, -bytes)
        peak = int(numpy.argmax(numpy.cumsum(changes)))
        chosen = slice(None)  # of a long trace as many events around the peak as their blocks can be placed in seconds
        reach = self.entries + 1
        near: Any = chosen
        while len(bytes[near]) > MOST_PLACED and reach > 1:
            reach //= 2
            near = (first <= peak + reach) & (end > peak - reach)
        placed = [numpy.ascontiguousarray(column[near]) for column in (bytes, first, end, group)]
        height, bound, _ = place(*placed)
        held = (first <= peak) & (peak < end)
        at_peak = numpy.flatnonzero(held)[numpy.argsort(-bytes[held], kind="stable")]
        reserved, known = at_start + self.most_change, int(bytes[held & (first > 0)].sum())
        result = Values(device=self.index, peak_reserved_bytes=reserved, peak_allocated_bytes=int(bytes[held].sum()),
                        lower_bound_bytes=bound, placed_bytes=height, blocks=len(bytes), placed_blocks=len(placed[0]),
                        known_bytes=known)
        result["peak_sites"] = self.sites_of(at_peak, names)
        result["peak_blocks"] = [Values(site=names[self.site[b]], bytes=self.bytes[b], first=self.first[b], end=self.end[b],
                                        stream=self.group[b]) for b in at_peak]
        result["verdict"] = self.verdict(result)
        return result

    def sites_of(self, at_peak: NDArray[numpy.int64], names: list[str]) -> list[Values]:
        shares: dict[int, Values] = {}
        for block in at_peak:
            share = shares.setdefault(self.site[block], Values(site=names[self.site[block]] or "unknown", bytes=0, blocks=0))
            share["bytes"] += self.bytes[block]
            share["blocks"] += 1
        return sorted(shares.values(), key=lambda share: -share["bytes"])

    def verdict(self, of: Values) -> str:
        device = f"cuda:{self.index}"
        if not self.changes:
            return (f"{device}: the trace does not show how these blocks came about: no entry allocates or frees one. Record in the "
                    "job, before what is of interest: torch.cuda.memory._record_memory_history().")
        saved = of.peak_reserved_bytes - of.placed_bytes
        text = f"{device}: this job's memory packs no better here."
        if saved > 0:
            text = f"{device}: the same blocks fit in {saved:,} bytes less, {saved / of.peak_reserved_bytes:.0%} of what PyTorch reserved."
        if 2 * of.known_bytes < of.peak_allocated_bytes:
            text += (f" The trace shows how {of.known_bytes:,} of the peak's {of.peak_allocated_bytes:,} bytes came about; the others "
                     "were there before it.")
        if of.placed_blocks < of.blocks:
            text += f" The trace is long: the {of.placed_blocks:,} blocks around the peak were placed."
        return text


class Explanation(Result):
    """Peak memory of each device under PyTorch, and of the same blocks as Vitrine places them, in bytes.

    peak_reserved_bytes   PyTorch's segments          peak_allocated_bytes  the largest sum of blocks
    lower_bound_bytes     no placement in which streams share no memory needs less
    placed_bytes          what Vitrine needs, which knows sizes and lifetimes before the run
    known_bytes           of the peak, those whose allocation the trace shows
    peak_sites, peak_blocks  what holds the peak, the largest first; `first` and `end` count the entries of the trace
    """

    sizes = ("peak_reserved_bytes", "peak_allocated_bytes", "lower_bound_bytes", "placed_bytes", "blocks")

    def rows(self) -> list[Mapping[str, Any]]:
        return [{key: device[key] for key in ("device", *self.sizes)} for device in self["devices"]]

    def __repr__(self) -> str:
        return "\n".join(device["verdict"] for device in self["devices"])

    def _repr_html_(self) -> str:
        text = _display.table(["device", *self.sizes], [row.values() for row in self.rows()])
        for device in self["devices"]:
            text += f"<p>{device['verdict']}</p>" + _display.table(
                ["call site", "bytes", "share", "blocks"],
                [[site["site"], site["bytes"], f"{site['bytes'] / device['peak_allocated_bytes']:.0%}", site["blocks"]]
                 for site in device["peak_sites"][:ROWS]])
        return text


def explain(snapshot: str | os.PathLike[str]) -> Explanation:
    """Says what holds the peak of a PyTorch job's memory, and whether Vitrine would pack it better.

    snapshot  a file of torch.cuda.memory._dump_snapshot(), at most 1 GB, or of train(memory_history=FILE); nothing that
              it names is executed

    >>> import pickle
    >>> entry = {"action": "alloc", "addr": 4096, "size": 500, "stream": 0, "frames": [{"name": "f", "filename": "a.py", "line": 1}]}
    >>> segment = {"device": 0, "address": 4096, "total_size": 2 << 20, "stream": 0, "blocks": []}
    >>> with open("snapshot.pickle", "wb") as file:
    ...     pickle.dump({"device_traces": [[entry]], "segments": [segment]}, file)
    >>> vitrine.explain("snapshot.pickle").devices[0].peak_sites
    [{'site': 'f (a.py:1)', 'bytes': 512, 'blocks': 1}]

    throws  Error that names the file and the place in it
    """
    path = os.fspath(snapshot)
    data = load(path)
    parts = [data.get(key) if isinstance(data, dict) else None for key in ("device_traces", "segments")]
    for key, part in zip(("device_traces", "segments"), parts):
        if not isinstance(part, (list, tuple)):
            fail(path, key, "expected a list")
    traces, segments = parts
    if len(traces) > MOST_DEVICES:  # type: ignore[arg-type]
        fail(path, "device_traces", f"expected at most {MOST_DEVICES}, got {len(traces)}")  # type: ignore[arg-type]
    sites: dict[str, int] = {}
    seen: dict[int, int] = {}
    readers = [Reader(path, index, sites, seen) for index in range(len(traces))]  # type: ignore[arg-type]
    for reader, trace in zip(readers, traces):  # type: ignore[arg-type]
        reader.follow(trace)
    if not any(reader.entries for reader in readers):
        fail(path, "device_traces", "it has no history of allocations; record one in the job, before what is of interest: "
             "torch.cuda.memory._record_memory_history()")
    for number, segment in enumerate(segments):  # type: ignore[arg-type]
        def place(number: int = number) -> str:
            return f"segments[{number}]"

        if not isinstance(segment, dict):
            fail(path, place(), "expected a dict")
        device = segment.get("device")
        if type(device) is not int or not 0 <= device < len(readers):
            fail(path, f"{place()}.device", f"device {device} has no trace; there are {len(readers)}")
        readers[device].add_segment(segment, place)
    names = list(sites)
    devices = [reader.explain(names) for reader in readers if reader.bytes]
    if not devices:
        fail(path, "segments", "no device has a block")
    return Explanation({"snapshot": path, "devices": devices}, f"explain {path}")


def memory_viz(history: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> str:
    """Writes the pickle that pytorch.org/memory_viz reads, and returns its path.

    history  the JSON of train(memory_history=FILE)        out  [FILE with .pickle]
    throws   OSError, ValueError

    >>> run = vitrine.train(model="mlp", data="synthetic:64", steps=2, no_eval=True, memory_history="history.json").result
    >>> vitrine.memory_viz("history.json")
    'history.pickle'
    """
    with open(history, encoding="utf-8") as file:
        snapshot = json.load(file)
    path = os.fspath(out) if out is not None else os.path.splitext(os.fspath(history))[0] + ".pickle"
    with open(path, "wb") as pickled:
        pickle.dump(snapshot, pickled, protocol=4)  # the page reads no newer one
    return path
