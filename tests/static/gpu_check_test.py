#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/gpu_check on programs that stand in for the GPU tests: they pass, fail, crash, hang, spoil the GPU's context, and end in the middle of a JSON file.

usage: gpu_check_test.py GPU_CHECK
"""
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

GPU_CHECK = sys.argv.pop()

# A program that understands gtest's flag file and knows how each of its tests ends.
PROGRAM = """#!{python}
import os, signal, subprocess, sys, time
tests = {tests!r}
flags = [a.split("=", 1)[1] for a in sys.argv if a.startswith("--gtest_flagfile=")][0]
text = open(flags).read().strip().split("=", 1)[1]
left_out = set(text.split("-", 1)[1].split(":")) if "-" in text else set()
open({counter!r}, "a").write("x")
spoiled, failed = False, False
for name, ending in tests:
    if name in left_out:
        continue
    print("[ RUN      ]", name, flush=True)
    if ending == "hang":
        child = subprocess.Popen(["sleep", "600"])
        open({children!r}, "a").write(str(child.pid) + "\\n")
        time.sleep(600)
    if ending == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if ending == "spoil":
        spoiled = True
        print("CUDA: an illegal memory access was encountered", flush=True)
    if spoiled or ending == "fail":
        failed = True
        print("expected 1, but 2", flush=True)
        print("[  FAILED  ]", name, "(0 ms)", flush=True)
    elif ending == "skip":
        print("[  SKIPPED ]", name, "(0 ms)", flush=True)
    else:
        print("[       OK ]", name, "(0 ms)", flush=True)
sys.exit(1 if failed else 0)
"""

WHOLE = '{\n  "context": {},\n  "benchmarks": [\n    {\n      "name": "a",\n      "real_time": 1.0\n    },\n    {\n      "name": "b",\n      "real_time": 2.0\n    }\n  ]\n}\n'


def ended(pid):
    """Also of a process that was not waited for."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


class GpuCheckTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.bin = os.path.join(self.folder.name, "bin")
        self.children = os.path.join(self.folder.name, "children")
        self.out = os.path.join(self.folder.name, "out.json")
        os.mkdir(self.bin)

    def tearDown(self):
        self.folder.cleanup()

    def write(self, name, text):
        path = os.path.join(self.bin, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)

    def program(self, name, tests):
        self.write(name, PROGRAM.format(python=sys.executable, tests=tests, counter=os.path.join(self.folder.name, name + ".runs"), children=self.children))

    def runs(self, name):
        with open(os.path.join(self.folder.name, name + ".runs"), encoding="utf-8") as file:
            return len(file.read())

    def check(self, *flags):
        run = subprocess.run([sys.executable, GPU_CHECK, "--without-gpu", "--build", self.folder.name, "--pack", os.path.join(self.folder.name, "no-pack"), "--out", self.out, *flags],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False)
        with open(self.out, encoding="utf-8") as file:
            return run, json.load(file)

    def kernels(self, *flags, **programs):
        for name in ("test_kernels_light", "test_kernels_heavy", "test_layers", "test_sequential"):
            self.program(name, programs.get(name, [("A.passes", "pass")]))
        return self.check("--stages", "kernels", *flags)

    def test_counts_what_passes(self):
        run, report = self.kernels(test_layers=[("A.a", "pass"), ("A.b", "skip"), ("B.c", "pass")])
        self.assertEqual(report["kernels"]["programs"]["test_layers"], {**report["kernels"]["programs"]["test_layers"], "ok": True, "passed": 2, "skipped": 1, "failed": {}})
        self.assertTrue(report["kernels"]["ok"])
        self.assertIn("test_layers: 2 passed, 1 skipped, 0 failed", run.stdout)
        self.assertEqual(run.returncode, 1)  # there is no GPU, so the stage `facts` fails

    def test_names_what_fails(self):
        run, report = self.kernels(test_layers=[("A.a", "pass"), ("A.b", "fail"), ("A.c", "pass")])
        result = report["kernels"]["programs"]["test_layers"]
        self.assertEqual((result["passed"], list(result["failed"]), result["processes"]), (2, ["A.b"], 1))
        self.assertEqual(result["failed"]["A.b"]["verdict"], "failed")
        self.assertIn("expected 1, but 2", result["failed"]["A.b"]["output"])
        self.assertIn("A.b: failed", run.stdout)
        self.assertFalse(report["kernels"]["ok"])

    def test_goes_on_after_a_crash(self):
        _, report = self.kernels(test_layers=[("A.a", "pass"), ("A.b", "crash"), ("A.c", "pass")])
        result = report["kernels"]["programs"]["test_layers"]
        self.assertEqual((result["passed"], list(result["failed"]), self.runs("test_layers")), (2, ["A.b"], 2))
        self.assertIn("-11", result["failed"]["A.b"]["verdict"])

    def test_tests_after_a_spoiled_context_run_again(self):
        _, report = self.kernels(test_layers=[("A.a", "pass"), ("A.b", "spoil"), ("A.c", "pass"), ("A.d", "pass")])
        result = report["kernels"]["programs"]["test_layers"]
        self.assertEqual((result["passed"], list(result["failed"]), self.runs("test_layers")), (3, ["A.b"], 2))

    def test_kills_what_hangs_with_its_children(self):
        begin = time.monotonic()
        _, report = self.kernels("--seconds", "56", test_kernels_light=[("A.a", "pass"), ("A.b", "hang")])
        self.assertLess(time.monotonic() - begin, 60)
        programs = report["kernels"]["programs"]
        self.assertEqual(programs["test_kernels_light"]["failed"]["A.b"]["verdict"], "timed out")
        with open(self.children, encoding="utf-8") as file:
            for pid in file.read().split():
                self.assertTrue(ended(pid), pid)

    def test_a_missing_program_is_named(self):
        self.program("test_layers", [("A.a", "pass")])
        _, report = self.check("--stages", "kernels")
        self.assertIn("test_kernels_light", report["kernels"]["programs"]["test_kernels_light"]["note"])
        self.assertTrue(report["kernels"]["programs"]["test_layers"]["ok"])

    def test_keeps_the_rows_of_a_truncated_benchmark(self):
        for text, rows in ((WHOLE, 2), (WHOLE[: WHOLE.index('"name": "b"')], 1)):
            self.write("bench_step", f"#!{sys.executable}\nimport sys\nopen([a.split('=')[1] for a in sys.argv if 'benchmark_out=' in a][0], 'w').write({text!r})\n")
            _, report = self.check("--stages", "steps")
            self.assertEqual(len(report["steps"]["rows"]), rows)
            self.assertEqual(report["steps"]["ok"], rows == 2)

    def test_writes_logs_and_keeps_earlier_stages(self):
        self.kernels()
        _, report = self.check("--stages", "steps")
        self.assertTrue(report["kernels"]["ok"])
        self.assertFalse(report["steps"]["ok"])
        with tarfile.open(self.out[: -len(".json")] + "-logs.tar.gz") as archive:
            self.assertIn("gpu-logs", archive.getnames())

    def test_without_a_gpu_it_says_so(self):
        run = subprocess.run([sys.executable, GPU_CHECK, "--out", self.out], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
                             env={**os.environ, "PATH": "/usr/bin:/bin"})
        if "lists no GPU" in run.stderr:
            self.assertEqual(run.returncode, 1)
            self.assertFalse(os.path.exists(self.out))
        else:
            self.skipTest("there is a GPU here")


if __name__ == "__main__":
    unittest.main()
