"""Panels to explore with, each made by one call: inputs, attention, windows, rows, and the calibration of ABC.

Each is an `ipywidgets.VBox`. Without a kernel, its mime bundle still holds a picture of how it started, and that
of the calibration panel a fragment with frames for several τ and κ.
"""

# ruff: noqa: F401 (the names are for notebooks)
from abcnb.show.panels.calibration import CalibrationPanel as calibration_panel
from abcnb.show.panels.models import AttentionPanel as attention_panel
from abcnb.show.panels.models import RowsPanel as rows_panel
from abcnb.show.panels.tasks import TasksPanel as tasks_panel
from abcnb.show.panels.tasks import WindowPanel as window_panel
