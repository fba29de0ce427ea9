"""abcnb: small Transformers that learn arithmetic and generalize in length.

The idea is four functions (`pipeline`): interpolate, calibrate, retrain, evaluate. Below it are the rooms of the
core, each importing only those before it: `machine`, `lines`, `tasks`, `model`. Beside it are `rivals` (position
schemes of other papers, LoRA), `other_tasks` (from benchmarks), `yours` (lines in other models) and `proof` (right
at every length); above it are `study` (experiments and their runs), `show` (figures and pages) and `bench`.
"""

from typing import TYPE_CHECKING

# isort: off
from abcnb.tasks import arithmetic, rows, four_in_one, nested  # noqa: F401  they register tasks, in this order
from abcnb import other_tasks, rivals  # noqa: F401  they register further tasks, and position schemes

# isort: on
from abcnb.lines.calibration import Calibration
from abcnb.lines.line import Line, LineBias, windows
from abcnb.model.configs import ModelConfig, TrainingConfig
from abcnb.model.evaluation import Score
from abcnb.model.transformer import Transformer
from abcnb.pipeline import calibrate, evaluate, interpolate, lines_by_hand, retrain
from abcnb.proof.certificate import certify
from abcnb.proof.pruning import prune
from abcnb.tasks.task import get_task
from abcnb.tasks.training_data import TrainingData

if TYPE_CHECKING:
    from pathlib import Path

    from abcnb.study.runs import Prediction, Run

__version__ = "0.2.0"
__all__ = [
    "Calibration",
    "Line",
    "LineBias",
    "ModelConfig",
    "Score",
    "TrainingConfig",
    "TrainingData",
    "Transformer",
    "calibrate",
    "certify",
    "evaluate",
    "get_task",
    "interpolate",
    "lines_by_hand",
    "predict",
    "prune",
    "retrain",
    "windows",
]


def predict(run: "str | Path | Run", text: str, device: str = "auto") -> "Prediction":
    """Answer one input with a trained run, token by token: `abcnb.predict("reports/models/5a581757de78", "99+1")`.

    The prediction has source, output and label as tokens, and the model's and the true answer as numbers.

    Args:
        run: a run, its folder, or the start of its hash.
        text: an input in the task's own form, such as `99+1`.
        device: `auto`, `cpu` or `cuda`.

    Raises:
        ValueError: no such run, or a text that the task cannot read.
    """
    from abcnb.study.store import find_run

    return find_run(run).predict(text, device)
