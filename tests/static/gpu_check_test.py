#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/gpu_check on programs that stand in for the GPU tests and the tools: tests pass, fail, crash, hang, take too long, spoil the GPU's context, and end in
the middle of a JSON file.

usage: gpu_check_test.py GPU_CHECK
"""
import datetime
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

GPU_CHECK = sys.argv.pop()
TOOLS = os.path.dirname(os.path.abspath(GPU_CHECK))
sys.dont_write_bytecode = True
sys.path.insert(0, TOOLS)
import gpu_pack  # noqa: E402
import gpu_programs  # noqa: E402

# A program that understands gtest's flag file and knows how each of its tests ends.
PROGRAM = """#!{python}
import os, signal, subprocess, sys, time
tests = {tests!r}
chosen = [a.split("=", 1)[1] for a in sys.argv if a.startswith("--gtest_filter=") and not a.endswith("=*")]
if chosen:
    tests = [(name, "pass" if ending.startswith("needs ") and os.environ.get(ending[6:].split("=")[0]) == ending.split("=")[1] else ending)
             for name, ending in tests if name == chosen[0]]
    sys.argv.append("--gtest_flagfile=/dev/null")
if "--gtest_list_tests" in sys.argv:
    for name, _ in tests:
        print(name.split(".")[0] + ".\\n  " + name.split(".")[1])
    sys.exit(0)
