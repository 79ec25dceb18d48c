#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The planner's page in the sources is that of the version and README.md links it; tools/release --check finds what is wrong.

usage: release_test.py ROOT
"""
import os
import shutil
import subprocess
import sys
import tempfile

ROOT = sys.argv[1]


def check(root):
    ended = subprocess.run([sys.executable, os.path.join(root, "tools/release"), "--check"], capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout + ended.stderr


status, report = check(ROOT)
assert status == 0, report
with tempfile.TemporaryDirectory() as tree:
    for folder in ("tools", "docs"):
        os.mkdir(os.path.join(tree, folder))
    shutil.copy(os.path.join(ROOT, "tools/release"), os.path.join(tree, "tools"))

    def tree_with(page, link):
        files = {"CMakeLists.txt": "project(vitrine VERSION 1.2.3 LANGUAGES CXX)\n", "README.md": f"[planner in a browser]({link})\n",
                 "docs/planner.html": f'<script>{{"version":"{page}"}}</script>' if page else None}
        for path, text in files.items():
            if text is None:
                if os.path.exists(os.path.join(tree, path)):
                    os.remove(os.path.join(tree, path))
                continue
            with open(os.path.join(tree, path), "w", encoding="utf-8") as file:
                file.write(text)
        return check(tree)

    assert tree_with(None, "docs/planner_page.md")[0] == 0
    assert tree_with("1.2.3", "docs/planner.html")[0] == 0
    for page, link, words in ((None, "docs/planner.html", "leads elsewhere than to docs/planner_page.md"), ("1.2.3", "docs/planner_page.md", "than to docs/planner.html"),
                              ("1.2.2", "docs/planner.html", "is of version 1.2.2, CMakeLists.txt of 1.2.3")):
        status, report = tree_with(page, link)
        assert status == 1 and words in report, report
    ended = subprocess.run([sys.executable, os.path.join(tree, "tools/release")], capture_output=True, text=True, check=False,
                           cwd=tree, env={"PATH": "/nonexistent"})
    assert ended.returncode == 1, ended.stderr
print("the page is of this version")
