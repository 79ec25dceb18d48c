# SPDX-License-Identifier: Apache-2.0
"""explain() with files in PyTorch's format, damaged and hostile ones.

Vitrine's own training steps, recorded on CPU devices, are replayed through a model of PyTorch's caching allocator: segments of 2 and 20 MiB or more,
best fit, split and merged blocks. No GPU made them. Peaks are compared with sums after every entry, taken backwards.
"""
import json
import os
import pickle
import random
import subprocess
import sys
import time

import pytest
import vitrine

pytest.importorskip("vitrine._vitrine", reason="the package was built without nanobind")
MIB = 1 << 20


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


def replay(recorded):
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
    return {"segments": [segment for a in allocators for segment in a.segments], "device_traces": [a.trace for a in allocators] + [[]],
            "allocator_settings": {"expandable_segments": False}, "external_annotations": []}, allocators


def expected_of(trace, segments, kept_from=0):
    """Peak, bound with streams apart, and bytes by site at the peak."""
    held = {}
    for segment in segments:
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                held[block["address"]] = (rounded(block["requested_size"]), segment["stream"], block["frames"])
    states = [dict(held)]
    for entry in reversed(trace[kept_from:]):
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


def record(model, mode, devices):
    vitrine.train(model=model, mode=mode, devices=f"cpu:0-{devices - 1}", data="synthetic:16", batch_size=4, steps=2, record_steps="1-2",
                  memory_history="recorded.json", no_eval=True).result
    with open("recorded.json", encoding="utf-8") as file:
        return replay(json.load(file))


@pytest.fixture(scope="module")
def snapshot():
    return record("lenet5", "dp", 3)


def explain(content):
    with open("snapshot", "wb") as file:
        file.write(content)
    return vitrine.explain("snapshot").devices


def refused(content, reason):
    with pytest.raises(vitrine.Error) as caught:
        explain(content)
    assert reason in str(caught.value) and len(str(caught.value)) < 2000, (reason, str(caught.value))


@pytest.mark.parametrize(("model", "mode", "devices"), [("small-cnn", "ddp", 2), ("lenet5", "dp", 3), ("mlp", "ddp", 1), ("resnet18-cifar", "dp", 2)])
def test_figures_are_those_of_sums_after_every_entry(model, mode, devices):
    values, allocators = record(model, mode, devices)
    own = vitrine.explain("recorded.json").devices  # Vitrine's own file has the same format
    assert [device.device for device in own] == list(range(devices))
    found = [explain(pickle.dumps(values, protocol)) for protocol in (0, 2, 3, 4, 5)] + [explain(json.dumps(values).encode())]
    assert all(figures == found[0] for figures in found)
    for device, allocator in zip(found[0], allocators):
        allocated, bound, sites = expected_of(allocator.trace, allocator.segments)
        assert device.peak_reserved_bytes == allocator.reserved()
        assert (device.peak_allocated_bytes, device.lower_bound_bytes) == (allocated, bound)
        assert bound <= device.placed_bytes <= allocator.reserved()
        assert {site.site: site.bytes for site in device.peak_sites} == sites
        assert device.blocks == device.placed_blocks == sum(entry["action"] == "alloc" for entry in allocator.trace)
    # Traces are rings: the first entries may be lost. Blocks that are only freed were there before.
    cut = len(allocators[0].trace) // 2
    device = explain(pickle.dumps({**values, "device_traces": [allocators[0].trace[cut:], *values["device_traces"][1:]]}))[0]
    allocated, bound, _ = expected_of(allocators[0].trace, allocators[0].segments, cut)
    assert (device.peak_allocated_bytes, device.lower_bound_bytes) == (allocated, bound)


class Payload:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def test_nothing_is_executed_and_nothing_is_allocated_for_a_claim(snapshot):
    values = snapshot[0]
    for protocol in (0, 2, 3, 4, 5):
        refused(pickle.dumps({**values, "segments": Payload()}, protocol), "is never executed")
    assert not os.path.exists("executed")
    refused(b"cos\nsystem\n(S'true'\ntR.", "opcode 0x63")
    refused(b"\x80\x04\x8d" + b"\xff" * 8 + b"text.", "ends too early")
    refused(b"\x80\x04Nr\xff\xff\xff\xff.", "place 4294967295 of the memo is beyond the file's size")
    refused(b"Np4294967295\n.", "place 4294967295 of the memo is beyond the file's size")
    refused(b"\x80\x04\x96" + b"\xff" * 7 + b"\x00.", "ends too early")
    refused(b"\x80\x04" + b"(" * 1000000, "ends too early")
    refused(b"\x80\x04" + b"]" * 1000000 + b"a" * 999999 + b".", "expected a list")
    refused(b"\x80\x02]q\x00(" + b"h\x00" * 1000 + b"e.", "expected a list")
    refused(b"\x80\x04a.", "cannot be read")
    refused(b'{"segments":' + b"[" * 100000, "cannot be read")
    refused(b"", "ends too early")


