#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `vitrine explain` with files in PyTorch's format, and with damaged and hostile ones.

The allocation sequences are those of Vitrine's own training steps, recorded on CPU devices (--memory-history); no GPU made them. They are replayed
through a model of PyTorch's caching allocator (segments of 2 and 20 MiB or more, best fit, split and merged blocks), which writes what
torch.cuda.memory._dump_snapshot() would. Where PyTorch is installed, its own readers open the files too.

usage: explain_test.py VITRINE
"""
import json
import os
import pickle
import random
import subprocess
import sys
import tempfile

MIB = 1 << 20
RUNS = [("small-cnn", "ddp", 2), ("small-cnn", "dp", 2), ("lenet5", "ddp", 1), ("lenet5", "dp", 3), ("mlp", "ddp", 1), ("mlp", "dp", 2),
        ("resnet18-cifar", "ddp", 1), ("resnet18-cifar", "dp", 2), ("alexnet", "ddp", 1), ("alexnet", "dp", 2)]


def rounded(size, to=512):
    return (size + to - 1) // to * to


class CachingAllocator:
    """Writes the trace and the segments of one device."""

    def __init__(self, device):
        self.device, self.next_address, self.trace, self.segments, self.held = device, (device + 1) << 40, [], [], {}

    def entry(self, action, address, size, stream, frames):
        self.trace.append({"action": action, "addr": address, "size": size, "stream": stream, "time_us": len(self.trace), "frames": frames})

    def alloc(self, key, size, stream, frames):
        need = rounded(size)
        small = need <= MIB
        free = [(block["size"], block["address"], segment, block) for segment in self.segments if segment["stream"] == stream and
                (segment["segment_type"] == "small") == small for block in segment["blocks"] if block["state"] == "inactive" and block["size"] >= need]
        if free:
            segment, block = min(free, key=lambda candidate: candidate[:2])[2:]
        else:
            total = 2 * MIB if small else 20 * MIB if need < 10 * MIB else rounded(need, 2 * MIB)
            block = {"address": self.next_address, "size": total, "requested_size": 0, "state": "inactive", "frames": []}
            segment = {"device": self.device, "address": self.next_address, "total_size": total, "stream": stream,
                       "segment_type": "small" if small else "large", "is_expandable": False, "frames": [], "blocks": [block]}
            self.segments.append(segment)
            self.next_address += total
            self.entry("segment_alloc", segment["address"], total, stream, frames)
        rest = block["size"] - need
        if rest >= (512 if small else MIB + 1):
            at = segment["blocks"].index(block)
            segment["blocks"].insert(at + 1, {"address": block["address"] + need, "size": rest, "requested_size": 0, "state": "inactive", "frames": []})
            block["size"] = need
        block.update(state="active_allocated", requested_size=size, frames=frames)
        self.held[key] = (segment, block)
        self.entry("alloc", block["address"], size, stream, frames)

    def free(self, key):
        segment, block = self.held.pop(key)
        for action in ("free_requested", "free_completed"):
            self.entry(action, block["address"], block["requested_size"], segment["stream"], block["frames"])
        block.update(state="inactive", requested_size=0, frames=[])
        merged = []
        for other in segment["blocks"]:
            if merged and merged[-1]["state"] == other["state"] == "inactive":
                merged[-1]["size"] += other["size"]
            else:
                merged.append(other)
        segment["blocks"] = merged

    def reserved(self):
        return sum(entry["size"] for entry in self.trace if entry["action"] == "segment_alloc")


def snapshot_of(recorded):
    """Replays the traces of a recorded file. Returns the snapshot and its allocators."""
    allocators = []
    for device, trace in enumerate(recorded["device_traces"]):
        allocator = CachingAllocator(device)
        for entry in trace:
            frames = {frame["filename"]: frame["name"] for frame in entry["frames"]}
            python = [{"name": "empty", "filename": "/usr/lib/python3/site-packages/torch/_ops.py", "line": 7},
                      {"name": frames.get("tensor", ""), "filename": "/job/train.py", "line": 100 + len(frames.get("layer", ""))}]
            if entry["action"] == "alloc":
                allocator.alloc(entry["addr"], entry["size"], 7 * (frames["category"] == "staging"), python)
            elif entry["action"] == "free_completed":
                allocator.free(entry["addr"])
        allocators.append(allocator)
    snapshot = {"segments": [segment for a in allocators for segment in a.segments], "device_traces": [a.trace for a in allocators] + [[]],
                "allocator_settings": {"expandable_segments": False, "roundup_power2_divisions": []}, "external_annotations": []}
    return snapshot, allocators


def expected_of(trace, segments, kept_from=0):
    """Peak of the blocks, the bound with streams apart, and the bytes by site at the peak, by a second way: sums after every entry."""
    held = {}
    for segment in segments:  # blocks from before the trace, and those that stay
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                held[block["address"]] = (rounded(block["requested_size"]), segment["stream"], block["frames"])
    states = [dict(held)]
    for entry in reversed(trace[kept_from:]):  # backwards: what an entry allocated was not there before it
        if entry["action"] == "alloc":
            held.pop(entry["addr"])
        elif entry["action"] == "free_completed":
            held[entry["addr"]] = (rounded(entry["size"]), entry["stream"], entry["frames"])
        states.append(dict(held))
    states.reverse()
    sums = [sum(block[0] for block in state.values()) for state in states]
    streams = {block[1] for state in states for block in state.values()}
    apart = sum(max(sum(b[0] for b in state.values() if b[1] == stream) for state in states) for stream in streams)
    sites = {}
    for size, _, frames in states[sums.index(max(sums))].values():
        site = f"{frames[1]['name']} ({frames[1]['filename']}:{frames[1]['line']})"
        sites[site] = sites.get(site, 0) + size
    return max(sums), max(max(sums), apart), sites


class Explain:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder

    def run(self, content, *flags):
        path = os.path.join(self.folder, "snapshot")
        with open(path, "wb") as file:
            file.write(content)
        return subprocess.run([self.program, "explain", path, *flags], capture_output=True, text=True, timeout=120)

    def json(self, content):
        result = self.run(content, "--json")
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)["devices"]

    def refused(self, content, reason):
        result = self.run(content)
        assert result.returncode == 1 and reason in result.stderr, (reason, result)
        assert len(result.stderr) < 2000 and not result.stdout, result


def check_figures(explain, snapshot, allocators):
    forms = [pickle.dumps(snapshot, protocol) for protocol in (2, 3, 4, 5)] + [json.dumps(snapshot).encode()]
    found = [explain.json(form) for form in forms]
    assert all(devices == found[0] for devices in found), "every form of the file says the same"
    assert [device["device"] for device in found[0]] == list(range(len(allocators)))
    for device, allocator in zip(found[0], allocators):
        allocated, bound, sites = expected_of(allocator.trace, allocator.segments)
        assert device["peak_reserved_bytes"] == allocator.reserved(), device
        assert device["peak_allocated_bytes"] == allocated, (device["peak_allocated_bytes"], allocated)
        assert device["lower_bound_bytes"] == bound, (device["lower_bound_bytes"], bound)
        assert bound <= device["placed_bytes"] <= allocator.reserved(), device
        assert {site["site"]: site["bytes"] for site in device["peak_sites"]} == sites
        assert device["blocks"] == device["placed_blocks"] == sum(entry["action"] == "alloc" for entry in allocator.trace)


def check_cut_trace(explain, snapshot, allocators):
    """Traces are rings: the first entries may be lost. Blocks that are only freed were there before."""
    allocator = allocators[0]
    cut = len(allocator.trace) // 2
    shortened = {**snapshot, "device_traces": [allocator.trace[cut:], *snapshot["device_traces"][1:]]}
    device = explain.json(pickle.dumps(shortened))[0]
    allocated, bound, _ = expected_of(allocator.trace, allocator.segments, cut)
    assert (device["peak_allocated_bytes"], device["lower_bound_bytes"]) == (allocated, bound), (device, allocated, bound)
    assert device["peak_reserved_bytes"] == allocator.reserved()


def check_torch(snapshot):
    try:
        from torch.cuda import _memory_viz
    except ImportError:
        return False
    _memory_viz.segsum(snapshot)
    _memory_viz.trace(snapshot)
    return True


class Payload:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def check_hostile(explain, snapshot):
    path = os.path.join(explain.folder, "executed")
    for protocol in (2, 3, 4, 5):
        explain.refused(pickle.dumps({**snapshot, "segments": Payload(path)}, protocol), "is never executed")
    assert not os.path.exists(path)
    explain.refused(b"cos\nsystem\n(S'true'\ntR.", "opcode 0x63")
    explain.refused(b"\x80\x04" + b"(" * 1000000, "ends too early")
    explain.refused(b"\x80\x04" + b"]" + b"]a" * 10 + b"\x94" + b"h\x00a" * 1000000 + b".", "expected a dict")  # a list that is in itself
    explain.refused(b"\x80\x04" + b"]" * 1000000 + b"a" * 999999 + b".", "expected a dict")  # nested a million deep
    explain.refused(b"\x80\x04\x8d" + b"\xff" * 8 + b"text.", "ends too early")
    explain.refused(b"\x80\x04a.", "a value is missing")
    explain.refused(b"[" * 100000, "opcode 0x5b")
    explain.refused(b'{"segments":' + b"[" * 100000, "nested deeper")
    explain.refused(b"", "ends too early")
    escape = pickle.dumps({"device_traces": [[{"action": "alloc", "addr": 1, "size": 1, "stream": 0,
                                               "frames": [{"name": "\x1b[31m\n", "filename": "a.py", "line": 1}]}]], "segments": []})
    shown = explain.run(escape)
    assert shown.returncode == 0 and "\x1b" not in shown.stdout and "\\x1b[31m" in shown.stdout, shown


def check_damaged(explain, snapshot, allocators):
    trace = allocators[0].trace
    alloc = next(i for i, entry in enumerate(trace) if entry["action"] == "alloc")

    def with_entry(**changes):
        traces = [trace[:alloc] + [{**trace[alloc], **changes}] + trace[alloc + 1:], *snapshot["device_traces"][1:]]
        return pickle.dumps({**snapshot, "device_traces": traces})

    place = f"device_traces[0][{alloc}]"
    explain.refused(with_entry(size=-1), f"{place}.size: -1 is not a possible number of bytes")
    explain.refused(with_entry(size=1 << 60), f"{place}.size: ")
    explain.refused(with_entry(size="large"), f"{place}.size: expected an integer")
    explain.refused(with_entry(frames=7), f"{place}.frames: expected a list")
    second = next(entry["addr"] for entry in trace[alloc + 1:] if entry["action"] == "alloc")
    explain.refused(with_entry(addr=second), "which is in use")
    explain.refused(pickle.dumps({"segments": []}), "has no 'device_traces'")
    explain.refused(pickle.dumps({**snapshot, "device_traces": [[]]}), "no history of allocations")
    explain.refused(pickle.dumps({**snapshot, "device_traces": snapshot["device_traces"][:1], "segments": [{**snapshot["segments"][0], "device": 5}]}),
                    "device 5 has no trace")
    explain.refused(pickle.dumps({**snapshot, "segments": []}), "contradict each other")
    whole = pickle.dumps(snapshot)
    random.seed(1)
    for _ in range(100):
        explain.refused(whole[:random.randrange(len(whole))], "explain: ")
    for _ in range(100):  # a damaged file is refused or has other figures; the program never ends by a signal
        at = random.randrange(len(whole))
        assert explain.run(whole[:at] + bytes([random.randrange(256)]) + whole[at + 1:]).returncode in (0, 1)


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        explain = Explain(program, folder)
        read_by_torch = 0
        for model, mode, devices in RUNS:
            path = os.path.join(folder, "recorded.pickle")
            command = [program, "train", "--model", model, "--mode", mode, "--devices", f"cpu:0-{devices - 1}", "--data", "synthetic:16", "--batch-size",
                       "4", "--steps", "2", "--record-steps", "1-2", "--memory-history", path, "--no-eval"]
            if model == "alexnet":
                command += ["--image-size", "67"]
            result = subprocess.run(command, capture_output=True, text=True)
            assert result.returncode == 0, result.stderr
            with open(path, "rb") as file:
                recorded = pickle.load(file)
            own = explain.json(open(path, "rb").read())  # Vitrine's own file has the same format
            assert [device["device"] for device in own] == list(range(devices))
            snapshot, allocators = snapshot_of(recorded)
            check_figures(explain, snapshot, allocators)
            check_cut_trace(explain, snapshot, allocators)
            read_by_torch += check_torch(snapshot)
            if (model, mode) == ("lenet5", "dp"):
                check_hostile(explain, snapshot)
                check_damaged(explain, snapshot, allocators)
                text = explain.run(pickle.dumps(snapshot)).stdout
                assert "Peak memory under PyTorch" in text and "(/job/train.py:" in text and "cuda:2" in text, text
        print(f"{len(RUNS)} snapshots; {read_by_torch} were also read by PyTorch's own readers")


main()