flags = [a.split("=", 1)[1] for a in sys.argv if a.startswith("--gtest_flagfile=")][0]
text = open(flags).read().strip().partition("=")[2]
left_out = set(text.split("-", 1)[1].split(":")) if "-" in text else set()
open({counter!r}, "a").write("" if chosen else "x")
spoiled, failed = False, False
for name, ending in tests:
    if name in left_out:
        continue
    print("[ RUN      ]", name, flush=True)
    if ending == "hang":
        child = subprocess.Popen(["sleep", "600"])
        open({children!r}, "a").write(str(child.pid) + "\\n")
        time.sleep(600)
    while ending == "work":
        print("working", flush=True)
        time.sleep(0.1)
    if ending == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if ending == "spoil":
        spoiled = True
        print("CUDA: an illegal memory access was encountered", flush=True)
    if spoiled or ending == "fail" or ending.startswith("needs "):
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
        self.build = os.path.join(self.folder.name, "build")
        self.bin = os.path.join(self.build, "bin")
        self.children = os.path.join(self.folder.name, "children")
        self.out = os.path.join(self.folder.name, "results", "no-gpu-" + datetime.date.today().isoformat() + ".json")
        os.makedirs(self.bin)

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

    def command(self, *flags, script=GPU_CHECK):
        return [sys.executable, script, "--without-gpu", "--build", self.build, "--pack", os.path.join(self.folder.name, "no-pack"), "--out", os.path.dirname(self.out), *flags]

    def check(self, *flags, script=GPU_CHECK, tools=None):
        environment = {**os.environ, **({"PATH": tools + ":" + os.environ["PATH"]} if tools else {})}
        run = subprocess.run(self.command(*flags, script=script), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, env=environment, check=False)
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

    def test_a_failed_test_runs_again_with_what_can_be_turned_off(self):
        run, report = self.kernels(test_layers=[("A.a", "needs VITRINE_CUDA_GRAPHS=off"), ("A.b", "needs CUDA_LAUNCH_BLOCKING=1"), ("A.c", "fail"), ("A.d", "pass")])
        failed = report["kernels"]["programs"]["test_layers"]["failed"]
        none = "with none of: no switch, VITRINE_OVERLAP_LAUNCHES=off, VITRINE_CUDA_GRAPHS=off, VITRINE_CUDNN=off, CUDA_LAUNCH_BLOCKING=1"
        self.assertEqual({test: problem["passes"] for test, problem in failed.items()}, {"A.a": "with VITRINE_CUDA_GRAPHS=off", "A.b": "with CUDA_LAUNCH_BLOCKING=1", "A.c": none})
        self.assertIn("A.a: failed; again, it passes with VITRINE_CUDA_GRAPHS=off", run.stdout)

    def test_blocking_launches_are_not_tried_where_nccl_hangs(self):
        blocking = "CUDA_LAUNCH_BLOCKING=1"
        self.assertNotIn(blocking, gpu_programs.switches_of("cuda", 2))
        self.assertEqual(gpu_programs.switches_of("cuda", 1), gpu_programs.switches_of("cuda:0", 8))
        self.assertIn(blocking, gpu_programs.switches_of("cuda", 1))

    def test_results_go_to_the_folder_of_the_environment(self):
        folder = os.path.join(self.folder.name, "elsewhere")
        self.program("test_layers", [("A.a", "pass")])
        command = [argument for argument in self.command("--stages", "kernels") if argument not in ("--out", os.path.dirname(self.out))]
        subprocess.run(command, stdout=subprocess.DEVNULL, env={**os.environ, "OUT": folder}, timeout=60, check=False)
        self.assertIn(os.path.basename(self.out), os.listdir(folder))

    def test_the_profile_has_operations_plans_and_kernels(self):
        spans = [{"ph": "X", "dur": 2.0, "args": {"operation": "relu", "layer": "a", "bytes": 4000}}, {"ph": "X", "dur": 6.0, "args": {"operation": "relu", "layer": "a", "bytes": 4000}},
                 {"ph": "X", "dur": 5.0, "args": {"operation": "zero"}}, {"ph": "X", "dur": 99.0, "args": {"phase": "wait"}}, {"ph": "M", "args": {}}]
        self.write("vitrine", f"#!{sys.executable}\nimport json, sys\na = sys.argv\nif '--trace' in a: json.dump({{'traceEvents': {spans!r}}}, open(a[a.index('--trace') + 1], 'w'))\n"
                              "if '--autotune' in a: json.dump({'plans': 3}, open(a[a.index('--autotune') + 1], 'w'))\n")
        self.write("bench_kernels", f"#!{sys.executable}\nimport sys\nopen([a.split('=')[1] for a in sys.argv if 'benchmark_out=' in a][0], 'w').write({WHOLE!r})\n")
        run, report = self.check("--stages", "profile")
        stage = report["profile"]
        self.assertEqual((stage["ok"], stage["autotune"], len(stage["kernels"])), (True, {"plans": 3}, 2))
        self.assertEqual(stage["operations"], [{"operation": "a relu", "calls": 2, "microseconds": 8.0, "gb_per_s": 1.0}, {"operation": "zero", "calls": 1, "microseconds": 5.0, "gb_per_s": 0.0}])
        self.assertIn("a relu", run.stdout)
        self.write("bench_kernels", "#!/bin/sh\necho broken; exit 3\n")
        _, report = self.check("--stages", "profile")
        self.assertEqual((report["profile"]["ok"], report["profile"]["problems"], report["profile"]["autotune"]), (False, {"kernels": "ended with 3: broken"}, {"plans": 3}))

    def test_a_feature_that_the_probe_turned_off_is_a_failure(self):
        for off, ok in (("no GPU has proven it", True), ("the probe of cuda:0 failed: cudaErrorUnknown", False)):
            self.write("vitrine", "#!/bin/sh\necho '" + json.dumps({"cuda": {"features": {"A": off, "B": ""}}}) + "'\n")
            for name in ("test_cuda_device", "test_nccl_one_rank", "test_cudnn_plans"):
                self.program(name, [("A.a", "pass")])
            run, report = self.check("--stages", "probe")
            self.assertEqual((report["probe"]["ok"], report["probe"]["turned_off"]), (ok, [] if ok else ["A"]))
            self.assertIn("A: off: " + off, run.stdout)

    def test_goes_on_after_a_crash(self):
        _, report = self.kernels(test_layers=[("A.a", "pass"), ("A.b", "crash"), ("A.c", "pass")])
        result = report["kernels"]["programs"]["test_layers"]
        self.assertEqual((result["passed"], list(result["failed"]), self.runs("test_layers")), (2, ["A.b"], 2))
        self.assertIn("-11", result["failed"]["A.b"]["verdict"])

    def test_tests_after_a_spoiled_context_run_again(self):
        _, report = self.kernels(test_layers=[("A.a", "pass"), ("A.b", "spoil"), ("A.c", "pass"), ("A.d", "pass")])
        result = report["kernels"]["programs"]["test_layers"]
        self.assertEqual((result["passed"], list(result["failed"]), self.runs("test_layers")), (3, ["A.b"], 2))

    def assert_children_ended(self):
        with open(self.children, encoding="utf-8") as file:
            pids = file.read().split()
        self.assertTrue(pids)
        for pid in pids:
            self.assertTrue(ended(pid), pid)

    def test_kills_what_hangs_with_its_children(self):
        begin = time.monotonic()
        _, report = self.kernels("--seconds", "13", test_kernels_light=[("A.a", "pass"), ("A.b", "hang")])
        self.assertLess(time.monotonic() - begin, 30)
        programs = report["kernels"]["programs"]
        self.assertIn("hung: no output for", programs["test_kernels_light"]["failed"]["A.b"]["verdict"])
        self.assertEqual(programs["test_kernels_light"]["passed"], 1)
        self.assertIn("test_sequential", report["kernels"]["incomplete"])
        self.assert_children_ended()

    def run_tests(self, tests, seconds, **more):
        self.program("some", tests)
        work = gpu_programs.Work(self.folder.name, os.path.join(self.folder.name, "logs"))
        work.deadline = time.monotonic() + seconds
        return gpu_programs.run_tests(work, "some", os.path.join(self.bin, "some"), seconds, {}, **more)

    def test_goes_on_after_a_hang(self):
        result = self.run_tests([("A.a", "pass"), ("A.b", "hang"), ("A.c", "pass")], 60, quiet_seconds=1.0)
        self.assertEqual((result["passed"], list(result["failed"]), self.runs("some")), (2, ["A.b"], 2))
        self.assertIn("hung", result["failed"]["A.b"]["verdict"])
        self.assertNotIn("incomplete", result)
        self.assert_children_ended()

    def test_a_test_that_works_when_the_time_ends_has_not_failed(self):
        result = self.run_tests([("A.a", "pass"), ("A.b", "work"), ("B.c", "pass")], 3)
        self.assertEqual((result["ok"], result["passed"], result["failed"], result["not_reached"]), (True, 1, {}, ["A.b", "B.c"]))
        self.assertIn("out of time while A.b ran", result["incomplete"])

    def test_an_incomplete_stage_is_called_so(self):
        run, report = self.kernels("--seconds", "13", test_layers=[("A.a", "pass"), ("A.b", "work")])
        self.assertTrue(report["kernels"]["ok"])
        self.assertEqual(report["kernels"]["incomplete"], ["test_layers", "test_sequential"])
        self.assertIn("kernels INCOMPLETE", run.stdout)

    def test_only_skipped_tests_are_no_success(self):
        result = self.run_tests([("A.a", "skip")], 20)
        self.assertFalse(result["ok"])
        self.assertIn("every test was skipped", result["note"])

    def test_ends_with_all_that_it_started(self):
        self.program("test_kernels_light", [("A.a", "hang")])
        check = subprocess.Popen(self.command("--stages", "kernels"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(300):
            if os.path.exists(self.children) and os.path.getsize(self.children) > 0:
                break
            time.sleep(0.1)
        check.send_signal(signal.SIGTERM)
        self.assertEqual(check.wait(timeout=20), 128 + signal.SIGTERM)
        self.assert_children_ended()

    def test_writes_after_every_program(self):
        copy = os.path.join(self.folder.name, "copy.json")
        for name in ("test_kernels_light", "test_layers", "test_sequential"):
            self.program(name, [("A.a", "pass")])
        self.write("test_kernels_heavy", f"#!/bin/sh\ncp {self.out} {copy}\necho '[ RUN      ] A.a'\necho '[       OK ] A.a (0 ms)'\n")
        self.check("--stages", "kernels")
        with open(copy, encoding="utf-8") as file:
            self.assertEqual(json.load(file)["kernels"]["programs"]["test_kernels_light"]["passed"], 1)

    def test_a_missing_program_is_named(self):
        self.program("test_layers", [("A.a", "pass")])
        _, report = self.check("--stages", "kernels")
        self.assertIn("test_kernels_light", report["kernels"]["programs"]["test_kernels_light"]["note"])
        self.assertTrue(report["kernels"]["programs"]["test_layers"]["ok"])

    def test_programs_that_the_build_does_not_have_are_left_out_and_named(self):
        for generator in ("Ninja", "Unix Makefiles"):
            with self.subTest(generator=generator):
                if not shutil.which({"Ninja": "ninja", "Unix Makefiles": "make"}[generator]):
                    self.skipTest(f"no {generator}")
                with tempfile.TemporaryDirectory() as sources:
                    with open(os.path.join(sources, "CMakeLists.txt"), "w", encoding="utf-8") as file:
                        file.write("cmake_minimum_required(VERSION 3.25)\nproject(some NONE)\nadd_custom_target(test_layers)\nadd_custom_target(test_sequential)\n")
                    for old in ("CMakeCache.txt", "CMakeFiles"):
                        subprocess.run(["rm", "-rf", os.path.join(self.build, old)], check=True)
                    subprocess.run(["cmake", "-G", generator, "-S", sources, "-B", self.build], stdout=subprocess.DEVNULL, check=True)
                    self.program("test_layers", [("A.a", "pass")])
                    run, report = self.check("--stages", "kernels")
                result = report["kernels"]
                self.assertEqual(sorted(result["left_out"]), ["test_kernels_heavy", "test_kernels_light"])
                self.assertIn("test_kernels_light: left out: no target of this build", run.stdout)
                self.assertEqual(sorted(result["programs"]), ["test_layers", "test_sequential"])
                self.assertTrue(result["programs"]["test_layers"]["ok"])
                self.assertFalse(result["programs"]["test_sequential"]["ok"])  # a target that was not built

    def fake_tool(self, name, text):
        folder = os.path.join(self.folder.name, "tools")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(os.path.join(folder, name), 0o755)
        return folder

    def test_builds_what_there_is_without_the_order_checker_the_first_stages_first(self):
        log = os.path.join(self.folder.name, "cmake.log")
        tools = self.fake_tool("cmake", f"""#!{sys.executable}
import os, sys
open({log!r}, "a").write(" ".join(sys.argv[1:]) + "\\n")
if "-S" in sys.argv:
    open(os.path.join({self.build!r}, "CMakeCache.txt"), "w")
elif sys.argv[-1] == "help":
    print("vitrine: phony\\ntest_cuda_device: phony\\ntest_layers: phony\\nbench_kernels: phony\\nbench_step: phony")
else:
    for name in sys.argv[sys.argv.index("--target") + 1 : sys.argv.index("--")]:
        open(os.path.join({self.bin!r}, name), "w")
        os.chmod(os.path.join({self.bin!r}, name), 0o755)
""")
        run, report = self.check("--stages", "build", tools=tools)
        with open(log, encoding="utf-8") as file:
            calls = file.read().splitlines()
        configure = next(call for call in calls if "-S " in call)
        self.assertIn("-DVITRINE_CHECK_ORDER=OFF", configure)
        built = [call.split("--target ")[1].split(" --")[0] for call in calls if "--target" in call and "help" not in call]
        self.assertEqual(built, ["vitrine test_cuda_device", "test_layers", "bench_kernels bench_step"])
        self.assertEqual(report["build"]["left_out"]["test_cudnn_plans"], "needs cuDNN, which this build does not have")
        self.assertEqual(report["build"]["left_out"]["test_nccl_one_rank"], "needs NCCL, which this build does not have")
        self.assertEqual((report["build"]["ok"], report["build"]["not_built"]), (True, []))
        self.assertIn("left out: test_cudnn_plans", run.stdout)

    def sanitizer(self, text, status=0, hang=False):
        """The stage memcheck on a sanitizer that prints the text."""
        self.write("test_kernels_light", "#!/bin/sh\n")
        tools = self.fake_tool("compute-sanitizer", f"""#!{sys.executable}
import sys, time
if "--help" in sys.argv:
    print("--kernel-regex")
    sys.exit(0)
if "--report-api-errors no" not in " ".join(sys.argv):
    print("========= Program hit cudaErrorNotSupported on CUDA API call\\n========= ERROR SUMMARY: 1 error")
    sys.exit(9)
print({text!r}, flush=True)
time.sleep(600 if {hang} else 0)
sys.exit({status})
""")
        _, report = self.check("--stages", "memcheck", "--seconds", "12" if hang else "60", tools=tools)
        return report["memcheck"], report["memcheck"]["test_kernels_light"]

    PASSED = "[ RUN      ] A.a\n[       OK ] A.a (1 ms)\n"
    REPORT = "========= Invalid __global__ write of size 4 bytes\n=========     at vitrine::f+0x10\n=========     by thread (0,0,0)\n"

    def test_memcheck_counts_errors(self):
        stage, result = self.sanitizer("========= COMPUTE-SANITIZER\n" + self.PASSED + "========= ERROR SUMMARY: 0 errors")
        self.assertEqual((stage["ok"], result["errors"], result["passed"]), (True, 0, 1))
        stage, result = self.sanitizer("========= COMPUTE-SANITIZER\n" + self.REPORT + self.PASSED + "========= ERROR SUMMARY: 1 error", 9)
        self.assertEqual((stage["ok"], result["errors"]), (False, 1))
        self.assertIn("Invalid __global__ write", result["reports"])

    def test_memcheck_keeps_what_it_found_before_the_time_ended(self):
        stage, result = self.sanitizer("========= COMPUTE-SANITIZER\n" + self.PASSED + "[ RUN      ] B.b\n", hang=True)
        self.assertEqual((stage["ok"], result["errors"], result["passed"], result["failed"]), (True, 0, 1, []))
        self.assertIn("out of time while B.b ran", stage["incomplete"][0])
        stage, result = self.sanitizer("========= COMPUTE-SANITIZER\n" + self.PASSED + self.REPORT + self.REPORT + "[ RUN      ] B.b\n", hang=True)
        self.assertEqual((stage["ok"], result["errors"], result["passed"]), (False, 2, 1))

    def test_memcheck_that_checks_nothing_is_no_success(self):
        for text, status in (("Error: device not supported", 1), ("", 0), (self.PASSED, 0), ("========= ERROR SUMMARY: 0 errors", 0)):
            self.assertFalse(self.sanitizer(text, status)[0]["ok"])

    def pytorch(self, report, status=0):
        """The stage pytorch with a comparison that writes this report."""
        root = os.path.join(self.folder.name, "root")
        shutil.rmtree(root, ignore_errors=True)
        os.makedirs(os.path.join(root, "tools"))
        os.makedirs(os.path.join(root, "bench"))
        for name in ("gpu_check", "gpu_pack.py", "gpu_programs.py", "gpu_rehearsal.py"):
            shutil.copy2(os.path.join(TOOLS, name), os.path.join(root, "tools"))
        with open(os.path.join(root, "bench", "compare_pytorch.py"), "w", encoding="utf-8") as file:
            file.write(f"import json, sys\nopen(sys.argv[sys.argv.index('--json') + 1], 'w').write({json.dumps(report)!r})\nprint(sys.argv)\nsys.exit({status})\n")
        run, written = self.check("--stages", "pytorch", script=os.path.join(root, "tools", "gpu_check"))
        return run, written["pytorch"]

    def test_the_comparison_names_what_it_did_not_reach_and_steps_without_graphs(self):
        with_graphs, without = {"ratio": 2.0, "cuda_graphs": {"on": True}}, {"ratio": 2.0, "cuda_graphs": {"on": False}}
        run, stage = self.pytorch({"facts": {}, "results": {"a": with_graphs}, "not_reached": []})
        self.assertTrue(stage["ok"])
        self.assertIn("'--compiled-layouts', 'channels_last'", run.stdout)
        run, stage = self.pytorch({"facts": {}, "results": {"a": with_graphs}, "not_reached": ["a: compile"]})
        self.assertEqual((stage["ok"], stage["incomplete"]), (True, ["a: compile"]))
        self.assertIn("not reached: a: compile", run.stdout)
        _, stage = self.pytorch({"facts": {}, "results": {"a": with_graphs, "b": without}, "not_reached": []})
        self.assertEqual((stage["ok"], stage["problem"]), (False, "Vitrine's steps did not run as CUDA graphs: b"))
        _, stage = self.pytorch({"facts": {}, "results": {"a": with_graphs}, "not_reached": []}, 1)
        self.assertEqual((stage["ok"], stage["results"]["a"]["ratio"]), (False, 2.0))

    def test_packed_programs_are_used_for_the_sources_that_they_were_built_from(self):
        pack, programs, root = (os.path.join(self.folder.name, name) for name in ("pack", "programs", "sources"))
        os.makedirs(os.path.join(root, "kernels"))
        os.mkdir(pack)
        for name in ("CMakeLists.txt", "kernels/a.cpp"):
            with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                file.write("first")
        self.program("vitrine", [])
        with lzma.open(os.path.join(pack, gpu_pack.ARCHIVE), "wb", filters=gpu_pack.FILTERS) as file, tarfile.open(fileobj=file, mode="w|") as archive:
            archive.add(os.path.join(self.bin, "vitrine"), arcname="vitrine")
        for name, text in (("sources", gpu_pack.digest_of_sources(root)), ("commit", "abc")):
            with open(os.path.join(pack, name), "w", encoding="utf-8") as file:
                file.write(text + "\n")
        self.assertEqual(gpu_pack.open_pack(pack, root, programs), (programs, "abc"))
        self.assertTrue(os.access(os.path.join(programs, "vitrine"), os.X_OK))
        with open(os.path.join(root, "kernels", "a.cpp"), "w", encoding="utf-8") as file:
            file.write("second")
        self.assertEqual(gpu_pack.open_pack(pack, root, programs), (None, "they were built from other sources than this tree's"))
        self.assertEqual(gpu_pack.open_pack(os.path.join(self.folder.name, "none"), root, programs), (None, None))

    def test_a_pack_without_a_library_that_a_program_needs_is_refused(self):
        pack, source = os.path.join(self.folder.name, "pack"), os.path.join(self.folder.name, "odd.c")
        libraries = os.path.join(pack, "usr", "lib", f"{os.uname().machine}-linux-gnu")
        os.makedirs(libraries)
        subprocess.run(["cc", "-shared", "-x", "c", "-", "-o", os.path.join(libraries, "libodd.so.1"), "-Wl,-soname,libodd.so.1"], input="int odd(void) { return 0; }", text=True, check=True)
        with open(source, "w", encoding="utf-8") as file:
            file.write("int odd(void); int main(void) { return odd(); }")
        subprocess.run(["cc", source, os.path.join(libraries, "libodd.so.1"), "-o", os.path.join(self.bin, "test_odd")], check=True)
        with lzma.open(os.path.join(pack, gpu_pack.ARCHIVE), "wb", filters=gpu_pack.FILTERS) as file, tarfile.open(fileobj=file, mode="w|") as archive:
            archive.add(os.path.join(self.bin, "test_odd"), arcname="test_odd")
        self.assertEqual(gpu_pack.verify_pack(pack, []), [])
        wheel = os.path.join(self.folder.name, "odd", "lib")
        os.makedirs(wheel)
        os.rename(os.path.join(libraries, "libodd.so.1"), os.path.join(wheel, "libodd.so.1"))
        self.assertEqual(gpu_pack.verify_pack(pack, [wheel]), [])
        wrong = gpu_pack.verify_pack(pack, [])
        self.assertEqual(len(wrong), 1)
        self.assertIn("libodd.so.1", wrong[0])

    def test_packed_libraries_have_the_names_that_programs_ask_for(self):
        folder = self.folder.name
        # As libbenchmark's package: a name that is neither the file's nor a shortened one.
        subprocess.run(["c++", "-shared", "-x", "c++", "-", "-o", os.path.join(folder, "libodd.so.1.7.1"), "-Wl,-soname,libodd.so.1debian"], input="", text=True, check=True)
        os.symlink("libodd.so.1debian", os.path.join(folder, "libodd.so"))
        self.assertFalse(os.path.exists(os.path.join(folder, "libodd.so")))
        gpu_pack.link_sonames(folder)
        self.assertEqual(os.readlink(os.path.join(folder, "libodd.so.1debian")), "libodd.so.1.7.1")
        self.assertTrue(os.path.exists(os.path.join(folder, "libodd.so")))

    def test_a_damaged_file_of_results_is_replaced(self):
        os.makedirs(os.path.dirname(self.out))
        with open(self.out, "w", encoding="utf-8") as file:
            file.write('{"kernels": ')
        run, report = self.kernels()
        self.assertTrue(report["kernels"]["ok"])
        self.assertIn("will be replaced", run.stdout)

    def test_keeps_the_rows_of_a_truncated_benchmark(self):
        for text, rows in ((WHOLE, 2), (WHOLE[: WHOLE.index('"name": "b"')], 1)):
            self.write("bench_step", f"#!{sys.executable}\nimport sys\nopen([a.split('=')[1] for a in sys.argv if 'benchmark_out=' in a][0], 'w').write({text!r})\n")
            _, report = self.check("--stages", "steps")
            self.assertEqual(len(report["steps"]["rows"]), rows)
            self.assertEqual(report["steps"]["ok"], rows == 2)

    def test_says_which_estimates_were_wrong(self):
        self.write("bench_step", f"#!{sys.executable}\nimport sys\nopen([a.split('=')[1] for a in sys.argv if 'benchmark_out=' in a][0], 'w').write({WHOLE!r})\n")
        path = os.path.join(self.folder.name, "estimates.json")
        lines = [{"estimate": text, "value": ["steps", "rows", name, "real_time"], "range": bounds}
                 for text, name, bounds in (("first", "^a$", [0.5, 1.5]), ("both", ".", [0.5, 1.5]), ("third", "^c$", [0, 9]))]
        with open(path, "w", encoding="utf-8") as file:
            json.dump(lines, file)
        run, report = self.check("--stages", "steps", "--expect", path)
        self.assertIn("right: first: 1, expected 0.5 to 1.5", run.stdout)
        self.assertIn("WRONG: both: 1 to 2, expected 0.5 to 1.5", run.stdout)
        self.assertIn("not measured: third, expected 0 to 9", run.stdout)
        self.assertEqual([line["verdict"] for line in report["estimates"]], ["right", "WRONG", "not measured"])
        self.assertTrue(report["steps"]["ok"])
        with open(path, "w", encoding="utf-8") as file:
            json.dump([{"estimate": "no range", "value": []}], file)
        refused = subprocess.run(self.command("--expect", path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("expected a list of", refused.stdout)
        delivered = gpu_programs.read_estimates(os.path.join(TOOLS, "..", "bench", "estimates-h100.json"))
        self.assertTrue(all(line["value"][0] in ("profile", "pytorch", "steps") for line in delivered))

    def test_writes_logs_and_keeps_earlier_stages(self):
        self.kernels()
        _, report = self.check("--stages", "steps")
        self.assertTrue(report["kernels"]["ok"])
        self.assertFalse(report["steps"]["ok"])
        with tarfile.open(self.out[: -len(".json")] + "-logs.tar.gz") as archive:
            self.assertIn("gpu-logs", archive.getnames())

    def test_without_a_gpu_it_says_so(self):
        run = subprocess.run([sys.executable, GPU_CHECK, "--out", os.path.dirname(self.out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
                             env={**os.environ, "PATH": "/usr/bin:/bin"})
        if "only `pack` can run" in run.stderr:
            self.assertEqual(run.returncode, 1)
            self.assertFalse(os.path.exists(self.out))
        else:
            self.skipTest("there is a GPU here")


if __name__ == "__main__":
    unittest.main()
