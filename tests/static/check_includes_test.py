# SPDX-License-Identifier: Apache-2.0
"""tools/check_includes finds planted violations, and nothing in a tree that follows the rules."""
import os
import subprocess
import sys
import tempfile
import unittest

CHECKER = sys.argv.pop(1)
LINE = "// SPDX-License-Identifier: Apache-2.0\n"
HEADER = LINE + "#pragma once\n"
CMAKE = "# SPDX-License-Identifier: Apache-2.0\n"
GOOD = {
    "CMakeLists.txt": CMAKE,
    "README.md": "words\n",
    "runtime/CMakeLists.txt": CMAKE + "vitrine_public_headers(runtime\n  cpu/stream.h\n  view.h\n)\n",
    "runtime/view.h": HEADER + "#include <vector>\n",
    "runtime/cpu/parallel.h": HEADER + "#include <omp.h>\n",
    "runtime/cpu/stream.h": HEADER,
    "runtime/cpu/futex.h": HEADER + "#include <linux/futex.h>\n",
    "runtime/cuda/check.h": HEADER + "#include <cuda_runtime.h>\n",
    "runtime/settings.h": HEADER + 'inline constexpr Setting kRank{"ProcessGroupOptions::rank"};\ninline constexpr Setting kRuntime[] = {kRank};\n',
    "nn/parallel/settings.h": HEADER + 'inline constexpr Setting kBatchSize{"EngineConfig::batch_size"};\ninline constexpr Setting kSplit{"Scheme::split"};\n'
                              "inline constexpr Setting kEngine[] = {kBatchSize,\n                                kSplit};\n",
    "runtime/launcher.cpp": LINE + 'const char* kRemedy = "start it with mpirun --bind-to none";  // EngineConfig::batch_size\n',
    "tools/program/flags/advice.cpp": LINE + "static_assert(all_have_flags(settings::kRuntime) && all_have_flags(settings::kEngine));\n",
    "tools/program/flags/options.cpp": LINE + 'const char* kFlags[] = {"--batch-size", "--accumulate,--acc-grad"};\n',
    "runtime/view.cpp": LINE + '#include "runtime/view.h"\n#include <fmt/core.h>\n',
    "kernels/CMakeLists.txt": CMAKE + "vitrine_public_headers(kernels relu.h)\n",
    "kernels/relu.h": HEADER + "#include <vitrine/runtime/view.h>\n",
    "kernels/relu.cpp": LINE + '#include "kernels/relu.h"\n#include <Eigen/Core>\n#include "kernels/cpu/arena.h"\n#include "runtime/cpu/parallel.h"\n',
    "kernels/relu.cu": LINE + '#include "kernels/cuda/device.cuh"\n#include "runtime/cuda/check.h"\n__global__ void relu() {\n  wait_for_earlier_work();\n}\n',
    "kernels/cpu/arena.h": HEADER + '#include "runtime/view.h"\n',
    "kernels/cuda/device.cuh": HEADER + "#include <cuda_runtime_api.h>\n__device__ inline int first() { return 0; }\n",
    "nn/CMakeLists.txt": CMAKE + "vitrine_public_headers(nn layer.h)\n",
    "nn/layer.h": HEADER + "#include <vitrine/kernels/relu.h>\n#include <vitrine/runtime/cpu/stream.h>\n",
    "nn/parallel/CMakeLists.txt": CMAKE + "vitrine_library(parallel engine.cpp)\nvitrine_public_headers(parallel engine.h)\n",
    "nn/parallel/engine.h": HEADER + "#include <vitrine/nn/layer.h>\n",
    "nn/parallel/engine_state.h": HEADER + '#include <omp.h>\n#include "nn/parallel/engine.h"\n',
    "data/CMakeLists.txt": CMAKE + "vitrine_public_headers(data loader.h)\n",
    "data/loader.cpp": LINE + '#include "data/loader.h"\n#include "runtime/view.h"\n#include <zlib.h>\n',
    "data/readers.h": HEADER,
    "tools/main.cpp": LINE + '#include "data/loader.h"\n#include "nn/parallel/engine.h"\n#include "vitrine_version.h"\n',
    "tools/report.h": HEADER,
    "tools/program/run/run.h": HEADER + '#include "tools/program/flags/options.h"\n',
    "tools/program/flags/options.h": HEADER,
    "data/loader.h": HEADER,
    "tests/kernels/relu_test.cpp": LINE + '#include <gtest/gtest.h>\n#include "kernels/cpu/arena.h"\n',
    "tests/consumer/own_layer/main.cpp": LINE + "#include <vitrine/nn/layer.h>\n",
    "docs/examples/scatter.cpp": LINE + "#include <vitrine/runtime/view.h>\n",
    "build/anything.cpp": "not ours\n",
}
VIOLATIONS = {  # name: (path, content, part of the message)
    "runtime includes kernels": ("runtime/a.cpp", LINE + '#include "kernels/relu.h"\n', "runtime must not include from kernels"),
    "kernels include nn": ("kernels/a.cpp", LINE + '  #  include "nn/layer.h"\n', "kernels must not include from nn"),
    "nn includes nn/parallel": ("nn/a.cpp", LINE + '#include "nn/parallel/engine.h"\n', "nn must not include from nn/parallel"),
    "engine includes data": ("nn/parallel/a.cpp", LINE + '#include "data/loader.h"\n', "nn/parallel must not include from data"),
    "data includes kernels": ("data/a.cpp", LINE + '#include "kernels/relu.h"\n', "data must not include from kernels"),
    "nn includes tools": ("nn/a.cpp", LINE + '#include "tools/report.h"\n', "nn must not include from tools"),
    "public header includes what is above": ("kernels/relu.h", HEADER + "#include <vitrine/nn/layer.h>\n", "kernels must not include from nn"),
    "third-party header in a public header": ("nn/layer.h", HEADER + "#include <nlohmann/json.hpp>\n", "only standard C++ headers"),
    "system header in a public header": ("runtime/view.h", HEADER + "#include <pthread.h>\n", "only standard C++ headers"),
    "quoted include in a public header": ("kernels/relu.h", HEADER + '#include "runtime/view.h"\n', "may find a file of the user"),
    "private header in a public header": ("kernels/relu.h", HEADER + "#include <vitrine/kernels/cpu/arena.h>\n", "not installed"),
    "state in a public header": ("nn/parallel/engine.h", HEADER + "#include <vitrine/nn/parallel/engine_state.h>\n", "not installed"),
    "build-dependent public header": ("runtime/view.h", HEADER + '#include "vitrine_version.h"\n', "an installed header must not include"),
    "public header that is not there": ("data/CMakeLists.txt", CMAKE + "vitrine_public_headers(data\n  loader.h\n  lader.h)\n", "no such file"),
    "public header is not first": ("data/loader.cpp", LINE + '#include <zlib.h>\n#include "data/loader.h"\n', "compiles by itself"),
    "nn reaches into kernels/cpu": ("nn/a.cpp", LINE + '#include "kernels/cpu/arena.h"\n', "private to kernels"),
    "bench reaches into kernels/cpu": ("bench/a.cpp", LINE + '#include "kernels/cpu/arena.h"\n', "private to kernels"),
    "tools reach into data": ("tools/a.cpp", LINE + '#include "data/readers.h"\n', "private to data"),
    "tools reach into the engine": ("tools/a.cpp", LINE + '#include "nn/parallel/engine_state.h"\n', "private to nn/parallel"),
    "data reaches into runtime/cpu": ("data/a.cpp", LINE + '#include "runtime/cpu/parallel.h"\n', "private to runtime and kernels"),
    "kernels reach into runtime/cpu": ("kernels/cpu/a.cpp", LINE + '#include "runtime/cpu/futex.h"\n', "private to runtime"),
    "a folder of the program reaches up": ("tools/program/flags/a.cpp", LINE + '#include "tools/program/run/run.h"\n', "must not include from run"),
    "a step reaches up to the engine": ("nn/parallel/step/a.cpp", LINE + '#include "nn/parallel/engine_state.h"\n', "higher floor of nn/parallel"),
    "the configuration reaches up": ("nn/parallel/a.cpp", LINE + '#include "nn/parallel/engine.h"\n', "higher floor of nn/parallel"),
    "a folder of the engine without a floor": ("nn/parallel/misc/a.cpp", LINE + '#include "nn/parallel/engine.h"\n', "ENGINE_FLOORS does not name"),
    "relative include": ("kernels/a.cpp", LINE + '#include "relu.h"\n', "no file relu.h"),
    "installed name inside": ("nn/a.cpp", LINE + "#include <vitrine/kernels/relu.h>\n", "for installed headers and users"),
    "consumer sees the source tree": ("tests/consumer/a.cpp", LINE + '#include "nn/layer.h"\n', "installed headers only"),
    "example sees the source tree": ("docs/examples/a.cpp", LINE + '#include "nn/layer.h"\n', "installed headers only"),
    "CUDA header on the host side": ("runtime/a.cpp", LINE + "#include <cuda_runtime.h>\n", "cuda/ folder"),
    "a library that may be missing": ("runtime/cuda/stream.cpp", LINE + "#include <nvtx3/nvToolsExt.h>\n", "may be missing"),
    "mathematics in runtime": ("runtime/a.cpp", LINE + "#include <Eigen/Core>\n", "belongs in kernels"),
    "test framework in the library": ("nn/a.cpp", LINE + "#include <gtest/gtest.h>\n", "belongs in tests"),
    "device code in a host file": ("kernels/a.cpp", LINE + "__global__ void f();\n", "belongs in a .cu or .cuh file"),
    "kernel that does not wait": ("kernels/a.cu", LINE + "__global__ void __launch_bounds__(32)\n    f(int* x) {\n  *x = 1;\n}\n", "first statement of a kernel"),
    "kernel that waits too late": ("kernels/cuda/a.cuh", HEADER + "__global__ void f(int* x) {\n  *x = 1;\n  wait_for_earlier_work();\n}\n", "first statement"),
    "device file in another folder": ("nn/a.cu", LINE, "device code belongs in kernels/"),
    "device file in a subfolder of kernels": ("kernels/cpu/a.cu", LINE, "device code belongs in kernels/"),
    "flag in a message of the library": ("nn/a.cpp", LINE + 'const char* kText = "lower --batch-size";\n', "program's flag --batch-size"),
    "flag in a comment of the library": ("data/a.cpp", LINE + "int x;  // see --acc-grad\n", "program's flag --acc-grad"),
    "setting in a text": ("kernels/a.cpp", LINE + 'const char* kText = "lower EngineConfig::batch_size";\n', "write the Setting"),
    "setting that is not listed": ("data/settings.h", HEADER + 'inline constexpr Setting kSide{"open_dataset::side"};\n'
                                   "inline constexpr Setting kEngine[] = {kOther};\n", "kSide is not in the list"),
    "list of settings without flags": ("nn/settings.h", HEADER + 'inline constexpr Setting kWidth{"Model::width"};\n'
                                       "inline constexpr Setting kModel[] = {kWidth};\n", "does not check kModel"),
    "setting elsewhere": ("nn/a.cpp", LINE + 'constexpr Setting kWidth("MyLayer::width");\n', "declare the Setting in nn/settings.h"),
    "setting without a name": ("nn/a.cpp", LINE + 'const auto part = propose(Setting{"MyLayer::width"}, 3);\n', "declare the Setting in nn/settings.h"),
    "a path without an error code": ("tools/a.cpp", LINE + "bool b = fs::exists(f(x) / y);\n", "pass an error code to fs::exists(f(x) / y)"),
    "an entry without an error code": ("data/a.cpp", LINE + "bool b = entry.is_directory();\n", "use an error code"),
    "a folder's entries without an error code": ("nn/a.cpp", LINE + "for (auto& e : fs::directory_iterator(x, error)) f(e);\n", "use an error code"),
    "a reader that waits for pipes": ("nn/a.cpp", LINE + "std::ifstream file(path);\n", "runtime/descriptor.h"),
    "no licence line": ("kernels/a.cpp", "int x;\n", "SPDX-License-Identifier"),
    "no licence line in a script": ("tools/a", "#!/bin/sh\n:\n", "SPDX-License-Identifier"),
    "no licence line in CMake": ("tools/CMakeLists.txt", "project(x)\n", "SPDX-License-Identifier"),
    "header without pragma once": ("kernels/a.h", LINE, "#pragma once"),
    "stray file at the root": ("notes.md", "x\n", "does not belong at the root"),
    "stray folder at the root": ("misc/a.cpp", LINE, "does not belong at the root"),
}


def check(files):
    """Exit code and output of the checker on a tree of these files."""
    with tempfile.TemporaryDirectory() as root:
        for path, content in files.items():
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(content)
        run = subprocess.run([sys.executable, CHECKER, root], capture_output=True, text=True, check=False)
        return run.returncode, run.stdout


class CheckIncludes(unittest.TestCase):
    def test_accepts_a_good_tree(self):
        self.assertEqual(check(GOOD), (0, "check_includes: all arrows run down\n"))

    def test_finds_each_violation_and_nothing_else(self):
        for name, (path, content, message) in VIOLATIONS.items():
            with self.subTest(name):
                code, output = check({**GOOD, path: content})
                lines = output.splitlines()
                self.assertEqual(code, 1)
                self.assertEqual(len(lines), 2, output)
                self.assertTrue(lines[0].startswith(path.split("/")[0]), output)
                self.assertIn(message, lines[0])


if __name__ == "__main__":
    unittest.main()
