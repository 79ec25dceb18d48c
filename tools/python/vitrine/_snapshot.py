# SPDX-License-Identifier: Apache-2.0
"""Snapshots of PyTorch's memory: what they hold at the peak, and what Vitrine's placement makes of the same blocks."""

import json
import os
import pickle
import re
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from . import _display
from ._program import Error, Values
from ._results import Result

MOST_FILE_BYTES = 1 << 30
MOST_BYTES = 1 << 46  # of a block or segment, so that sums do not overflow
MOST_DEVICES = 128  # more than PyTorch has; a file may name one trace many times
MOST_PLACED = 10_000  # blocks: their placement takes the square of it in comparisons
LEAST_BYTES = 16  # of an entry or a block in a file
RECORD = "Record one in the job, before what is of interest: torch.cuda.memory._record_memory_history()."
ROUNDING = 512  # PyTorch rounds the sizes of blocks up to multiples of this
ROWS = 10
UNWINDING = re.compile(r"unwind::unwind|CapturedTraceback::gather|gather_with_cpp")


class PlainUnpickler(pickle.Unpickler):
    """Builds nothing but what pickles have opcodes for: lists, dicts, sets, numbers, bytes and text."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module}.{name}, which is never executed")


def load(path: str) -> Any:
    """The values of a pickle or a JSON file. throws  Error"""
    from ._vitrine import check_pickle

    try:
        if os.path.getsize(path) > MOST_FILE_BYTES:
            raise Error(f"it has more than {MOST_FILE_BYTES} bytes")
        with open(path, "rb") as file:
            if file.peek(1)[:1] == b"{":
                return json.load(file)
            check_pickle(path)
            return PlainUnpickler(file, encoding="latin-1").load()
    except Exception as error:
        fail(path, str(error) or type(error).__name__)


def fail(path: str, *what: str) -> NoReturn:
    known = f"explain: {path} cannot be read as a snapshot of torch.cuda.memory._dump_snapshot()"
    raise Error(": ".join([known, *what])) from None


def listed(path: str, data: object, key: str | int, place: str = "") -> Sequence[Any]:
    part = data.get(key) if isinstance(data, dict) else None
    if not isinstance(part, (list, tuple)):
        fail(path, place or str(key), "expected a list")
    return part


def printable(text: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:200])[:200]


class Reader:
    """A device's blocks. Event 0 is the beginning of its trace, and entry i happens at event i + 1: blocks from before
    the trace begin at event 0, and those that are left at its end stay to the last event."""

    def __init__(self, path: str, index: int, sites: dict[str, int], seen: dict[int, int]) -> None:
        self.path, self.index, self.sites, self.seen = path, index, sites, seen
        self.bytes, self.first, self.end, self.group, self.site = (array("q") for _ in range(5))
        self.held: dict[int, int] = {}  # blocks in use, by address
        self.freed: dict[int, int] = {}  # when a block that the trace did not allocate was freed, by address
        self.streams: dict[int, int] = {}
        self.entries = self.changes = 0  # of the trace; those that allocate or free
        self.reserved_at_end = self.change = self.most_change = 0

    def integers(self, item: object, place: str, *keys: str) -> list[int]:
        """Values of an item: addresses, streams and sizes."""
        if not isinstance(item, dict):
            fail(self.path, place, "expected a dict")
        values = []
        for key in keys:
            value = item.get(key)
            if type(value) is not int:
                fail(self.path, f"{place}.{key}", "expected an integer")
            if key.endswith("size") and not 1 <= value <= MOST_BYTES:
                fail(self.path, f"{place}.{key}", f"{value} is not a possible number of bytes")
            if not -(1 << 63) <= value < 1 << 64:  # larger ones may be chosen so that all have one hash
                fail(self.path, f"{place}.{key}", "it has more than 64 bits")
            values.append(value)
        return values

    def call_site(self, item: Mapping[str, Any], place: str) -> int:
        """The innermost frame of Python outside PyTorch; else the node of autograd; else the innermost frame that is
        not PyTorch's own recording of frames."""
        frames = item.get("frames", ())
        if (found := self.seen.get(id(frames))) is not None:
            return found
        if not isinstance(frames, (list, tuple)) or not all(isinstance(frame, dict) for frame in frames):
            fail(self.path, f"{place}.frames", "expected a list of dicts")
        outside = autograd = engine = innermost = ""
        for frame in frames:
            name, file, line = (frame.get(key) for key in ("name", "filename", "line"))
            name, file = (text if type(text) is str else "" for text in (name, file))
            where = f"{file}:{line}" if type(line) is int and 0 < line < 1 << 31 else f"{file}"
            site = f"{file} {name}" if line == 0 else f"{name} ({where})"  # line 0: one of Vitrine's own
            if file.endswith(".py") and "/torch/" not in file:
                outside = site
                break
            if "Backward" in name:
                autograd = autograd or site
            elif "autograd::" in name:
                engine = engine or site
            elif not UNWINDING.search(name):
                innermost = innermost or site
        number = self.sites.setdefault(printable(outside or autograd or engine or innermost), len(self.sites))
        self.seen[id(frames)] = number
        return number

    def add(self, item: Mapping[str, Any], size: int, stream: int, first: int, place: str) -> int:
        self.bytes.append(-(-size // ROUNDING) * ROUNDING)
        self.first.append(first)
        self.end.append(first)
        self.group.append(self.streams.setdefault(stream, len(self.streams)))
        self.site.append(self.call_site(item, place))
        return len(self.bytes) - 1

    def follow(self, trace: Sequence[Any]) -> None:
        self.entries = len(trace)
        for now, entry in enumerate(trace, 1):
            place = f"device_traces[{self.index}][{now - 1}]"
            action = entry.get("action") if isinstance(entry, dict) else None
            if type(action) is not str:
                fail(self.path, f"{place}.action", "expected text")
            if action in ("segment_alloc", "segment_map", "segment_free", "segment_unmap"):
                (size,) = self.integers(entry, place, "size")
                self.change += size if action in ("segment_alloc", "segment_map") else -size
                self.most_change = max(self.most_change, self.change)
            elif action in ("alloc", "free_completed"):  # free_requested: a stream still uses the block
                self.changes += 1
                address, size, stream = self.integers(entry, place, "addr", "size", "stream")
                if action == "alloc":
                    if address in self.held:
                        fail(self.path, place, f"allocates address {address}, which is in use")
                    self.held[address] = self.add(entry, size, stream, now, place)
                    continue
                block = self.held.pop(address, -1)
                if block < 0:  # a trace is cut at its beginning: what it did not allocate comes from before
                    block = self.add(entry, size, stream, self.freed.get(address, 0), place)
                    self.freed[address] = now
                self.end[block] = now

    def add_segment(self, segment: Mapping[str, Any], place: str) -> None:
        size, stream = self.integers(segment, place, "total_size", "stream")
        self.reserved_at_end += size
        address = self.integers(segment, place, "address")[0] if "address" in segment else None
        for number, block in enumerate(listed(self.path, segment, "blocks", f"{place}.blocks")):
            at = f"{place}.blocks[{number}]"
            (size,) = self.integers(block, at, "size")
            if "address" in block or address is None:  # those of older versions fill the segment
                (address,) = self.integers(block, at, "address")
            if block.get("state") != "inactive" and address not in self.held:
                asked = self.integers(block, at, "requested_size")[0] if "requested_size" in block else size
                self.held[address] = self.add(block, asked, stream, 0, at)
            address += size

    def explain(self, names: list[str]) -> Values:
        import numpy

        from ._vitrine import place

        for block in self.held.values():
            self.end[block] = self.entries + 1
        at_start = self.reserved_at_end - self.change
        if at_start < 0:
            fail(self.path, f"device {self.index}", "the trace and the segments contradict each other: "
                 f"{at_start} bytes reserved at its beginning")
        columns = (self.bytes, self.first, self.end, self.group)
        bytes, first, end, group = (numpy.frombuffer(column, numpy.int64) for column in columns)
        changes = numpy.zeros(self.entries + 2, numpy.int64)
        numpy.add.at(changes, first, bytes)
        numpy.add.at(changes, end, -bytes)
        peak = int(numpy.argmax(numpy.cumsum(changes)))
        # Of a long trace as many events around the peak as their blocks can be placed in seconds.
        near: numpy.ndarray[Any, Any] = numpy.ones(len(bytes), bool)
        reach = self.entries + 1
        while len(bytes[near]) > MOST_PLACED and reach > 1:
            reach //= 2
            near = (first <= peak + reach) & (end > peak - reach)
        placed = [numpy.ascontiguousarray(column[near]) for column in (bytes, first, end, group)]
        height, bound, _ = place(*placed)
        held = (first <= peak) & (peak < end)
        at_peak = numpy.flatnonzero(held)[numpy.argsort(-bytes[held], kind="stable")]
        reserved, known = at_start + self.most_change, int(bytes[held & (first > 0)].sum())
        shares: dict[str, Values] = {}
        blocks = []
        for b in at_peak:
            site = names[self.site[b]] or "unknown"
            share = shares.setdefault(site, Values(site=site, bytes=0, blocks=0))
            share.update(bytes=share.bytes + self.bytes[b], blocks=share.blocks + 1)
            blocks.append(Values(site=site, bytes=self.bytes[b], first=self.first[b], end=self.end[b],
                                 stream=self.group[b]))
        result = Values(device=self.index, peak_reserved_bytes=reserved, peak_allocated_bytes=int(bytes[held].sum()),
                        lower_bound_bytes=bound, placed_bytes=height, blocks=len(bytes), placed_blocks=len(placed[0]),
                        known_bytes=known, peak_blocks=blocks,
                        peak_sites=sorted(shares.values(), key=lambda share: -int(share.bytes)))
        result["verdict"] = self.verdict(result)
        return result

    def verdict(self, of: Values) -> str:
        device = f"cuda:{self.index}"
        if not self.changes:
            return (f"{device}: the trace does not show how these blocks came about: no entry allocates or frees one. "
                    f"{RECORD}")
        saved = of.peak_reserved_bytes - of.placed_bytes
        text = f"{device}: this job's memory packs no better here."
        if saved > 0:
            share = saved / of.peak_reserved_bytes
            text = f"{device}: the same blocks fit in {saved:,} bytes less, {share:.0%} of what PyTorch reserved."
        if 2 * of.known_bytes < of.peak_allocated_bytes:
            text += (f" The trace shows how {of.known_bytes:,} of the peak's {of.peak_allocated_bytes:,} bytes came "
                     "about; the others were there before it.")
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
        text = _display.table(self.rows())
        for device in self["devices"]:
            text += f"<p>{device['verdict']}</p>" + _display.table(
                [{**site, "share": f"{site['bytes'] / device['peak_allocated_bytes']:.0%}"}
                 for site in device["peak_sites"][:ROWS]])
        return text


def explain(snapshot: str | os.PathLike[str]) -> Explanation:
    """Says what holds the peak of a PyTorch job's memory, and whether Vitrine would pack it better.

    snapshot  a file of torch.cuda.memory._dump_snapshot(), at most 1 GB, or of train(memory_history=FILE); nothing that
              it names is executed

    >>> import pickle
    >>> frame = {"name": "f", "filename": "a.py", "line": 1}
    >>> entry = {"action": "alloc", "addr": 4096, "size": 500, "stream": 0, "frames": [frame]}
    >>> segment = {"device": 0, "address": 4096, "total_size": 2 << 20, "stream": 0, "blocks": []}
    >>> with open("snapshot.pickle", "wb") as file:
    ...     pickle.dump({"device_traces": [[entry]], "segments": [segment]}, file)
    >>> vitrine.explain("snapshot.pickle").devices[0].peak_sites
    [{'site': 'f (a.py:1)', 'bytes': 512, 'blocks': 1}]

    throws  Error that names the file and the place in it
    """
    path = os.fspath(snapshot)
    data = load(path)
    traces, segments = listed(path, data, "device_traces"), listed(path, data, "segments")
    for i, trace in enumerate(traces):
        listed(path, {i: trace}, i, f"device_traces[{i}]")
    if len(traces) > MOST_DEVICES:
        fail(path, "device_traces", f"expected at most {MOST_DEVICES}, got {len(traces)}")
    blocks = [listed(path, segment, "blocks", f"segments[{i}].blocks") for i, segment in enumerate(segments)]
    named = sum(map(len, [*traces, *blocks]))
    if named > os.path.getsize(path) / LEAST_BYTES:
        fail(path, "device_traces", f"it names {named} entries in a file too small for them: the same ones many times")
    sites: dict[str, int] = {}
    seen: dict[int, int] = {}
    readers = [Reader(path, index, sites, seen) for index in range(len(traces))]
    for reader, trace in zip(readers, traces):
        reader.follow(trace)
    if not any(traces):
        fail(path, "device_traces", f"it has no history of allocations. {RECORD}")
    for number, segment in enumerate(segments):
        (device,) = readers[0].integers(segment, f"segments[{number}]", "device")
        if not 0 <= device < len(readers):
            fail(path, f"segments[{number}].device", f"device {device} has no trace; there are {len(readers)}")
        readers[device].add_segment(segment, f"segments[{number}]")
    devices = [reader.explain(list(sites)) for reader in readers if reader.bytes]
    if not devices:
        fail(path, "segments", "no device has a block")
    return Explanation({"snapshot": path, "devices": devices}, f"explain {path}")


def memory_viz(history: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> str:
    """Writes the pickle that pytorch.org/memory_viz reads, and returns its path.

    history  the JSON of train(memory_history=FILE)        out  [FILE with .pickle]
    throws   OSError, ValueError

    >>> run = vitrine.train(model="mlp", data="synthetic:64", steps=2, memory_history="history.json").result
    >>> vitrine.memory_viz("history.json")
    'history.pickle'
    """
    with open(history, encoding="utf-8") as file:
        snapshot = json.load(file)
    path = os.fspath(out) if out is not None else os.path.splitext(os.fspath(history))[0] + ".pickle"
    with open(path, "wb") as pickled:
        pickle.dump(snapshot, pickled, protocol=4)  # the page reads no newer one
    return path
