#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs what nvcc has compiled, on the CPU: links test programs of a release build with CUDA against the stand-ins for
CUDA, cuBLASLt, cuDNN and NCCL (tests/standins) and an interpreter of PTX in place of the CUDA runtime, and runs them.

usage: tests/ptx/run.py BUILD [PROGRAM[=FILTER]...]    BUILD: a build folder by ninja; FILTER: of gtest
       tests/ptx/run.py BUILD --link PROGRAM...        only links them, in BUILD/ptx/bin

The interpreter checks what a GPU leaves unchecked. On stderr, with kernel, block, thread and source line:
  global memory   outside all allocations and blocks of the pools, in a block to which no parameter of the kernel points,
                  freed, misaligned, before griddepcontrol.wait, of a GPU without peer access
  shared memory   out of range, misaligned, read before it is written, races between barriers
  threads         barriers reached in different places, shuffles from absent lanes, an end without griddepcontrol.wait
  launches        beyond CUDA's limits or the kernel's own, division by zero
With VITRINE_PTX_GLOBAL_RACES=1 also races in global memory within a launch; VITRINE_PTX_ORDER and
VITRINE_PTX_APPROXIMATE: see findings.h. What the interpreter does not support ends the program. It runs PTX, not SASS:
mistakes of ptxas and weak memory order between blocks do not show.

