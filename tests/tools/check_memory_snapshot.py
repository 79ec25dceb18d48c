#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that a file is what torch.cuda.memory._snapshot() returns, and that its story adds up. Where torch is there, its own readers open it too.

usage: check_memory_snapshot.py FILE.json DEVICES
"""
import json
import sys

TRACE_KEYS = {"action", "addr", "size", "stream", "time_us", "frames"}
SEGMENT_KEYS = {"device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream", "segment_type", "segment_pool_id",
                "is_expandable", "frames", "blocks"}
BLOCK_KEYS = {"address", "size", "requested_size", "state", "frames"}


def check_frames(frames):
    for frame in frames:
        assert set(frame) == {"name", "filename", "line"}, frame
        assert isinstance(frame["name"], str) and isinstance(frame["filename"], str) and isinstance(frame["line"], int), frame
    return {frame["filename"]: frame["name"] for frame in frames}


def replay(trace, segment):
    """The blocks that the trace leaves: address -> size."""
    held, requested, names = {}, {}, set()
    begin, end = segment["address"], segment["address"] + segment["total_size"]
    assert trace[0]["action"] == "segment_alloc" and trace[0]["addr"] == begin and trace[0]["size"] == segment["total_size"]
    for entry in trace[1:]:
        assert set(entry) == TRACE_KEYS, entry
        address, size = entry["addr"], entry["size"]
        assert size > 0 and begin <= address and address + size <= end, entry
        frames = check_frames(entry["frames"])
        assert frames["tensor"] and frames["category"] and frames["phase"], entry
        names.add(frames["tensor"])
        if entry["action"] == "alloc":
            assert all(address + size <= a or a + s <= address for a, s in held.items()), "blocks overlap"
            held[address] = size
        elif entry["action"] == "free_requested":
            assert held[address] == size, entry
            requested[address] = size
        else:
            assert entry["action"] == "free_completed", entry
            assert held.pop(address) == size == requested.pop(address), entry
    assert not requested
    return held, names


def check_segment(segment, held):
    assert set(segment) == SEGMENT_KEYS, segment
    at = segment["address"]
    active = {}
    for block in segment["blocks"]:
        assert BLOCK_KEYS <= set(block), block
        assert block["address"] == at and block["state"] in ("active_allocated", "inactive"), block
        at += block["size"]
        if block["state"] == "active_allocated":
            active[block["address"]] = block["size"]
            assert check_frames(block["frames"])["tensor"]
            assert check_frames(block["history"][0]["frames"])["tensor"] and block["history"][0]["real_size"] == block["size"]
    assert at == segment["address"] + segment["total_size"]
    assert active == held, "what the trace leaves is what the segment holds"
    assert segment["allocated_size"] == segment["active_size"] == sum(held.values())


def main():
    path, devices = sys.argv[1], int(sys.argv[2])
    with open(path, encoding="utf-8") as file:
        snapshot = json.load(file)
    assert set(snapshot) == {"segments", "device_traces", "allocator_settings", "external_annotations"}
    assert len(snapshot["segments"]) == len(snapshot["device_traces"]) == devices
    for device, (segment, trace) in enumerate(zip(snapshot["segments"], snapshot["device_traces"])):
        assert segment["device"] == device
        held, names = replay(trace, segment)
        check_segment(segment, held)
        assert {"parameters", "gradients", "workspace"} <= names, names
        frees = sum(entry["action"] == "free_completed" for entry in trace)
        assert 0 < frees == sum(entry["action"] == "alloc" for entry in trace) - len(held)
    try:
        from torch.cuda import _memory_viz
    except ImportError:
        return
    _memory_viz.segsum(snapshot)
    _memory_viz.trace(snapshot)
    _memory_viz.trace_plot(snapshot)


main()
