"""abcnb: small Transformers that learn arithmetic and generalize in length.

The idea is four functions (`pipeline`): interpolate, calibrate, retrain, evaluate. Modules of this folder are the core:
they know nothing of files of results (`study`) or of what is shown (`show`). Each states its subject in its first line.
"""

from typing import TYPE_CHECKING

from abcnb import four_in_one, nested, rivals  # noqa: F401  they register tasks and position schemes
from abcnb.calibration import Calibration
from abcnb.configs import ModelConfig, TrainingConfig
from abcnb.evaluation import Score
from abcnb.lines import Line, LineBias, windows
from abcnb.model import Transformer
from abcnb.pipeline import calibrate, evaluate, interpolate, lines_by_hand, retrain
from abcnb.tasks import get_task
from abcnb.training_data import TrainingData

if TYPE_CHECKING:
    from pathlib import Path

    from abcnb.study.predictions import Prediction
    from abcnb.study.runs import Run

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
    "evaluate",
    "get_task",
    "interpolate",
    "lines_by_hand",
    "predict",
    "retrain",
    "windows",
]


def predict(run: "str | Path | Run", text: str, device: str = "auto") -> "Prediction":
    """One answer of a trained run, written token by token: `abcnb.predict("reports/models/9303ecafedcf", "99+1")`.

    Args:
        run: a run, its folder, or the start of its hash.
        text: an input in the task's own form, such as `99+1`.
        device: `auto`, `cpu` or `cuda`.

    Returns:
        A `study.predictions.Prediction`: source, output and label as tokens, the answer and the true one as numbers.

    Raises:
        ValueError: no such run, or a text that the task cannot read.
    """
    from abcnb.study.predictions import predict as of_run

    return of_run(run, text, device)