def trace_of(*entries, segments=()):
    return pickle.dumps({"device_traces": [list(entries)], "segments": list(segments)})


def alloc(**changes):
    return {"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "frames": [], **changes}


SEGMENT = {"device": 0, "address": 4096, "total_size": 2097152, "stream": 0, "blocks": []}


def test_what_is_not_needed_may_be_odd():
    frame = {"filename": "a.py", "line": 18446744073709551615, "name": "f"}  # line -1 as torch writes it
    odd = alloc(frames=[frame], user={1, 2}, raw=b"\xff", more=bytearray(b"x"), **{"time_us": 2**80})
    odd[7] = None
    (device,) = explain(pickle.dumps({"device_traces": [[odd]], "segments": [SEGMENT], ("a", 1): {3}}, 5))
    assert device.peak_sites[0].site == "f (a.py)"
    (device,) = explain(trace_of(alloc(frames=[{"filename": "a.py", "line": 1, "name": "\x1b[31m\n"}]), segments=[SEGMENT]))
    assert device.peak_sites[0].site == "\\x1b[31m\\n (a.py:1)"


def doubled(times):
    """A tuple of a tuple of ..., each twice: a hash visits 2 ** times texts, for 2 * times bytes in the file."""
    return b"\x8c\x01a" + b"2\x86" * times


@pytest.mark.parametrize("values", [
    b"}" + doubled(60) + b"Ns", b"}(K\x01N" + doubled(60) + b"Nu", b"(" + doubled(60) + b"Nd", b"\x8f(" + doubled(60) + b"\x90", b"(" + doubled(60) + b"\x91",
    b"}N" + b"".join(b"q%ch%c\x86" % (i, i) for i in range(60)) + b"Ns", b"}N" + b"".join(b"p%d\n0(g%d\ng%d\nt" % (i, i, i) for i in range(60)) + b"Ns",
    b"}N" + b"\x94h\x00\x86" + b"".join(b"\x94h%c\x86" % i for i in range(1, 60)) + b"Ns", b"})" + b"\x85" * 1_000_000 + b"Ns",
    b"}" + b"".join(b"\x8a\x10" + (i * sys.hash_info.modulus << 40).to_bytes(16, "little") + b"Ns" for i in range(20_000)),
    b"}" + b"".join(b"I%d\nNs" % (i * sys.hash_info.modulus << 40) for i in range(20_000)),
    b"}" + 2 * (b"X\x00\x00\x10\x00" + b"a" * (1 << 20) + b"\x94Ns") + b"h\x00Ns" * 100],
    ids=["SETITEM", "SETITEMS", "DICT", "ADDITEMS", "FROZENSET", "memo", "text", "memoize", "nested", "integers", "digits", "long text"])
def test_keys_that_take_long_to_hash_are_refused(values):
    begin = time.process_time()
    refused(b"\x80\x04" + values + b".", "the keys of dicts and sets have more than 10000 parts")
    assert time.process_time() < begin + 5


def test_values_that_take_long_to_hash_or_show_are_neither():
    data = pickle.dumps({"device_traces": [[alloc(frames=[{"name": "NAME", "filename": "a.py", "line": 1}])]], "segments": [SEGMENT]}, 2)
    name = b"X\x04\x00\x00\x00NAME"
    assert name in data
    (device,) = explain(data.replace(name, doubled(60))[:-1] + b"(" + doubled(60) + b"1(0.")
    assert device.peak_sites[0].site == " (a.py:1)"
    refused(trace_of(alloc(addr=1 << 64)), "addr: it has more than 64 bits")


def test_a_block_of_backward_has_the_name_of_its_node():
    unwind = {"name": "torch::unwind::unwind()", "filename": "??", "line": 0}
    names = ["at::native::empty_cuda", "torch::autograd::generated::AddmmBackward0::apply", "torch::autograd::Node::operator()", "clone"]
    frames = [unwind, *({"name": name, "filename": "??", "line": 9} for name in names)]
    (device,) = explain(trace_of(alloc(frames=frames), segments=[SEGMENT]))
    assert device.peak_sites[0].site == "torch::autograd::generated::AddmmBackward0::apply (??:9)"
    (device,) = explain(trace_of(alloc(frames=frames[:2]), segments=[SEGMENT]))
    assert device.peak_sites[0].site == "at::native::empty_cuda (??:9)"
    python = {"name": "step", "filename": "/job/train.py", "line": 3}
    (device,) = explain(trace_of(alloc(frames=[*frames, python]), segments=[SEGMENT]))
    assert device.peak_sites[0].site == "step (/job/train.py:3)"


def test_a_trace_that_does_not_show_how_blocks_came_about_says_so():
    block = {"size": 512, "requested_size": 512, "address": 4096, "state": "active_allocated", "frames": []}
    segment = {**SEGMENT, "blocks": [block]}
    (device,) = explain(trace_of({"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "frames": []}, segments=[segment]))
    assert "the trace does not show how these blocks came about" in device.verdict and "less" not in device.verdict
    (device,) = explain(trace_of(alloc(addr=8192, size=256), segments=[{**segment, "blocks": [{**block, "size": 4096, "requested_size": 4000}]}]))
    assert "The trace shows how 512 of the peak's 4,608 bytes came about" in device.verdict


def test_values_that_are_named_many_times_are_refused():
    event = {"action": "free_completed", "addr": 0, "size": 512, "stream": 0, "frames": []}
    refused(pickle.dumps({"device_traces": [[event] * 2000] * 2000, "segments": []}), "expected at most 128, got 2000")
    refused(pickle.dumps({"device_traces": [[event] * 400000], "segments": []}), "the same ones many times")
    refused(pickle.dumps({"device_traces": [[event]], "segments": [{**SEGMENT, "blocks": [event] * 40000}] * 9}), "the same ones many times")


def test_damage_is_named_with_its_place(snapshot):
    values, allocators = snapshot
    trace = allocators[0].trace
    at = next(i for i, entry in enumerate(trace) if entry["action"] == "alloc")

    def with_entry(**changes):
        return pickle.dumps({**values, "device_traces": [trace[:at] + [{**trace[at], **changes}] + trace[at + 1:], *values["device_traces"][1:]]})

    place = f"device_traces[0][{at}]"
    refused(with_entry(size=-1), f"{place}.size: -1 is not a possible number of bytes")
    refused(with_entry(size=1 << 60), f"{place}.size: ")
    refused(with_entry(size="large"), f"{place}.size: expected an integer")
    refused(with_entry(frames=7), f"{place}.frames: expected a list")
    refused(with_entry(addr=next(entry["addr"] for entry in trace[at + 1:] if entry["action"] == "alloc")), "which is in use")
    refused(pickle.dumps({"segments": []}), "device_traces: expected a list")
    refused(pickle.dumps({**values, "device_traces": [[]]}), "no history of allocations")
    one = {**values, "device_traces": values["device_traces"][:1], "segments": [{**values["segments"][0], "device": 5}]}
    refused(pickle.dumps(one), "device 5 has no trace")
    refused(pickle.dumps({**values, "segments": []}), "contradict each other")
    whole, rng = pickle.dumps(values), random.Random(1)
    for _ in range(50):
        refused(whole[:rng.randrange(len(whole))], "explain: ")
    for _ in range(50):  # a damaged file is refused, or has other figures
        changed = rng.randrange(len(whole))
        try:
            explain(whole[:changed] + bytes([rng.randrange(256)]) + whole[changed + 1:])
        except vitrine.Error:
            pass
    assert not os.path.exists("executed")


def peak_memory(code):
    text = f"import resource, sys; {code}; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    return int(subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout)


def test_memory_is_at_most_half_more_than_pickle_load():
    entries = []
    for i in range(60_000):
        frames = [{"name": f"f{j}", "filename": "/job/train.py", "line": i % 1000 + j} for j in range(3)]
        entries.append({"action": "alloc" if i % 2 == 0 else "free_completed", "addr": 4096, "size": 512 + i, "stream": 0, "time_us": i, "frames": frames})
    with open("large.pickle", "wb") as file:
        pickle.dump({"device_traces": [entries], "segments": [SEGMENT]}, file, 4)
    loading = peak_memory("import numpy, pickle; x = pickle.load(open('large.pickle', 'rb'))")
    assert peak_memory("import vitrine; vitrine.explain('large.pickle')") < 1.5 * loading
