# SPDX-License-Identifier: Apache-2.0
"""tests/discover_suites.cmake: a suite passes, fails or is skipped in ctest as its tests do; one failed test, or none that runs, makes it fail."""
import os
import re
import subprocess
import sys
import tempfile

script, cmake = sys.argv[1:]
# A program with GoogleTest's interface and output.
PROGRAM = """#!/usr/bin/env python3
import sys
suites = {"Passes": "p", "SomeSkipped": "ps", "AllSkipped": "ss", "AllFailed": "ff", "FailedAndSkipped": "fs", "OneFailed": "pf"}
if "--gtest_list_tests" in sys.argv:
    for suite, tests in suites.items():
        print(suite + ".", *(f"  Test{i}" for i in range(len(tests))), sep="\\n")
    sys.exit()
wanted = sys.argv[-1].removeprefix("--gtest_filter=").split(":")
suite = wanted[0].split(".")[0]
tests = "".join(test for i, test in enumerate(suites[suite]) if {f"{suite}.*", f"{suite}.Test{i}"} & {*wanted})
count = tests.count
print(f"[  PASSED  ] {count('p')} tests.")
for letter, word in (("s", "SKIPPED"), ("f", "FAILED ")):
    if count(letter):
        print(f"[  {word} ] {count(letter)} tests, listed below:")
        print(*[f"[  {word} ] {suite}.Test{i}" for i, test in enumerate(tests) if test == letter], sep="\\n")
if count("f"):
    print(f"\\n {count('f')} FAILED TESTS")
sys.exit(count("f") > 0)
"""

with tempfile.TemporaryDirectory() as folder:
    program = os.path.join(folder, "program")
    with open(program, "w", encoding="utf-8") as file:
        file.write(PROGRAM)
    os.chmod(program, 0o755)
    tests = os.path.join(folder, "CTestTestfile.cmake")

    def results_of(gtest_filter, change=lambda text: text):
        """{suite: verdict of ctest}, with what discover_suites.cmake wrote, changed."""
        subprocess.run([cmake, f"-DPROGRAM={program}", f"-DOUT={tests}", "-DLIST=tests", "-DPREFIX=cuda.", f"-DFILTER={gtest_filter}", "-DPROPERTIES=TIMEOUT 60",
                        "-P", script], check=True)
        with open(tests, encoding="utf-8") as file:
            text = file.read()
        with open(tests, "w", encoding="utf-8") as file:
            file.write(change(text))
        ctest = os.path.join(os.path.dirname(cmake), "ctest")
        printed = subprocess.run([ctest, "--test-dir", folder], capture_output=True, text=True, check=False).stdout
        return dict(re.findall(r"Test +#\d+: cuda\.(\w+) [. *]*(\w+)", printed))

    expected = {"Passes": "Passed", "SomeSkipped": "Passed", "AllSkipped": "Skipped", "AllFailed": "Failed", "FailedAndSkipped": "Failed", "OneFailed": "Failed"}
    for selection in ("", "*Test*"):  # a selection names the tests
        assert results_of(selection) == expected, (selection, results_of(selection))
    runs_none = results_of("*Test*", lambda text: text.replace("Passes.Test0", "Passes."))
    assert runs_none == {**expected, "Passes": "Failed"}, runs_none
