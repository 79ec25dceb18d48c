# SPDX-License-Identifier: Apache-2.0
"""tools/gpu_check on a machine of stand-ins: a build with VITRINE_CUDA=HOST, or what tests/ptx/run.py has linked, with two failures planted."""
import os
import sys
import tempfile

SECONDS = 60
# A test that passes once cuDNN is off; what runs it asks for it by its name.
PLANTED_TEST = """#!/bin/sh
echo '[ RUN      ] Planted.NeedsCudnnToBeOff'
if [ "$VITRINE_CUDNN" = off ]; then echo '[       OK ] Planted.NeedsCudnnToBeOff (0 ms)'; exit 0; fi
echo 'expected 1, got 2'
echo '[  FAILED  ] Planted.NeedsCudnnToBeOff (0 ms)'
exit 1
"""
# The fifth call of every capture fails: the probe turns graphs off.
PROGRAM = "#!/bin/sh\nVITRINE_STANDIN_FAIL_CAPTURE=5 exec {} \"$@\"\n"
NVIDIA_SMI = "#!/bin/sh\necho 'Stand-in, 600.00, 4096, 9.0, 1000, 1000, 100'\n"
SANITIZER = """#!/bin/sh
if [ "$1" = --help ]; then echo --kernel-regex; exit 0; fi
for last in "$@"; do :; done
echo '========= COMPUTE-SANITIZER'
"$last" --gtest_filter=UnpackTest.* || exit 9
echo '========= ERROR SUMMARY: 0 errors'
"""
PYTORCH = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    key = "bytes" if request.get("memory") else "seconds"
    answer = {"version": "0", "config": "", "gpu": "a stand-in", "cudnn": 0} if "facts" in request else {key: {layout: 1 for layout in request["layouts"]}}
    print(json.dumps(answer), flush=True)
"""
SMALL = ["--model", "lenet5", "--image-size", "12", "--data", "synthetic:16", "--batch-size", "4", "--epochs", "1", "--no-eval", "--devices", "cuda:0", "--json"]
# One quick suite of each program; the others are left out.
FILTERS = {"test_cuda_device": "CudaDevice.*", "test_nccl_one_rank": "*", "test_kernels_light": "UnpackTest.*", "test_layers": "*Linear*", "test_cuda_graph": "CudaGraph.CountsWhatIsReplayedAndWhatIsIssued"}
EXPECTED = {"facts": "ok", "build": "ok", "probe": "FAILED", "kernels": "FAILED", "engine": "ok", "parity": "ok", "pytorch": "FAILED", "profile": "ok", "steps": "ok", "memcheck": "ok"}


def processor_seconds():
    """Of the processes that this one has started: other work on the machine does not change it."""
    times = os.times()
    return times.children_user + times.children_system


def write_script(folder, name, text):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, 0o755)
    return path


class Rehearsal:
    def __init__(self, arguments, root):
        self.arguments, self.root = arguments, root
        self.programs = os.path.join(os.path.abspath(arguments.build), "bin")
        if not os.access(os.path.join(self.programs, "vitrine"), os.X_OK):
            sys.exit(f"gpu_check: {self.programs}/vitrine does not exist; build with -DVITRINE_CUDA=HOST, or run tests/ptx/run.py")

    def prepare(self, folder):
        """The build folder that the check sees: links to the programs of the rehearsal, and those that are planted."""
        programs, tools = os.path.join(folder, "build", "bin"), os.path.join(folder, "tools")
        os.makedirs(programs)
        for name in (*FILTERS, "bench_kernels", "bench_step"):
            if os.access(os.path.join(self.programs, name), os.X_OK):
                os.symlink(os.path.join(self.programs, name), os.path.join(programs, name))
        write_script(programs, "vitrine", PROGRAM.format(os.path.join(self.programs, "vitrine")))
        write_script(programs, "test_sequential", PLANTED_TEST)
        write_script(tools, "nvidia-smi", NVIDIA_SMI)
        write_script(tools, "compute-sanitizer", SANITIZER)
        os.environ.update(PATH=tools + ":" + os.environ["PATH"], XDG_CACHE_HOME=os.path.join(folder, "cache"), VITRINE_STANDIN_DEVICES="1", OMP_WAIT_POLICY="passive")
        return programs

    def run(self, check_type):
        before = processor_seconds()
        with tempfile.TemporaryDirectory() as folder:
            programs = self.prepare(folder)
            self.arguments.build, self.arguments.pack = os.path.join(folder, "build"), os.path.join(folder, "no-pack")
            self.arguments.seconds = 2.0 * SECONDS  # a stage that takes its whole time is too slow anyway
            self.arguments.out = self.arguments.out or os.path.join(folder, "results")
            check = check_type(self.arguments)
            check.known = set(os.listdir(programs))
            check.filters, check.profiled, check.kernel_benches, check.step_benches = FILTERS, SMALL, "^relu_forward/64MiB", "^step/mlp_b128/bare"
            check.curve = [*check.curve, "--samples", "4", "--batch-size", "2", "--epochs", "1", "--torch-device", "cpu"]
            check.pytorch_flags = ["--jobs", "small-cnn-b128", "--rehearse", write_script(folder, "pytorch.py", PYTORCH)]
            check.all()
            wrong = self.differences(check)
        seconds = processor_seconds() - before
        if seconds > SECONDS:
            wrong.append(f"it took {seconds:.0f} s of processor time, more than {SECONDS}")
        print("\nrehearsal: " + ("\n  ".join(["FAILED", *wrong]) if wrong else f"what was planted was found, and nothing else, in {seconds:.0f} s of processor time"))
        return 1 if wrong else 0

    @staticmethod
    def differences(check):
        """What a rehearsal should have said and did not."""
        wrong = [f"{stage}: expected {expected}, got {check.verdicts.get(stage)}" for stage, expected in EXPECTED.items() if check.verdicts.get(stage) != expected]
        report = check.report
        planted = report["kernels"]["programs"]["test_sequential"]["failed"].get("Planted.NeedsCudnnToBeOff", {})
        if planted.get("passes") != "with VITRINE_CUDNN=off":
            wrong.append(f"the planted test passes {planted.get('passes')}")
        if report["probe"].get("turned_off") != ["VITRINE_CUDA_GRAPHS"]:
            wrong.append(f"the probe turned off {report['probe'].get('turned_off')}, not CUDA graphs")
        others = [f"{program}: {test}" for stage in ("probe", "kernels", "engine") for program, outcome in report[stage].get("programs", {}).items()
                  for test in outcome["failed"] if not test.startswith("Planted.")]
        return wrong + [f"{test} failed" for test in others]
