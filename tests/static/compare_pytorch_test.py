#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/compare_pytorch.py on programs that stand in for Vitrine and PyTorch, and, where PyTorch is installed, the images that its side trains on.

usage: compare_pytorch_test.py BENCH_FOLDER
"""
import contextlib
import importlib
import io
import json
import os
import sys
import tempfile
import time
import unittest
import unittest.mock

BENCH = sys.argv.pop()
sys.dont_write_bytecode = True
sys.path.insert(0, BENCH)

# Writes what it is asked, and what the JSON file holds then, to a log; "compile" hangs, fails or answers.
TORCH = """
import json, os, sys, time
for line in sys.stdin:
    request = json.loads(line)
    if "facts" in request:
        print(json.dumps({{"version": "9.9", "config": "", "gpu": "a GPU", "cudnn": 9}}), flush=True)
        continue
    written = json.load(open({json_file!r}))
    known = [(name, side) for name, result in written["results"].items() for side in result.get("samples_per_second", {{}})]
    entry = {{"pid": os.getpid(), "model": request["job"]["model"], "precision": request["job"]["precision"], "side": request["side"], "layouts": request["layouts"],
              "memory": request["memory"], "known": known}}
    open({log!r}, "a").write(json.dumps(entry) + "\\n")
    if request["side"] == "compile" and {compile!r} == "hang":
        time.sleep(600)
    if request["side"] == "compile" and {compile!r} == "die":
        sys.exit(3)
    if request["side"] == "compile" and {compile!r} == "fail":
        print(json.dumps({{"error": "no compiler"}}), flush=True)
        continue
    figure = {{"eager": 0.5, "tuned": 0.25, "cuda-graph": 0.15, "compile": 0.2, "reduce-overhead": 0.1}}[request["side"]]
    print(json.dumps({{"bytes" if request["memory"] else "seconds": {{layout: figure + 0.01 * (layout == "contiguous") for layout in request["layouts"]}}}}), flush=True)
"""

VITRINE = """#!{python}
import json, sys
if sys.argv[1] == "info":
    print(json.dumps({{"version": "1", "libraries": {{}}}}))
else:
    open({log!r}, "a").write(json.dumps({{"vitrine": sys.argv[1:]}}) + "\\n")
    device = {{"peak_bytes": 1000, "peak_bytes_by_category": {{"dataset": 400}}}}
    graphs = {{"state": {state!r}, "launched": {launched}, "issued_first_uses": 4}}
    print(json.dumps({{"epochs": [{{"samples_per_second": 1.0}}, {{"samples_per_second": 2000.0}}], "devices": [device], "cuda_graphs": graphs}}))
