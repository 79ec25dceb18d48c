#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Proves the schedules of many configurations, and mutates them: every fault is found.

usage: check_schedule_test.py VITRINE CHECK_SCHEDULE quick|all
  quick   a few configurations, 150 deleted waits; all: every model and scheme, 1,000 deleted waits or more
"""
import collections
import copy
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import tempfile
import time

MODELS = ["mlp", "lenet5", "small-cnn", "resnet18-cifar", "alexnet", "wide-head", "resnet18", "vgg16", "resnet50"]
SCHEMES = ["dp", "criterion", "ddp", "zero1", "zero2", "zero3", "balanced --gpu0-bsz 2"]  # the first ones with all variants
REFUSED = {scheme: "--reduce-dtype" for scheme in ("zero1", "zero2", "zero3")}
DEVICES = "--devices cpu:0-2 --workspace 1MiB"
# Three devices have unequal parts of 16 samples; an epoch of 64 samples ends with a batch of 16 after two of 24; evaluation has batches of its own.
VARIANTS = [DEVICES + " --batch-size " + variant for variant in (
    "24", "16 --accumulate 2", "24 --accumulate 3 --recompute-segments 2", "16 --precision fp16", "16 --precision bf16 --clip-norm 1", "16 --exact",
    "16 --exact --accumulate 2 --leaves 4 --batch-norm-leaves 2", "16 --bucket-mb 0.1 --first-bucket-mb 0.01", "2",
    "16 --optimizer sgd --momentum 0.9 --ema 0.99", "16 --reduce-dtype f16 --precision fp16", "16 --augment flip,crop:4 --no-eval",
    "16 --data-on-device on", "16 --loss-gradient apart --batch-norm local", "16 --staging host", "16 --staging device0")]
VARIANTS += ["--devices cpu:0 --batch-size 16", "--devices cuda:0-1 --device-memory 40GiB --batch-size 24 --precision bf16",
             "--devices cuda:0-1 --device-memory 40GiB --batch-size 24 --precision fp16 --tf32 --accumulate 2"]


def configurations(everything):
    """Flags of plan."""
    rows = [(model, scheme, DEVICES + " --batch-size 16") for model in (MODELS if everything else MODELS[:2]) for scheme in SCHEMES]
    rows += [(model, scheme, variant) for model in (["lenet5", "resnet18-cifar"] if everything else ["mlp"]) for scheme in SCHEMES[:6]
             for variant in VARIANTS if scheme not in REFUSED or REFUSED[scheme] not in variant] + [("resnet18-cifar", "ddp", DEVICES + " --batch-size 16 --processes 2")]
    return [f"--model {model} --data synthetic:64 --mode {scheme} {variant}" for model, scheme, variant in rows]


class Tests:
    def __init__(self, vitrine, script, folder):
        self.vitrine, self.script, self.path, self.failures = vitrine, script, os.path.join(folder, "schedule.jsonl"), 0
        self.waits, self.redundant = collections.Counter(), collections.Counter()  # by what waits for what
        loader = importlib.machinery.SourceFileLoader("check_schedule", script)
        self.check_schedule = importlib.util.module_from_spec(importlib.util.spec_from_loader("check_schedule", loader))
        loader.exec_module(self.check_schedule)

    def expect(self, condition, what):
        if not condition:
            self.failures += 1
            print(f"FAILED: {what}", flush=True)

    def plan(self, flags):
        """Returns the lines and streams of a schedule."""
        command = [self.vitrine, "plan", "--prove", self.path, *flags.split()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
        return self.check_schedule.read(self.path)

    def wrong(self, lines, streams):
        """What is wrong with a schedule, or an empty string."""
        try:
            self.check_schedule.check(lines, streams)
        except self.check_schedule.Wrong as error:
            return str(error)
        return ""

    def proven(self, flags):
        lines, streams = self.plan(flags)
        found = self.wrong(lines, streams)
        self.expect(not found, f"{flags}: {found}")
        return (lines, streams) if not found else None

    def deleted_waits(self, flags, most):
        """Deletes up to `most` waits, one at a time: each mutant is rejected by the whole check, or listed as redundant."""
        proven = self.proven(flags)
        if not proven:
            return 0, 0
        lines, streams = proven
        steps = self.check_schedule.check(lines, streams)
        waits = [number for number, line in enumerate(lines) if line["do"] == "wait"]
        waits = waits[::max(1, len(waits) // most)][:most]
        redundant = set(self.check_schedule.find_redundant(steps, streams, waits))
        for number in waits:
            what = f"{streams[lines[number]['stream']]['name'].split('/')[-1]} waits for {lines[number]['for'] or 'reuse of memory'}"
            self.waits[what] += 1
            self.redundant[what] += number in redundant
        self.expect(waits, f"{flags}: the schedule has no waits")
        for number in waits:
            deleted, lines[number] = lines[number], {"do": "deleted"}
            found = self.wrong(lines, streams)
            lines[number] = deleted
            self.expect(bool(found) != (number in redundant), f"{flags}: without line {number}: {found or 'proven'}")
        return len(waits), len(redundant)

    def planted_faults(self, flags):
        lines, streams = self.proven(flags)

        def rejected(what, change, reason):
            mutant = copy.deepcopy(lines)
            change(mutant)
            found = self.wrong(mutant, streams)
            self.expect(reason in found, f"{what}: expected '{reason}', got '{found}'")

        def find(**fields):
            return next(n for n, line in enumerate(lines) if all(line.get(key) == value for key, value in fields.items()))

        free = find(do="free")
        gone = [lines[free]["address"], lines[free]["bytes"]]
        for reads, writes in ([gone], []), ([], [gone]):
            late = {"do": "operation", "stream": lines[free]["stream"], "name": "planted", "reads": reads, "writes": writes}
            rejected("an access after a free", lambda m, late=late: m.insert(free + 1, late), "belong to no block")
        written = next(n for n, line in enumerate(lines) if line["do"] == "operation" and line["writes"] and not line["reads"] and line["stream"])
        rejected("a read before the first write", lambda m: m[written].update(reads=m[written]["writes"], writes=[]), "not all of which were written")
        rejected("a block freed twice", lambda m: m.insert(free, m[free]), "not in use")
        allocated = find(do="allocate")
        rejected("overlapping blocks", lambda m: m.insert(allocated + 1, m[allocated]), "overlaps")
        rejected("a block at another offset", lambda m: m[allocated].update(offset=1 << 20), "does not agree")
        peak = find(do="peak", device=1)
        rejected("another peak", lambda m: m[peak].update(bytes=m[peak]["bytes"] - 256), "states a peak")
        first, second = [n for n, line in enumerate(lines) if line["do"] == "collective" and line["rank"] == 1][:2]

        def swap(mutant):
            fields = ("name", "bytes", "signature")
            kept = {field: mutant[first][field] for field in fields}
            mutant[first].update({field: mutant[second][field] for field in fields})
            mutant[second].update(kept)
        rejected("swapped collectives on one rank", swap, "the ranks differ")
        last = max(n for n, line in enumerate(lines) if line["do"] == "collective")
        rejected("a collective that one rank does not issue", lambda m: m.__setitem__(last, {"do": "deleted"}), "different numbers of collectives")
        rejected("a collective of a rank without a device", lambda m: m[last].update(rank=9, sequence=0), "no device has this rank")

        def cycle(mutant):
            # Rank 0 waits in its first collective for all ranks; rank 1 begins its own only after what follows that collective on rank 0.
            of_rank0 = find(do="collective", rank=0, sequence=0)
            event = 1 << 40
            mutant.insert(of_rank0 + 1, {"do": "record", "stream": lines[of_rank0]["stream"], "event": event})
            mutant.insert(first + 1, {"do": "wait", "stream": lines[first]["stream"], "event": event, "for": "a cycle"})
        rejected("a cycle through a collective", cycle, "waits form a cycle")

    def dropped_and_moved(self, flags, most):
        """Drops the collectives of each rank and of all of them, and moves up to `most` reads and writes of each device past its blocks, and of host
        memory to where none is listed. Returns the number of mutants, all of which are rejected."""
        lines, streams = self.proven(flags)
        mutants = 0

        def rejected(what, changes, reason):
            nonlocal mutants
            kept = {number: lines[number] for number in changes}
            for number, line in changes.items():
                lines[number] = line
            found = self.wrong(lines, streams)
            for number, line in kept.items():
                lines[number] = line
            mutants += 1
            self.expect(reason in found, f"{flags}: {what}: expected '{reason}', got '{found}'")

        by_rank = collections.defaultdict(list)
        for number, line in enumerate(lines):
            if line["do"] == "collective":
                by_rank[line["rank"]].append(number)
        for rank, numbers in by_rank.items():
            rejected(f"no collectives of rank {rank}", {number: {"do": "deleted"} for number in numbers}, "the ranks issue different numbers"
                     if len(by_rank) > 1 else "but the file states")
        if by_rank:
            rejected("no collectives at all", {number: {"do": "deleted"} for of_rank in by_rank.values() for number in of_rank}, "but the file states")

        bases = {streams[line["stream"]]["device"]: line["address"] - line["offset"] for line in lines if line["do"] == "allocate"}
        slabs = [(bases[line["device"]], bases[line["device"]] + line["bytes"]) for line in lines if line["do"] == "peak" and line["bytes"]]
        places = collections.defaultdict(list)  # (base of the slab or None, kind) -> (line, index)
        for number, line in enumerate(lines):
            for kind in ("reads", "writes") if line["do"] == "operation" else ():
                for index, (begin, _) in enumerate(line[kind]):
                    slab = next((slab for slab in slabs if slab[0] <= begin < slab[1]), None)
                    places[slab, kind].append((number, index))
        for (slab, kind), found in places.items():
            for at, (number, index) in enumerate(found[::max(1, len(found) // most)][:most]):
                line = copy.deepcopy(lines[number])
                end = slab[1] if slab else max(l["address"] + l["bytes"] for l in lines if l["do"] == "outside")
                line[kind][index][0] = end + at * 256
                rejected(f"line {number}: one of the {kind} moved past the end", {number: line}, "belong to no block")
        return mutants

    def damaged_files(self, flags):
        self.plan(flags)
        with open(self.path, encoding="utf-8") as file:
            text = file.read()

        def status(content):
            with open(self.path, "w", encoding="utf-8") as file:
                file.write(content)
            return subprocess.run([sys.executable, self.script, self.path], capture_output=True, text=True, check=False)

        self.expect(status(text).returncode == 0, "the program proves a schedule")
        lines = text.splitlines(keepends=True)
        for what, content in {"empty": "", "half": text[:len(text) // 2], "without its end": "".join(lines[:-1]), "not JSON": "hello\n" + text,
                              "of another version": text.replace('"version":2', '"version":1', 1), "with a list": lines[0] + "[]\n" + text,
                              "without its streams": lines[0] + "".join(lines[3:])}.items():
            done = status(content)
            self.expect(done.returncode == 2 and "not a schedule" in done.stderr, f"a file that is {what}: {done}")
        wait = next(n for n, line in enumerate(lines) if '"do":"wait"' in line and '"for":"stage"' in line)
        done = status("".join(lines[:wait] + lines[wait + 1:]))
        self.expect(done.returncode == 1 and "WRONG" in done.stdout, f"a file without a wait: {done}")

    def refusals(self):
        for flags, reason in {"--prove x.html --report x.html": "--report and --prove name one file", "--prove /nowhere/x": "--prove /nowhere/x",
                              "--prove .": "it is a folder"}.items():
            done = subprocess.run([self.vitrine, "plan", *flags.split()], capture_output=True, text=True, check=False)
            self.expect(done.returncode in (1, 2) and reason in done.stderr, f"plan {flags}: {done}")

    def speed(self):
        began = time.monotonic()
        lines, streams = self.plan("--model alexnet --devices cpu:0-7 --data synthetic:1024 --batch-size 256 --mode ddp")
        self.expect(not self.wrong(lines, streams), "AlexNet on 8 devices")
        print(f"AlexNet on 8 devices: {time.monotonic() - began:.2f} s, {len(lines)} lines")


def main():
    vitrine, script, extent = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        tests = Tests(vitrine, script, folder)
        everything = extent == "all"
        rows, needed, total, listed = configurations(everything), 1000 if everything else 150, 0, 0
        for flags in rows:
            if total >= needed or (everything and rows.index(flags) % 4 != 0):  # deletes waits in as many configurations as it takes
                tests.proven(flags)
                continue
            waits, redundant = tests.deleted_waits(flags, 30 if everything else 15)
            total, listed = total + waits, listed + redundant
        tests.expect(total >= needed, f"{total} deleted waits")
        moved = rows[::4] if everything else [rows[0], rows[3], rows[-1], next(row for row in rows if "cuda" in row)]
        mutants = sum(tests.dropped_and_moved(flags, 5) for flags in moved)
        tests.planted_faults(rows[0])
        tests.planted_faults(rows[3])
        tests.damaged_files(rows[1])
        tests.refusals()
        if everything:
            tests.speed()
        for what, count in sorted(tests.waits.items()):
            print(f"  {tests.redundant[what]} of {count} are redundant: {what}")
        print(f"{len(rows)} configurations are proven; {total} deleted waits: {total - listed} are rejected, {listed} are redundant; "
              f"{mutants} mutants of {len(moved)} configurations without collectives or with accesses past the end are rejected")
        return 1 if tests.failures else 0


if __name__ == "__main__":
    sys.exit(main())
