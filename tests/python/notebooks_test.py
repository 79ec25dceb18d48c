# SPDX-License-Identifier: Apache-2.0
"""Runs the notebooks of docs/notebooks, and looks for the charts that they show."""
import pathlib

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")
NOTEBOOKS = sorted((pathlib.Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_the_reports_charts(path):
    notebook = nbformat.read(path, as_version=4)
    assert all(not cell.outputs for cell in notebook.cells if cell.cell_type == "code"), "a notebook is stored without outputs"
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": "."}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    charts = [output for output in outputs if "data-chart" in output.get("data", {}).get("text/html", "")]
    assert len(charts) >= 2
    assert sum("?" in cell.source for cell in notebook.cells if cell.cell_type == "markdown") >= 3, "a notebook asks questions"


def test_there_are_three():
    assert len(NOTEBOOKS) == 3