"""


class ComparePytorchTest(unittest.TestCase):
    def setUp(self):
        self.module = importlib.import_module("compare_pytorch")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.log, self.json_file, self.torch, self.vitrine = (os.path.join(folder.name, name) for name in ("log", "out.json", "torch.py", "vitrine"))

    def compare(self, *flags, compiling="answer", state="after two steps of a shape", launched=1 << 30):
        """(exit status, printed, JSON, log)."""
        with open(self.torch, "w", encoding="utf-8") as file:
            file.write(TORCH.format(log=self.log, json_file=self.json_file, compile=compiling))
        with open(self.vitrine, "w", encoding="utf-8") as file:
            file.write(VITRINE.format(python=sys.executable, log=self.log, state=state, launched=launched))
        os.chmod(self.vitrine, 0o755)
        open(self.log, "w", encoding="utf-8").close()
        arguments = ["compare_pytorch.py", "--device", "cuda", "--vitrine", self.vitrine, "--json", self.json_file, "--jobs", "small-cnn-b128,alexnet-b512-fp16", *flags]
        printed = io.StringIO()
        patches = (unittest.mock.patch.object(self.module, "TRAIN_PYTORCH", self.torch), unittest.mock.patch.object(self.module, "find_python", lambda: sys.executable),
                   unittest.mock.patch.object(sys, "argv", arguments), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed))
        with contextlib.ExitStack() as stack:
            for patch in patches:
                stack.enter_context(patch)
            status = self.module.main()
        with open(self.json_file, encoding="utf-8") as file, open(self.log, encoding="utf-8") as log:
            return status, printed.getvalue(), json.load(file), [json.loads(line) for line in log]

    def test_what_compiles_comes_last_and_in_the_layouts_that_were_asked_for(self):
        status, _, report, log = self.compare("--rounds", "1", "--compiled-layouts", "channels_last")
        sides = [(entry["model"], entry["side"]) for entry in log if "side" in entry and not entry["memory"]]
        self.assertEqual(sides, [("small-cnn", "eager"), ("small-cnn", "tuned"), ("small-cnn", "cuda-graph"), ("alexnet", "eager"), ("alexnet", "tuned"), ("alexnet", "cuda-graph"),
                                 ("small-cnn", "compile"), ("small-cnn", "reduce-overhead"), ("alexnet", "compile"), ("alexnet", "reduce-overhead")])
        last_of_vitrine = max(number for number, entry in enumerate(log) if "vitrine" in entry)
        self.assertLess(last_of_vitrine, min(number for number, entry in enumerate(log) if entry.get("side") == "compile"))
        self.assertEqual({tuple(entry["layouts"]) for entry in log if entry.get("side") == "compile"}, {("channels_last",)})
        self.assertEqual({len(entry["layouts"]) for entry in log if entry.get("side") == "tuned"}, {2})
        self.assertEqual(len({entry["pid"] for entry in log if "pid" in entry}), 1)  # PyTorch starts once
        self.assertEqual((status, report["not_reached"]), (0, []))
        self.assertAlmostEqual(report["results"]["small-cnn-b128"]["ratio"], 2000 / (128 / 0.1))

    def test_every_side_is_written_at_once(self):
        _, _, _, log = self.compare("--rounds", "1")
        asked = [entry for entry in log if "side" in entry and not entry["memory"]]
        self.assertEqual([len(entry["known"]) for entry in asked], [0, 1, 2, 4, 5, 6, 8, 9, 10, 11])

    def test_what_there_is_no_time_for_is_named(self):
        patch = unittest.mock.patch.object(self.module, "LEAST_SECONDS", 0.2)
        patch.start()
        self.addCleanup(patch.stop)
        begin = time.monotonic()
        status, printed, report, _ = self.compare("--rounds", "1", "--seconds", "12", compiling="hang")
        self.assertLess(time.monotonic() - begin, 40)
        missing = ["small-cnn-b128: compile", "small-cnn-b128: reduce-overhead", "alexnet-b512-fp16: compile", "alexnet-b512-fp16: reduce-overhead"]
        self.assertEqual((status, report["not_reached"]), (0, missing))
        self.assertIn("not reached: small-cnn-b128: compile", printed)
        for result in report["results"].values():
            self.assertEqual(sorted(result["samples_per_second"]), ["cuda-graph", "eager", "tuned", "vitrine"])
            self.assertIn("ratio", result)

    def test_after_a_failure_the_others_are_measured(self):
        for ending, text in (("fail", "no compiler"), ("die", "ended with 3")):
            status, printed, report, _ = self.compare("--rounds", "2", compiling=ending)
            self.assertEqual(status, 1)
            for result in report["results"].values():
                self.assertIn(text, result["failed"]["compile"])
                self.assertEqual(sorted(result["samples_per_second"]), ["cuda-graph", "eager", "reduce-overhead", "tuned", "vitrine"])
                self.assertEqual((len(result["ratios"]), result["rounds"]["compile"]), (2, [None, None]))
            self.assertIn("failed: small-cnn-b128: compile: ", printed)

    def test_says_whether_steps_ran_as_graphs(self):
        _, printed, report, _ = self.compare("--rounds", "1")
        self.assertTrue(report["results"]["small-cnn-b128"]["cuda_graphs"]["on"])
        self.assertNotIn("WARNING", printed)
        _, printed, report, _ = self.compare("--rounds", "1", state="off: the order of operations is checked", launched=0)
        self.assertFalse(report["results"]["small-cnn-b128"]["cuda_graphs"]["on"])
        self.assertIn("WARNING: small-cnn-b128: Vitrine's steps did not run as CUDA graphs (off: the order of operations is checked; 0 micro-batches launched as graphs, 4 issued)", printed)

    def test_both_sides_keep_the_data_set_on_the_gpu_and_do_not_count_it(self):
        _, _, report, log = self.compare("--rounds", "1")
        for entry in log:
            if "vitrine" in entry:
                self.assertIn("--data-on-device on", " ".join(entry["vitrine"]))
                self.assertIn("--autotune", entry["vitrine"])
        self.assertEqual(report["results"]["small-cnn-b128"]["peak_bytes"]["vitrine"], 600)
        self.assertTrue(all(job["resident"] for job in self.module.gpu_jobs().values()))
        self.assertFalse(any("resident" in job for job in self.module.cpu_jobs().values()))


class GraphTest(unittest.TestCase):
    """The side "cuda-graph": a step is one launch, and reads its indices from where the capture has put them."""

    def test_a_step_copies_its_indices_and_launches_the_captured_step(self):
        module, torch = importlib.import_module("train_pytorch"), unittest.mock.MagicMock()
        training = module.Training.__new__(module.Training)
        training.torch, training.optimizer, training.graph = torch, unittest.mock.Mock(), None
        rows, issued = unittest.mock.MagicMock(), []
        training.rows = lambda: rows
        training.issue = lambda given: issued.append(given) or "loss"
        training.capture()
        self.assertEqual(issued, [rows.clone()] * (module.WARM_UP + 1))
        self.assertEqual(training.step(), "loss")
        rows.clone().copy_.assert_called_once_with(rows)
        torch.cuda.CUDAGraph().replay.assert_called_once_with()
        self.assertEqual(len(issued), module.WARM_UP + 1)  # nothing is issued any more


class InputTest(unittest.TestCase):
    """The images of PyTorch's side are those that Vitrine's resize_normalize() makes."""

    def setUp(self):
        try:
            self.torch = importlib.import_module("torch")
        except ImportError:
            self.skipTest("no PyTorch here")
        self.module = importlib.import_module("train_pytorch")

    def job(self, precision, size):
        return {"model": "small-cnn", "size": size, "optimizer": "adam", "devices": 1, "batch": 8, "steps": 3, "precision": precision, "resident": True}

    def test_images_are_gathered_normalized_and_resized(self):
        torch = self.torch
        for precision, dtype, most in (("f32", torch.float32, 2e-5), ("fp16", torch.float16, 3e-3), ("bf16", torch.bfloat16, 3e-2)):
            for size in (32, 45):
                for layout in self.module.LAYOUTS:
                    with self.subTest(precision=precision, size=size, layout=layout):
                        data = self.module.make_resident_images(torch, self.job(precision, size), layout)
                        rows = torch.randperm(24)[:8]
                        images, labels = data(rows)
                        stored = data.images[rows].permute(0, 3, 1, 2) if layout == "channels_last" else data.images[rows]
                        expected = torch.nn.functional.interpolate(stored.double() / 255, size=(size, size), mode="bilinear", align_corners=False)
                        expected = (expected - 0.5) / 0.25
                        self.assertEqual((images.dtype, images.shape), (dtype, (8, 3, size, size)))
                        self.assertTrue(images.is_contiguous(memory_format=self.module.memory_format(torch, layout)))
                        self.assertLess((images.double() - expected).abs().max().item(), most)
                        self.assertTrue(torch.equal(labels, data.labels[rows]))

    def test_an_epoch_uses_every_image_once(self):
        torch = self.torch
        training = self.module.Training(torch, self.job("f32", 32), "contiguous", "eager")
        for _ in range(2):
            self.assertEqual(sorted(torch.cat([training.rows() for _ in range(3)]).tolist()), list(range(24)))
        training.rows()
        training.begin_epoch()
        self.assertEqual(sorted(torch.cat([training.rows() for _ in range(3)]).tolist()), list(range(24)))

    def test_steps_train(self):
        torch = self.torch
        torch.manual_seed(0)
        training = self.module.Training(torch, {**self.job("f32", 32), "steps": 1}, "channels_last", "eager")
        for group in training.optimizer.param_groups:
            group["lr"] = 1e-3
        losses = [training.step().item() for _ in range(30)]
        self.assertLess(losses[-1], 0.9 * losses[0])


if __name__ == "__main__":
    unittest.main()
