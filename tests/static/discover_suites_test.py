# SPDX-License-Identifier: Apache-2.0
"""tests/discover_suites.cmake: a suite passes, fails or is skipped in ctest as its tests do; one failed test makes it fail."""
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
suite = sys.argv[-1].removeprefix("--gtest_filter=").removesuffix(".*")
count = suites[suite].count
print(f"[  PASSED  ] {count('p')} tests.")
for letter, word in (("s", "SKIPPED"), ("f", "FAILED ")):
    if count(letter):
        print(f"[  {word} ] {count(letter)} tests, listed below:")
        print(*[f"[  {word} ] {suite}.Test{i}" for i, test in enumerate(suites[suite]) if test == letter], sep="\\n")
if count("f"):
    print(f"\\n {count('f')} FAILED TESTS")
sys.exit(count("f") > 0)
"""

with tempfile.TemporaryDirectory() as folder:
    program = os.path.join(folder, "program")
    with open(program, "w", encoding="utf-8") as file:
        file.write(PROGRAM)
    os.chmod(program, 0o755)
    out = os.path.join(folder, "CTestTestfile.cmake")
    subprocess.run([cmake, f"-DPROGRAM={program}", f"-DOUT={out}", "-DLIST=tests", "-DPREFIX=cuda.", "-DFILTER=", "-DPROPERTIES=TIMEOUT 60", "-P", script],
                   check=True)
    ctest = os.path.join(os.path.dirname(cmake), "ctest")
    printed = subprocess.run([ctest, "--test-dir", folder], capture_output=True, text=True, check=False).stdout
    results = dict(re.findall(r"Test +#\d+: cuda\.(\w+) [. *]*(\w+)", printed))
    assert results == {"Passes": "Passed", "SomeSkipped": "Passed", "AllSkipped": "Skipped", "AllFailed": "Failed", "FailedAndSkipped": "Failed",
                       "OneFailed": "Failed"}, printed