Prints how many kernels and instructions ran. Without PROGRAMs, the programs of the check run, and a kernel that none of
them runs fails it. So do a finding and a planted mistake that is not found.
"""
import collections
import concurrent.futures
import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
POOL = ["_ZN7vitrine4Pool8allocateElNS_8CategoryERNS_6StreamESt17basic_string_viewIcSt11char_traitsIcEE",
        "_ZN7vitrine4Pool4freeERKNS0_5BlockE"]
# The programs of the check, the longest first: what they take, and what is set for them.
PROGRAMS = [("test_cuda_graph=-*vgg16*", {}), ("test_kernels_light", {"VITRINE_PTX_GLOBAL_RACES": "1"}), ("test_kernels_heavy", {"VITRINE_PTX_ORDER": "7"}), ("test_collectives", {}),
            ("test_kernels_light=*Image*:*Pool*:*pool*:*Dropout*:*Gather*:*Form*:*transpose*:*add_positions*", {"VITRINE_WIDE_INDICES": "1"}),
            ("test_kernels_heavy=*Form*", {"VITRINE_WIDE_INDICES": "1"}), ("test_engine=*EngineEquals*:*Average*:*Freeze*", {}),
            ("test_mixed_precision", {})]
# Planted mistakes in planted.cu, and what must be found; "": nothing.
PLANTED = {"fine": "", "no_barrier": "race in shared memory", "uninitialised": "read of uninitialised shared memory",
           "divergent_barrier": "barrier divergence", "no_wait": "before griddepcontrol.wait", "blocks_race": "race in global memory",
           "beyond": "beyond an allocation", "misaligned": "misaligned write", "beyond_shared": "of shared memory",
           "lost_lanes": "deadlock", "other_block": "in a pool where no parameter points"}


class Linker:
    def __init__(self, build):
        self.build = os.path.realpath(build)
        self.out = os.path.join(self.build, "ptx")
        cache = open(os.path.join(self.build, "CMakeCache.txt")).read()
        value = lambda name: re.search(rf"^{name}:\w+=(.*)$", cache, re.M).group(1)
        self.nvcc = value("CMAKE_CUDA_COMPILER")
        self.include = [f"-I{ROOT}", f"-I{self.build}/include", "-DNDEBUG"]
        for name in ("CUBLASLT_INCLUDE_DIR", "CUDNN_INCLUDE_DIR", "NCCL_INCLUDE_DIR"):
            self.include += ["-isystem", value(name)]
        self.include += ["-isystem", os.path.join(os.path.dirname(os.path.dirname(self.nvcc)), "include")]
        os.makedirs(os.path.join(self.out, "bin"), exist_ok=True)

    def compile(self):
        """The interpreter, the stand-ins, and the files that open NVIDIA's libraries, which take the stand-ins."""
        flags = ["g++", "-std=c++20", "-march=x86-64-v3", "-fPIC", "-w",
                 '-DVITRINE_STANDIN_DEVICE_HEADER="tests/standins/device_interface.h"', "-DVITRINE_HAVE_CUDA"] + self.include
        sources = sorted(glob.glob(f"{HERE}/*.cpp"))
        sources += [s for s in sorted(glob.glob(f"{ROOT}/tests/standins/*.cpp"))
                    if not s.endswith(("_test.cpp", "_main.cpp", "/no_cudnn.cpp"))]
        self.libraries = {s: layer for layer, pattern in (("runtime", "runtime/cuda/nccl_library.cpp"), ("kernels", "kernels/cuda/*_library.cpp"))
                          for s in glob.glob(f"{ROOT}/{pattern}")}
        jobs, self.objects = [], {}
        for source in sources + list(self.libraries):
            target = os.path.join(self.out, os.path.relpath(source, ROOT).replace("/", "_")[:-4] + ".o")
            self.objects[source] = target
            slow = source.startswith(HERE) or source.endswith(("arithmetic.cpp", "convolution.cpp"))
            jobs.append(flags + (["-O3", "-ffp-contract=off", "-fno-math-errno"] if slow else ["-O1"]) + ["-c", source, "-o", target])
        jobs.append([self.nvcc, "-std=c++20", "-O3", "-lineinfo", "-gencode", "arch=compute_90,code=compute_90", "-Xcompiler=-fPIC"] +
                    self.include + ["-c", f"{HERE}/planted.cu", "-o", os.path.join(self.out, "planted.o")])
        launcher = ["ccache"] if shutil.which("ccache") else []
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda job: call(launcher + job), jobs))

    def link(self, program, own_objects=None):
        """A program of the build with other libraries; own_objects: instead of those of the program."""
        lines = call(["ninja", "-t", "commands", f"bin/{program}"], cwd=self.build).splitlines()
        words = shlex.split(lines[-1].split("&&")[1])
        words = [w for w in words if not re.search(r"libcudart_static|libcudadevrt|-lcudart|-lcudadevrt|libcudnn\.so|libnccl\.so|libcuda\.so", w)]
        at = words.index("-o")
        name = program if own_objects is None else "planted"
        words[at + 1] = os.path.join(self.out, "bin", name)
        if own_objects is not None:
            words = [w for w in words if not (w.endswith(".o") and f"{program}.dir" in w) and "libgtest" not in w]
        at = words.index("-o")
        kernels = any("libvitrine_kernels" in w for w in words)
        nccl = any("libvitrine_communication" in w for w in words)
        added = [o for s, o in self.objects.items() if {"kernels": kernels, "runtime": nccl}.get(self.libraries.get(s), True)]
        words[at:at] = (own_objects or []) + added + [f"-Wl,--wrap={w}" for w in POOL]
        call(words + ["-ldl"], cwd=self.build)
        return words[words.index("-o") + 1]


def call(command, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"ptx: {' '.join(command)}\n{done.stdout}")
    return done.stdout


def check_planted(program):
    """The self-test: every planted mistake is found, and nothing in correct code."""
    wrong = []
    for name, expected in PLANTED.items():
        done = subprocess.run([program, name], stderr=subprocess.PIPE, text=True, env={**os.environ, "VITRINE_PTX_GLOBAL_RACES": "1"})
        found = [line for line in done.stderr.splitlines() if line.startswith("ptx: ")]
        if any(expected in line for line in found) != bool(expected) or (not expected and found):
            wrong.append(f"{name}: expected {expected or 'nothing'!r}, found {found or done.stderr[-300:]}")
    print(f"planted mistakes: {len(PLANTED) - len(wrong)} of {len(PLANTED)} as expected")
    return wrong


def run(linker, selection, settings, log):
    """Runs a program. Returns its failures."""
    program, _, filter_text = selection.partition("=")
    began = time.time()
    done = subprocess.run([os.path.join(linker.out, "bin", program), f"--gtest_filter={filter_text or '*'}"], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, cwd=linker.out, errors="replace",
                          env={**os.environ, "VITRINE_TEST_DEVICES": "cuda", "VITRINE_PTX_LOG": log, "OMP_WAIT_POLICY": "passive", **settings})
    with open(os.path.join(log, "_".join([program, *settings]) + ".txt"), "w") as file:
        file.write(done.stdout)
    passed, skipped = (len(re.findall(pattern, done.stdout, re.M)) for pattern in (r"^\[       OK \]", r"^\[  SKIPPED \].*ms\)$"))
    failed = re.findall(r"^\[  FAILED  \] (.*) \(\d+ ms\)$", done.stdout, re.M)
    print(f"{' '.join([program, *(f'{k}={v}' for k, v in settings.items())])}: {passed} passed, {len(failed)} failed, {skipped} skipped, exit {done.returncode}, {time.time() - began:.0f} s", flush=True)
    return [f"{program}: {name} failed" for name in failed] or ([f"{program}: exit status {done.returncode}\n{done.stdout[-2000:]}"] if done.returncode else [])


def read_log(folder):
    """Counts of each kernel and which of its instructions ran, by name; kernels that never ran; findings."""
    runs, masks, names, findings = collections.defaultdict(lambda: [0] * 3), {}, set(), collections.Counter()
    for path in glob.glob(folder + "/*.log"):
        for line in open(path):
            kind, *fields = line.rstrip("\n").split("\t")
            if kind == "F":
                findings[fields[1]] += int(fields[0])
                continue
            name, *counts, mask = fields
            names.add(name)
            if mask:
                runs[name] = [a + int(b) for a, b in zip(runs[name], counts)]
                masks[name] = "".join(map(max, masks.get(name, mask), mask))
    return runs, masks, names - set(runs), findings


def coverage(folder, complete):
    """Prints what ran. Returns what is wrong: findings and, if the whole check ran, kernels that did not run."""
    runs, masks, idle, findings = read_log(folder)
    launches, instructions, ns = (sum(counts[i] for counts in runs.values()) for i in range(3))
    ran, code = sum(m.count("1") for m in masks.values()), sum(map(len, masks.values()))
    print(f"{len(runs)} of {len(runs) + len(idle)} kernels ran, {launches:,} launches; {ran:,} of their {code:,} instructions "
          f"({100 * ran / max(1, code):.1f} %); {instructions * 1e3 / max(1, ns):.0f} million instructions of threads per second")
    with open(os.path.join(folder, "coverage.txt"), "w") as file:
        file.writelines(f"{100 * m.count('1') / len(m):5.1f} % of {len(m)}: {name}\n" for name, m in sorted(masks.items()))
        file.writelines(f"never ran: {name}\n" for name in sorted(idle))
    wrong = [f"found {count} times: {what}" for what, count in findings.most_common()]
    return wrong + [f"no test runs the kernel {name}" for name in sorted(idle)] * complete


def main(arguments):
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.exit(__doc__)
    linker = Linker(arguments[0])
    linker.compile()
    if arguments[1:2] == ["--link"]:
        for program in arguments[2:]:
            print(linker.link(program))
        return 0
    selections = [(s, {}) for s in arguments[1:]] or PROGRAMS
    for program in {s.split("=")[0] for s, _ in selections}:
        linker.link(program)
    planted = linker.link("test_kernels_light", [os.path.join(linker.out, "planted.o")])
    log = os.path.join(linker.out, "log")
    shutil.rmtree(log, ignore_errors=True)
    os.makedirs(log)
    wrong = check_planted(planted)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for failures in pool.map(lambda s: run(linker, *s, log), selections):
            wrong += failures
    wrong += coverage(log, len(arguments) == 1)
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
